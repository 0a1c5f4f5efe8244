//! Reads entries, new ones and those of members that fell silent, as far as there is room for them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::streams::{StreamAutoClaimReply, StreamId, StreamReadReply};
use redis::{RedisResult, cmd};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::link::RedisReceipt;
use super::{Redis, entry, trouble};
use crate::consumer::{Delivery, Terms, Trouble};

/// How long a read waits for something new.
pub(super) const WAIT: Duration = Duration::from_secs(1);

/// The consumer is gone.
struct Gone;

pub(super) struct Pump {
    redis: MultiplexedConnection,
    streams: Vec<Arc<str>>,
    group: String,
    member: String,
    prefetch: usize,
    room: Arc<Semaphore>,
    outlet: mpsc::Sender<Result<Delivery<RedisReceipt>, Trouble>>,
    reclaim_after: Duration,
    next_reclaim: Instant,
    /// Where looking for silent members goes on, for each stream.
    cursors: HashMap<Arc<str>, String>,
}

impl Pump {
    pub(super) fn new(
        redis: MultiplexedConnection,
        source: &Redis,
        terms: &Terms,
        member: String,
        outlet: mpsc::Sender<Result<Delivery<RedisReceipt>, Trouble>>,
    ) -> Self {
        Self {
            redis,
            streams: source.streams.clone(),
            group: terms.consumer.clone(),
            member,
            prefetch: terms.prefetch as usize,
            room: Arc::clone(&terms.room),
            outlet,
            reclaim_after: source.reclaim_after,
            next_reclaim: Instant::now(),
            cursors: HashMap::new(),
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            let Ok(permits) = self.permits().await else { return };
            match self.round(permits).await {
                Ok(Ok(())) => {}
                Ok(Err(Gone)) => return,
                Err(error) => {
                    // Nobody listens any more, or this is what they wait for.
                    let _ = self.outlet.send(Err(trouble(error))).await;
                    return;
                }
            }
        }
    }

    /// All the room that there is; at least for one.
    async fn permits(&self) -> Result<Vec<OwnedSemaphorePermit>, Gone> {
        let first = tokio::select! {
            permit = Arc::clone(&self.room).acquire_owned() => permit.map_err(|_| Gone)?,
            () = self.outlet.closed() => return Err(Gone),
        };
        let mut permits = vec![first];
        while permits.len() < self.prefetch
            && let Ok(permit) = Arc::clone(&self.room).try_acquire_owned()
        {
            permits.push(permit);
        }
        Ok(permits)
    }

    async fn round(&mut self, mut permits: Vec<OwnedSemaphorePermit>) -> RedisResult<Result<(), Gone>> {
        if self.next_reclaim <= Instant::now() {
            self.next_reclaim = Instant::now() + self.reclaim_after / 2;
            for stream in self.streams.clone() {
                let claimed = self.claim(&stream, permits.len()).await?;
                if self.deliver(&stream, claimed, true, &mut permits).await.is_err() {
                    return Ok(Err(Gone));
                }
            }
            return Ok(Ok(()));
        }
        let wait = WAIT.min(self.reclaim_after / 2);
        // For each stream.
        let count = (permits.len() / self.streams.len()).max(1);
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg(&self.group).arg(&self.member).arg("COUNT").arg(count);
        read.arg("BLOCK").arg(millis(wait).max(1)).arg("STREAMS");
        for stream in &self.streams {
            read.arg(&**stream);
        }
        for _ in &self.streams {
            read.arg(">");
        }
        let found: Option<StreamReadReply> = read.query_async(&mut self.redis).await?;
        for stream in found.into_iter().flat_map(|reply| reply.keys) {
            let name: Arc<str> = stream.key.into();
            if self.deliver(&name, stream.ids, false, &mut permits).await.is_err() {
                return Ok(Err(Gone));
            }
        }
        Ok(Ok(()))
    }

    async fn claim(&mut self, stream: &Arc<str>, count: usize) -> RedisResult<Vec<StreamId>> {
        let cursor = self.cursors.get(stream).map_or("0-0", String::as_str);
        let mut claim = cmd("XAUTOCLAIM");
        claim.arg(&**stream).arg(&self.group).arg(&self.member).arg(millis(self.reclaim_after)).arg(cursor);
        claim.arg("COUNT").arg(count.max(1));
        let found: StreamAutoClaimReply = claim.query_async(&mut self.redis).await?;
        if found.next_stream_id != "0-0" {
            // There is more of them.
            self.next_reclaim = Instant::now();
        }
        self.cursors.insert(Arc::clone(stream), found.next_stream_id);
        Ok(found.claimed)
    }

    async fn deliver(
        &self,
        stream: &Arc<str>,
        entries: Vec<StreamId>,
        is_repeated: bool,
        permits: &mut Vec<OwnedSemaphorePermit>,
    ) -> Result<(), Gone> {
        for entry in entries {
            let receipt = RedisReceipt { stream: Arc::clone(stream), entry: entry.id.clone() };
            let message = entry::message(stream, entry);
            let room = match permits.pop() {
                Some(room) => room,
                None => Arc::clone(&self.room).acquire_owned().await.map_err(|_| Gone)?,
            };
            let delivery = Delivery { message, receipt, is_repeated, room };
            self.outlet.send(Ok(delivery)).await.map_err(|_| Gone)?;
        }
        Ok(())
    }
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
