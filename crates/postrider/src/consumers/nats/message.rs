//! From a message of NATS to ours, and back.

use std::str::FromStr as _;

use async_nats::header::NATS_MESSAGE_ID;
use async_nats::{HeaderMap, HeaderName, HeaderValue};

use crate::consumer::Message;

const CONTENT_TYPE: &str = "Content-Type";

pub(super) fn message(found: &async_nats::Message) -> Message {
    let mut message =
        Message { place: found.subject.to_string(), body: found.payload.to_vec(), ..Message::default() };
    let headers = found.headers.iter().flat_map(HeaderMap::iter);
    for (name, values) in headers {
        let Some(value) = values.last().map(|value| value.as_str().to_owned()) else { continue };
        let name: &str = name.as_ref();
        if name.eq_ignore_ascii_case(CONTENT_TYPE) {
            message.content_type = Some(value);
        } else if name.eq_ignore_ascii_case(AsRef::<str>::as_ref(&NATS_MESSAGE_ID)) {
            message.id = Some(value);
        } else {
            message.headers.push((name.to_owned(), value));
        }
    }
    message
}

/// All of it again, without what has a meaning to the server.
pub(super) fn headers(message: &Message) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(kind) = &message.content_type {
        insert(&mut headers, CONTENT_TYPE, kind);
    }
    for (name, value) in &message.headers {
        if !name.to_ascii_lowercase().starts_with("nats-") {
            insert(&mut headers, name, value);
        }
    }
    headers
}

/// The library panics where a value has a line break.
pub(super) fn insert(headers: &mut HeaderMap, name: &str, value: &str) {
    if let (Ok(name), Ok(value)) = (HeaderName::from_str(name), HeaderValue::from_str(value)) {
        headers.insert(name, value);
    }
}
