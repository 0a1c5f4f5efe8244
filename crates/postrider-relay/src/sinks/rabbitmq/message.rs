//! An event as a message of AMQP.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};

use crate::sink::{Message, Refusal, RefusalKind};

/// Kept on the disk by a queue that keeps anything there.
const PERSISTENT: u8 = 2;

/// Properties and headers have to fit into one frame, of 128 KiB unless the server wants it smaller.
const LARGEST_HEADERS: usize = 100 << 10;

/// What the properties and the frame itself take of it at most.
const PROPERTIES: usize = 2 << 10;

/// How many bytes of headers fit into a frame of so many.
pub(super) fn largest_headers(frame: u32) -> usize {
    let frame = usize::try_from(frame).unwrap_or(usize::MAX);
    frame.saturating_sub(PROPERTIES).min(LARGEST_HEADERS)
}

/// Headers that name further routing keys. They are orders to the server, and one that is no list of keys closes the channel: an event that
/// has one would hold up all the others for ever.
const ORDERS: [&str; 2] = ["CC", "BCC"];

/// What a message has beside its body.
#[derive(Default)]
pub(super) struct Prepared {
    pub(super) routing_key: ShortString,
    pub(super) properties: BasicProperties,
}

/// The event's id is the `message_id`, by which the server's answers are told apart and consumers know an event again.
pub(super) fn prepared(message: &Message<'_>, largest_headers: usize) -> Result<Prepared, Refusal> {
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
        properties = properties.with_headers(headers(&message.headers, largest_headers)?);
    }
    Ok(Prepared { routing_key: short("routing key", &message.destination)?, properties })
}

fn headers(given: &[(String, String)], largest: usize) -> Result<FieldTable, Refusal> {
    let size: usize = given.iter().map(|(name, value)| name.len() + value.len() + 6).sum();
    if size > largest {
        return Err(Refusal {
            kind: RefusalKind::TooLarge,
            reason: format!("its headers have {size} bytes, and {largest} fit into a frame of this server"),
        });
    }
    let mut table = FieldTable::default();
    for (name, value) in given {
        if ORDERS.contains(&name.as_str()) {
            return Err(rejected(format!("its header {name:?} would be an order to RabbitMQ")));
        }
        let name = ShortString::try_new(name.as_str())
            .map_err(|_| rejected(format!("the name of its header {name:?} has more than 255 bytes")))?;
        table.insert(name, AMQPValue::LongString(LongString::from(value.as_str())));
    }
    Ok(table)
}

fn rejected(reason: String) -> Refusal {
    Refusal { kind: RefusalKind::Rejected, reason }
}
