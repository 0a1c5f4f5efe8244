//! One direction of a connection: bytes come in, wait their turn, and go out.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::{Direction, Shared, Switches};

const CHUNK: usize = 16 * 1024;
/// Chunks on their way while delayed; 4 MiB, beyond which the sender feels back-pressure.
const IN_FLIGHT: usize = 256;

/// Why a direction stopped other than by a regular end.
pub(super) enum Stopped {
    /// A socket failed, or bytes are missing from the stream.
    Broken,
    /// The last byte allowed has passed.
    Cut,
}

impl From<io::Error> for Stopped {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

pub(super) struct Pump<'a> {
    direction: Direction,
    shared: &'a Shared,
}

impl<'a> Pump<'a> {
    pub(super) fn new(direction: Direction, shared: &'a Shared) -> Self {
        Self { direction, shared }
    }

    /// Forwards until the sender closes its side, and then closes the receiver's.
    pub(super) async fn run(&self, from: ReadHalf<'_>, to: WriteHalf<'_>) -> Result<(), Stopped> {
        // Two halves with a queue between them, so that a delay does not slow down the stream.
        let (queue, chunks) = mpsc::channel(IN_FLIGHT);
        tokio::try_join!(self.receive(from, queue), self.send(chunks, to))?;
        Ok(())
    }

    async fn receive(
        &self,
        mut from: ReadHalf<'_>,
        queue: mpsc::Sender<(Instant, Vec<u8>)>,
    ) -> Result<(), Stopped> {
        let mut switches = self.shared.switches.subscribe();
        let mut swallowed = false;
        loop {
            pass_when_connected(&mut switches).await;
            let mut chunk = vec![0; CHUNK];
            let count = tokio::select! {
                count = from.read(&mut chunk) => count?,
                // Look at the switches again before taking more from the sender.
                _ = switches.changed() => continue,
            };
            if self.swallows(&switches.borrow()) {
                swallowed = true;
                if count > 0 {
                    continue;
                }
                // The end of the stream is swallowed too.
                let _ = switches.wait_for(|now| !self.swallows(now)).await;
            }
            if swallowed {
                return Err(Stopped::Broken);
            }
            if count == 0 {
                return Ok(());
            }
            chunk.truncate(count);
            let due = Instant::now() + switches.borrow().faults.delay;
            if queue.send((due, chunk)).await.is_err() {
                return Ok(());
            }
        }
    }

    async fn send(
        &self,
        mut chunks: mpsc::Receiver<(Instant, Vec<u8>)>,
        mut to: WriteHalf<'_>,
    ) -> Result<(), Stopped> {
        let mut switches = self.shared.switches.subscribe();
        while let Some((due, chunk)) = chunks.recv().await {
            sleep_until(due).await;
            let mut rest = chunk.as_slice();
            while !rest.is_empty() {
                pass_when_connected(&mut switches).await;
                let rate = switches.borrow().faults.bytes_per_second;
                let (size, last) = self.shared.take(self.direction, rest.len().min(slice(rate)));
                to.write_all(&rest[..size]).await?;
                if last {
                    self.shared.cut_off();
                    return Err(Stopped::Cut);
                }
                rest = &rest[size..];
                if let Some(rate) = rate {
                    sleep(Duration::from_secs(size as u64) / u32::try_from(rate).unwrap_or(u32::MAX)).await;
                }
            }
        }
        to.shutdown().await?;
        Ok(())
    }

    fn swallows(&self, switches: &Switches) -> bool {
        switches.faults.swallow.contains(&self.direction)
    }
}

/// Waits while the connection is cut off from its other end.
async fn pass_when_connected(switches: &mut watch::Receiver<Switches>) {
    let _ = switches.wait_for(|now| !now.faults.half_open).await;
}

/// How much to write at once: a twentieth of a second's worth when throttled, so that the flow is even.
fn slice(rate: Option<u64>) -> usize {
    rate.map_or(CHUNK, |rate| usize::try_from(rate / 20).unwrap_or(CHUNK).clamp(1, CHUNK))
}
