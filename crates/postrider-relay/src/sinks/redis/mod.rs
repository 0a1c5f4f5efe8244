//! Entries of Redis streams.

mod cluster;
mod config;
mod connection;
mod durability;
mod error;
mod nodes;
mod transaction;

pub use config::RedisConfig;
pub(super) use durability::durability;

use super::rounds::{Stops, rounds};
use crate::sink::{BoxFuture, Message, Outcome, Refusal, RefusalKind, Report, Sink, Unavailable};
use connection::Limits;
use nodes::{Names, Nodes};
use transaction::{End, Size, pieces};

/// Where events go by default: a stream for each first part of a type, apart from an application's own keys.
pub(super) const ROUTE: &str = "events:{type.0}";

/// Adds each event to a stream, a batch in one transaction, or in several where it is more than the server takes at once.
///
/// Without the transaction, a server that runs out of memory between two events of a key, and has some again for the next, would
/// keep the later one. Inside it, it takes all or none of them; of several, each is executed before the next is sent. What it can hold
/// against single ones, that their key is no stream, it holds against all of that stream, which is what rounds are for. A cluster takes
/// transactions of one slot, so there a batch is one for each slot: events of one key that go to one stream are still together.
pub struct RedisSink {
    config: RedisConfig,
    nodes: Option<Nodes>,
    /// Of the connections that were given up.
    old: Names,
}

impl RedisSink {
    /// Connects.
    pub async fn open(config: RedisConfig) -> Result<Self, Unavailable> {
        let old = Names::new();
        let nodes = Nodes::open(&config, &old).await?;
        Ok(Self { config, nodes: Some(nodes), old })
    }

    async fn deliver_all(
        &mut self,
        batch: &[Message<'_>],
        outcomes: &mut [Outcome],
    ) -> Result<(), Unavailable> {
        let (config, old) = (&self.config, &self.old);
        let nodes = match &mut self.nodes {
            Some(nodes) => nodes,
            none => none.insert(Nodes::open(config, old).await?),
        };
        let mut limits = nodes.limits;
        let mut sizes = vec![0; batch.len()];
        let mut stops = Stops::default();
        for round in rounds(batch) {
            let mut open = Vec::with_capacity(round.len());
            for place in round {
                if stops.is_behind(&batch[place], place) {
                    continue;
                }
                let size = Size::of(config, &batch[place]);
                sizes[place] = size.command;
                if too_large(size, limits).is_some() {
                    limits = nodes.look().await?;
                }
                match too_large(size, limits) {
                    None => open.push(place),
                    Some(refusal) => {
                        outcomes[place] = Outcome::Refused(refusal);
                        stops.stop(&batch[place], place);
                    }
                }
            }
            let parts = nodes.parts(batch, open).into_iter();
            let parts: Vec<_> = parts.flat_map(|part| pieces(part, &sizes, limits.transaction)).collect();
            for mut open in parts {
                // By what became of the piece before.
                open.retain(|&place| !stops.is_behind(&batch[place], place));
                while let Some(&first) = open.first() {
                    let connection = nodes.keeper(config, old, &batch[first].destination).await?;
                    let question = transaction::transaction(config, open.iter().map(|&place| &batch[place]));
                    let answers = connection.ask(&question).await?;
                    if let End::Executed = transaction::settle(batch, &open, &answers, outcomes, &mut stops)?
                    {
                        break;
                    }
                    open.retain(|&place| {
                        outcomes[place] == Outcome::NotSent && !stops.is_behind(&batch[place], place)
                    });
                }
            }
        }
        Ok(())
    }
}

/// The server would end the connection without a word about which event it was, or have no room for it for ever.
fn too_large(size: Size, limits: Limits) -> Option<Refusal> {
    let bounds = [
        (size.value, limits.value, "proto-max-bulk-len"),
        (size.alone(), limits.transaction, "client-query-buffer-limit"),
        (size.command, limits.memory, "maxmemory"),
    ];
    let (found, most, setting) = bounds.into_iter().find(|(found, most, _)| found > most)?;
    Some(Refusal {
        kind: RefusalKind::TooLarge,
        reason: format!("{found} bytes, and Redis takes {most} (its {setting})"),
    })
}

impl Sink for RedisSink {
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report> {
        Box::pin(async move {
            let mut outcomes = vec![Outcome::NotSent; batch.len()];
            let unavailable = self.deliver_all(batch, &mut outcomes).await.err();
            if unavailable.is_some() {
                // Answers that come late would be taken for those of the next batch.
                if let Some(nodes) = self.nodes.take() {
                    nodes.give_up(&mut self.old);
                }
            }
            Report { outcomes, unavailable }
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        // Nothing is in flight between two batches.
        Box::pin(async { Ok(()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_says_by_which_limit() {
        let limits = Limits { value: 100, transaction: 1000, memory: 800 };
        let refused = |value, command| too_large(Size { value, command }, limits).map(|why| why.reason);
        assert_eq!(refused(100, 200), None);
        assert!(refused(101, 200).is_some_and(|why| why.contains("101 bytes") && why.contains("bulk-len")));
        assert!(refused(100, 1000).is_some_and(|why| why.contains("client-query-buffer-limit")));
        assert!(refused(100, 801).is_some_and(|why| why.contains("maxmemory")));
    }
}
