//! From a message of Kafka to ours, and back.

use rdkafka::Message as _;
use rdkafka::message::{BorrowedMessage, Header, Headers as _, OwnedHeaders};

use crate::consumer::{Grave, Message};

const CONTENT_TYPE: &str = "content-type";

pub(super) fn message(found: &BorrowedMessage<'_>) -> Message {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut headers = Vec::new();
    let mut content_type = None;
    for header in found.headers().into_iter().flat_map(|headers| headers.iter()) {
        let value = header.value.map(text).unwrap_or_default();
        if header.key.eq_ignore_ascii_case(CONTENT_TYPE) {
            content_type = Some(value);
        } else {
            headers.push((header.key.to_owned(), value));
        }
    }
    let known = |name: &str| headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.clone());
    Message {
        place: found.topic().to_owned(),
        id: known("event_id"),
        r#type: known("event_type"),
        key: found.key().map(text),
        content_type,
        body: found.payload().unwrap_or_default().to_vec(),
        headers,
    }
}

/// All of it again, and why it is dead.
pub(super) fn dead_letter(message: &Message, grave: &Grave<'_>) -> OwnedHeaders {
    let own = message.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let kind = message.content_type.as_deref().map(|kind| (CONTENT_TYPE, kind));
    let why = grave.headers();
    let why = why.iter().map(|(name, value)| (*name, value.as_str()));
    let place = [("postrider-dead-place", message.place.as_str())];
    let all = own.chain(kind).chain(why).chain(place);
    all.fold(OwnedHeaders::new(), |headers, (key, value)| headers.insert(Header { key, value: Some(value) }))
}
