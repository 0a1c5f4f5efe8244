//! What a NATS stream does with a message that it has confirmed.

use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};

use super::config::NatsConfig;
use super::connection::{Connection, wanted};
use super::consumers::{Consumer, consumers};
use crate::durability::{Durability, Weakness};
use crate::sink::{Unavailable, UnavailableKind};

/// Asks the server. A stream that would be made is judged as it would be.
pub(crate) async fn durability(config: &NatsConfig) -> Result<Durability, Unavailable> {
    let connection = Connection::connect(config).await?;
    let found = match connection.stream(config).await {
        Err(why) if config.create && why.kind == UnavailableKind::Missing => {
            return Ok(judge(&wanted(config), &[]));
        }
        found => found?,
    };
    // They matter to this kind alone, and a user need not be allowed to look at them.
    let is_for_consumers = found.config.retention == RetentionPolicy::Interest;
    let consumers = if is_for_consumers && found.state.consumer_count > 0 {
        consumers(&connection.context, &config.stream).await?
    } else {
        Vec::new()
    };
    Ok(judge(&found.config, &consumers))
}

/// What such a stream confirms and does not keep, as nobody is there to read it. A consumer that is not durable goes with its reader.
fn unread(stream: &Config, consumers: &[Consumer]) -> Option<Weakness> {
    if stream.retention != RetentionPolicy::Interest {
        return None;
    }
    let durable: Vec<&Consumer> = consumers.iter().filter(|consumer| consumer.is_durable()).collect();
    if durable.is_empty() {
        return Some(Weakness::NatsNoConsumer);
    }
    let is_asked_for = |subject: &String| durable.iter().any(|consumer| consumer.asks_for(subject));
    (!stream.subjects.iter().all(is_asked_for)).then_some(Weakness::NatsNotAskedFor)
}

/// How long messages are kept at most (`max_age`) is no weakness: that is what a stream is for.
fn judge(stream: &Config, consumers: &[Consumer]) -> Durability {
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
        unread(stream, consumers),
    ];
    Durability::new(found.into_iter().flatten())
}
