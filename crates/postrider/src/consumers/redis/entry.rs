//! From the fields of an entry to a message, and back.

use std::collections::HashMap;

use redis::Value;
use redis::streams::StreamId;

use crate::consumer::Message;

/// Fields that the sink writes beside the headers of an event.
const ID: &str = "id";
const TYPE: &str = "type";
const KEY: &str = "key";
const CONTENT_TYPE: &str = "content-type";
const DATA: &str = "data";

pub(super) fn message(stream: &str, entry: StreamId) -> Message {
    let mut fields: HashMap<String, Vec<u8>> =
        entry.map.into_iter().filter_map(|(name, value)| Some((name, bytes(value)?))).collect();
    let body = fields.remove(DATA).unwrap_or_default();
    let mut take = |name: &str| fields.remove(name).map(text);
    let (id, r#type, key, content_type) = (take(ID), take(TYPE), take(KEY), take(CONTENT_TYPE));
    let headers = fields.into_iter().map(|(name, value)| (name, text(value))).collect();
    Message { place: stream.to_owned(), id, r#type, key, content_type, headers, body }
}

/// All of it again, as it came.
pub(super) fn fields(message: &Message) -> Vec<(&str, &[u8])> {
    let Message { id, r#type, key, content_type, headers, body, .. } = message;
    let known = [(ID, id), (TYPE, r#type), (KEY, key), (CONTENT_TYPE, content_type)];
    let known = known.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?.as_bytes())));
    let others = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
    known.chain(others).chain([(DATA, body.as_slice())]).collect()
}

fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        _ => None,
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
