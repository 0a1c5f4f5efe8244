//! Lines of JSON on the standard output.

use std::io::{self, Write};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time;

use super::hand::Hand;
use super::lines::Lines;
use crate::sink::{BoxFuture, Message, Report, Sink, Unavailable, UnavailableKind};

/// A reader may be slow, a pager for one; after this long without a byte taken the sink says so.
const PATIENCE: Duration = Duration::from_secs(30);

/// `stdout: {}`
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StdoutConfig {}

/// Writes one line for each event and flushes after each batch. Delivered means that the reader's pipe, or the terminal, has it.
pub struct Stdout {
    hand: Hand<Output>,
    lines: Lines,
}

struct Output {
    to: Box<dyn Write + Send>,
    /// The last write ended inside a line.
    is_torn: bool,
}

impl Stdout {
    /// On the standard output of this process.
    pub fn open() -> Result<Self, Unavailable> {
        Self::to(io::stdout())
    }

    /// On anything that takes bytes.
    pub fn to(output: impl Write + Send + 'static) -> Result<Self, Unavailable> {
        let output = Output { to: Box::new(output), is_torn: false };
        let hand = Hand::start("stdout sink", output)
            .map_err(|error| Unavailable::new(UnavailableKind::Blocked, error))?;
        Ok(Self { hand, lines: Lines::default() })
    }
}

impl Sink for Stdout {
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report> {
        Box::pin(async move {
            let mut lines = std::mem::take(&mut self.lines);
            lines.fill(batch);
            let write = self.hand.run(move |output| (output.write(lines.bytes()), lines));
            let why = match time::timeout(PATIENCE, write).await {
                Ok(Some((Ok(()), lines))) => {
                    self.lines = lines.emptied();
                    return Report::delivered(batch.len());
                }
                // Nobody can open the other end of a pipe again.
                Ok(Some((Err(error), _))) if error.kind() == io::ErrorKind::BrokenPipe => Unavailable::new(
                    UnavailableKind::Gone,
                    "standard output is closed: who read it has ended",
                ),
                Ok(Some((Err(error), _))) => Unavailable::new(kind(&error), error),
                Ok(None) => Unavailable::new(UnavailableKind::Connection, "the writing thread has died"),
                Err(_) => Unavailable::new(
                    UnavailableKind::Timeout,
                    "nobody has read the standard output for 30 seconds",
                ),
            };
            Report::unavailable(batch.len(), why)
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        // Every delivery was flushed.
        Box::pin(async { Ok(()) })
    }
}

impl Output {
    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        if self.is_torn {
            // Half a line cannot be taken back; it is at least kept apart from the next.
            self.to.write_all(b"\n")?;
            self.is_torn = false;
        }
        while !bytes.is_empty() {
            match self.to.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.is_torn = bytes[count - 1] != b'\n';
                    bytes = &bytes[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.to.flush()
    }
}

fn kind(error: &io::Error) -> UnavailableKind {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => UnavailableKind::Full,
        io::ErrorKind::WouldBlock => UnavailableKind::Blocked,

        _ => UnavailableKind::Connection,
    }
}
