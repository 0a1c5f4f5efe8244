//! What is said to the server about entries in hand.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use redis::streams::StreamPendingCountReply;
use redis::{RedisResult, cmd};
use tokio::task::JoinHandle;

use super::pump::millis;
use super::{Redis, entry, trouble};
use crate::consumer::{Grave, Link, Message, Terms, Trouble};

/// Takes members out of a group that have nothing in hand: this one, or those that have long been silent. In one piece, because a member
/// that goes with something in hand takes it along.
const LEAVE: &str = "
for _, member in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local is = {}
  for at = 1, #member, 2 do is[member[at]] = member[at + 1] end
  if is.pending == 0 and (is.name == ARGV[2] or is.idle > tonumber(ARGV[3])) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], is.name)
  end
end";
const LONG_SILENT: Duration = Duration::from_hours(24);

/// By which an entry is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisReceipt {
    pub(super) stream: Arc<str>,
    pub(super) entry: String,
}

/// A connection to a Redis server.
pub struct RedisLink {
    redis: MultiplexedConnection,
    streams: Vec<Arc<str>>,
    group: String,
    member: String,
    reclaim_after: Duration,
    dead_letters: String,
    keep_dead: Duration,
    pub(super) pump: Option<JoinHandle<()>>,
}

impl Drop for RedisLink {
    fn drop(&mut self) {
        if let Some(pump) = &self.pump {
            pump.abort();
        }
    }
}

impl RedisLink {
    pub(super) fn new(redis: MultiplexedConnection, source: &Redis, terms: &Terms, member: String) -> Self {
        let dead_letters = source.dead_letters.clone().unwrap_or_else(|| format!("dead:{}", terms.consumer));
        Self {
            redis,
            streams: source.streams.clone(),
            group: terms.consumer.clone(),
            member,
            reclaim_after: source.reclaim_after,
            dead_letters,
            keep_dead: source.keep_dead,
            pump: None,
        }
    }

    /// Makes the group where it is not there.
    pub(super) async fn join(&self, start: &str) -> Result<(), Trouble> {
        for stream in &self.streams {
            let mut create = cmd("XGROUP");
            create.arg("CREATE").arg(&**stream).arg(&self.group).arg(start).arg("MKSTREAM");
            match create.query_async::<()>(&mut self.redis.clone()).await {
                Err(error) if error.code() != Some("BUSYGROUP") => return Err(trouble(error)),
                _ => self.leave(stream, "").await,
            }
        }
        Ok(())
    }

    /// Only tidiness: a user who may not run scripts leaves names behind.
    async fn leave(&self, stream: &str, member: &str) {
        let mut leave = cmd("EVAL");
        leave.arg(LEAVE).arg(1).arg(stream).arg(&self.group).arg(member).arg(millis(LONG_SILENT));
        if let Err(error) = leave.query_async::<()>(&mut self.redis.clone()).await {
            tracing::debug!(%error, stream, "names of members that are gone stay in the group");
        }
    }

    /// Says of entries how long they have been silent.
    async fn touch(&self, receipts: &[RedisReceipt], silent: Duration) -> RedisResult<()> {
        let mut streams: HashMap<&str, Vec<&str>> = HashMap::new();
        for RedisReceipt { stream, entry } in receipts {
            streams.entry(stream).or_default().push(entry);
        }
        for (stream, entries) in streams {
            let mut claim = cmd("XCLAIM");
            claim.arg(stream).arg(&self.group).arg(&self.member).arg(0).arg(entries);
            // Only the ids come back, and it does not count as a delivery.
            claim.arg("IDLE").arg(millis(silent)).arg("JUSTID");
            claim.query_async::<()>(&mut self.redis.clone()).await?;
        }
        Ok(())
    }

    /// What is still this member's, in whosever hands.
    async fn left(&self, stream: &Arc<str>) -> RedisResult<Vec<RedisReceipt>> {
        let mut pending = cmd("XPENDING");
        pending.arg(&**stream).arg(&self.group).arg("-").arg("+").arg(10_000).arg(&self.member);
        let found: StreamPendingCountReply = pending.query_async(&mut self.redis.clone()).await?;
        let receipt = |entry| RedisReceipt { stream: Arc::clone(stream), entry };
        Ok(found.ids.into_iter().map(|pending| receipt(pending.id)).collect())
    }
}

impl Link for RedisLink {
    type Receipt = RedisReceipt;

    async fn acknowledge(&self, receipt: &RedisReceipt) -> Result<(), Trouble> {
        let mut acknowledge = cmd("XACK");
        acknowledge.arg(&*receipt.stream).arg(&self.group).arg(&receipt.entry);
        acknowledge.query_async(&mut self.redis.clone()).await.map_err(trouble)
    }

    async fn bury(&self, message: &Message, grave: &Grave<'_>) -> Result<(), Trouble> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let oldest = millis(now.saturating_sub(self.keep_dead));
        let mut add = cmd("XADD");
        add.arg(&self.dead_letters).arg("MINID").arg("~").arg(oldest).arg("*");
        for (name, value) in grave.headers() {
            add.arg(name).arg(value);
        }
        add.arg("postrider-dead-place").arg(&message.place);
        for (name, value) in entry::fields(message) {
            add.arg(name).arg(value);
        }
        add.query_async::<String>(&mut self.redis.clone()).await.map_err(trouble)?;
        Ok(())
    }

    fn keep_every(&self) -> Option<Duration> {
        Some(self.reclaim_after / 3)
    }

    async fn keep(&self, receipts: &[RedisReceipt]) -> Result<(), Trouble> {
        self.touch(receipts, Duration::ZERO).await.map_err(trouble)
    }

    async fn give_back(&self, receipts: &[RedisReceipt]) -> Result<(), Trouble> {
        // Silent for so long that whoever looks next takes them.
        self.touch(receipts, self.reclaim_after * 2).await.map_err(trouble)
    }

    async fn close(&self) {
        if let Some(pump) = &self.pump {
            pump.abort();
        }
        for stream in &self.streams {
            // What came while nobody took it any more.
            if let Ok(left) = self.left(stream).await
                && !left.is_empty()
            {
                let _ = self.give_back(&left).await;
            }
            self.leave(stream, &self.member).await;
        }
    }
}
