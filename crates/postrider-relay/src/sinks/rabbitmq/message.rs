//! An event as a message of AMQP.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};

use crate::sink::{Message, Refusal, RefusalKind};

/// Kept on the disk by a queue that keeps anything there.
const PERSISTENT: u8 = 2;

/// Properties and headers have to fit into one frame, of 128 KiB unless the server wants it smaller, with room for its own.
const LARGEST_HEADERS: usize = 100 << 10;

/// What a message has beside its body.
#[derive(Default)]
pub(super) struct Prepared {
    pub(super) routing_key: ShortString,
    pub(super) properties: BasicProperties,
}

/// The event's id is the `message_id`, by which the server's answers are told apart and consumers know an event again.
pub(super) fn prepared(message: &Message<'_>) -> Result<Prepared, Refusal> {
    let short = |what: &str, text: &str| {
        ShortString::try_new(text).map_err(|_| rejected(format!("its {what} has more than 255 bytes")))
    };
    let mut properties = BasicProperties::default()
        .with_message_id(short("id", &message.id.to_string())?)
        .with_content_type(message.content_type.into())
        .with_delivery_mode(PERSISTENT);
    if let Ok(seconds) = u64::try_from(message.record.created_at.unix_timestamp()) {
        properties = properties.with_timestamp(seconds);
    }
    // Not everything that is a type fits there, and nobody depends on it: the envelope has it too.
    if let Ok(kind) = ShortString::try_new(message.record.r#type.as_str()) {
        properties = properties.with_type(kind);
    }
    if !message.headers.is_empty() {
        properties = properties.with_headers(headers(&message.headers)?);
    }
    Ok(Prepared { routing_key: short("routing key", &message.destination)?, properties })
}

fn headers(given: &[(String, String)]) -> Result<FieldTable, Refusal> {
    let size: usize = given.iter().map(|(name, value)| name.len() + value.len() + 6).sum();
    if size > LARGEST_HEADERS {
        return Err(Refusal {
            kind: RefusalKind::TooLarge,
            reason: format!("its headers have {size} bytes, and {LARGEST_HEADERS} fit into a frame of AMQP"),
        });
    }
    let mut table = FieldTable::default();
    for (name, value) in given {
        let name = ShortString::try_new(name.as_str())
            .map_err(|_| rejected(format!("the name of its header {name:?} has more than 255 bytes")))?;
        table.insert(name, AMQPValue::LongString(LongString::from(value.as_str())));
    }
    Ok(table)
}

fn rejected(reason: String) -> Refusal {
    Refusal { kind: RefusalKind::Rejected, reason }
}
