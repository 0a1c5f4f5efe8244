//! From a message of AMQP to ours, and back.

use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, FieldTable, ShortString};

use crate::consumer::{Grave, Message};

/// Kept on the disk by a queue that keeps anything there.
const PERSISTENT: u8 = 2;

pub(super) fn message(delivery: &Delivery) -> Message {
    let properties = &delivery.properties;
    let text = |value: &Option<ShortString>| value.as_ref().map(ToString::to_string);
    let headers = properties.headers().iter().flat_map(FieldTable::inner);
    Message {
        place: delivery.exchange.to_string(),
        id: text(properties.message_id()),
        r#type: text(properties.kind()),
        key: None,
        content_type: text(properties.content_type()),
        headers: headers.filter_map(|(name, value)| Some((name.to_string(), written(value)?))).collect(),
        body: delivery.data.clone(),
    }
}

/// Whether it may have been delivered before.
pub(super) fn is_repeated(delivery: &Delivery) -> bool {
    let count =
        delivery.properties.headers().as_ref().and_then(|table| table.inner().get("x-delivery-count"));
    let count = count.and_then(written).and_then(|count| count.parse::<u64>().ok());
    delivery.redelivered || count.is_some_and(|count| count > 0)
}

/// All of it again, and why it is dead.
pub(super) fn dead_letter(message: &Message, grave: &Grave<'_>) -> BasicProperties {
    let mut table = FieldTable::default();
    let mut add = |name: &str, value: &str| {
        if let Ok(name) = ShortString::try_new(name) {
            table.insert(name, AMQPValue::LongString(value.into()));
        }
    };
    for (name, value) in &message.headers {
        // What the server itself writes, it writes anew.
        if !name.starts_with("x-") {
            add(name, value);
        }
    }
    for (name, value) in grave.headers() {
        add(name, &value);
    }
    add("postrider-dead-place", &message.place);
    let mut properties = BasicProperties::default().with_delivery_mode(PERSISTENT).with_headers(table);
    let short = |text: &Option<String>| text.as_deref().and_then(|text| ShortString::try_new(text).ok());
    if let Some(id) = short(&message.id) {
        properties = properties.with_message_id(id);
    }
    if let Some(kind) = short(&message.r#type) {
        properties = properties.with_type(kind);
    }
    if let Some(content_type) = short(&message.content_type) {
        properties = properties.with_content_type(content_type);
    }
    properties
}

fn written(value: &AMQPValue) -> Option<String> {
    Some(match value {
        AMQPValue::LongString(text) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
        AMQPValue::ShortString(text) => text.to_string(),
        AMQPValue::Boolean(value) => value.to_string(),
        AMQPValue::ShortShortInt(value) => value.to_string(),
        AMQPValue::ShortShortUInt(value) => value.to_string(),
        AMQPValue::ShortInt(value) => value.to_string(),
        AMQPValue::ShortUInt(value) => value.to_string(),
        AMQPValue::LongInt(value) => value.to_string(),
        AMQPValue::LongUInt(value) => value.to_string(),
        AMQPValue::LongLongInt(value) => value.to_string(),
        AMQPValue::Timestamp(value) => value.to_string(),
        _ => return None,
    })
}
