//! Entries of Redis streams.

mod config;
mod connection;
mod durability;
mod error;
mod plan;
mod transaction;

pub use config::RedisConfig;
pub(super) use durability::durability;

use crate::sink::{BoxFuture, Message, Outcome, Refusal, RefusalKind, Report, Sink, Unavailable};
use connection::{Connection, Name};
use plan::Stops;
use transaction::End;

/// Where events go by default: a stream for each first part of a type, apart from an application's own keys.
pub(super) const ROUTE: &str = "events:{type.0}";

/// Adds each event to a stream, a batch in one transaction.
///
/// Without the transaction, a server that runs out of memory between two events of a key, and has some again for the next, would
/// keep the later one. Inside it, it takes all or none of them. What it can hold against single ones, that their key is no stream, it
/// holds against all of that stream, which is what `plan` is for.
pub struct RedisSink {
    config: RedisConfig,
    connection: Option<Connection>,
    /// Of the connection that was given up.
    old: Option<Name>,
}

impl RedisSink {
    /// Connects.
    pub async fn open(config: RedisConfig) -> Result<Self, Unavailable> {
        let connection = Connection::open(&config, None).await?;
        Ok(Self { config, connection: Some(connection), old: None })
    }

    async fn deliver_all(
        &mut self,
        batch: &[Message<'_>],
        outcomes: &mut [Outcome],
    ) -> Result<(), Unavailable> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(Connection::open(&self.config, self.old.as_ref()).await?),
        };
        let mut stops = Stops::default();
        for group in plan::groups(batch) {
            let mut open = Vec::with_capacity(group.len());
            for place in group {
                if stops.is_behind(&batch[place], place) {
                    continue;
                }
                match too_large(&batch[place], connection.largest) {
                    None => open.push(place),
                    Some(refusal) => {
                        outcomes[place] = Outcome::Refused(refusal);
                        stops.stop(&batch[place], place);
                    }
                }
            }
            while !open.is_empty() {
                let question =
                    transaction::transaction(&self.config, open.iter().map(|&place| &batch[place]));
                let answers = connection.ask(&question).await?;
                if let End::Executed = transaction::settle(batch, &open, &answers, outcomes, &mut stops)? {
                    break;
                }
                open.retain(|&place| {
                    outcomes[place] == Outcome::NotSent && !stops.is_behind(&batch[place], place)
                });
            }
        }
        Ok(())
    }
}

/// The server would end the connection without a word about which value it was.
fn too_large(message: &Message<'_>, largest: u64) -> Option<Refusal> {
    let size = message.body.len() as u64;
    (size > largest).then(|| Refusal {
        kind: RefusalKind::TooLarge,
        reason: format!("{size} bytes, and Redis takes {largest} (its proto-max-bulk-len)"),
    })
}

impl Sink for RedisSink {
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report> {
        Box::pin(async move {
            let mut outcomes = vec![Outcome::NotSent; batch.len()];
            let unavailable = self.deliver_all(batch, &mut outcomes).await.err();
            if unavailable.is_some() {
                // Answers that come late would be taken for those of the next batch.
                let given_up = self.connection.take().and_then(|connection| connection.name);
                self.old = given_up.or(self.old.take());
            }
            Report { outcomes, unavailable }
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        // Nothing is in flight between two batches.
        Box::pin(async { Ok(()) })
    }
}
