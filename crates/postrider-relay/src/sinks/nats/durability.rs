//! What a NATS stream does with a message that it has confirmed.

use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};

use super::config::NatsConfig;
use super::connection::{Connection, wanted};
use crate::durability::{Durability, Weakness};
use crate::sink::{Unavailable, UnavailableKind};

/// Asks the server. A stream that would be made is judged as it would be.
pub(crate) async fn durability(config: &NatsConfig) -> Result<Durability, Unavailable> {
    match Connection::connect(config).await?.stream(config).await {
        Err(why) if config.create && why.kind == UnavailableKind::Missing => Ok(judge(&wanted(config), 0)),
        Err(why) => Err(why),
        Ok(found) => Ok(judge(&found.config, found.state.consumer_count)),
    }
}

/// How long messages are kept at most (`max_age`) is no weakness: that is what a stream is for.
fn judge(stream: &Config, consumers: usize) -> Durability {
    let refuses_new = stream.discard == DiscardPolicy::New;
    let has_limit = stream.max_bytes > 0 || stream.max_messages > 0;
    // The policy is for the stream as a whole. At the limit of a subject its oldest goes all the same, unless this is said as well.
    let keeps_subjects =
        stream.max_messages_per_subject <= 0 || (refuses_new && stream.discard_new_per_subject);
    let discards_old = (has_limit && !refuses_new) || !keeps_subjects;
    let found = [
        (stream.num_replicas < 2).then_some(Weakness::NatsOneServer),
        discards_old.then_some(Weakness::NatsDiscardsOld),
        (stream.storage == StorageType::Memory).then_some(Weakness::NatsInMemory),
        // It confirms what it does not keep, as nobody is there to read it.
        (stream.retention == RetentionPolicy::Interest && consumers == 0).then_some(Weakness::NatsNoConsumer),
    ];
    Durability::new(found.into_iter().flatten())
}
