//! From a message of NATS to ours, and back.

use std::str::FromStr as _;

use async_nats::header::NATS_MESSAGE_ID;
use async_nats::{HeaderMap, HeaderName, HeaderValue};

use crate::consumer::Message;

const CONTENT_TYPE: &str = "Content-Type";
const EVENT_ID: &str = "event_id";

pub(super) fn message(found: &async_nats::Message) -> Message {
    let mut message =
        Message { place: found.subject.to_string(), body: found.payload.to_vec(), ..Message::default() };
    let mut known_by = None;
    let headers = found.headers.iter().flat_map(HeaderMap::iter);
    for (name, values) in headers {
        let Some(value) = values.last().map(|value| value.as_str().to_owned()) else { continue };
        let name: &str = name.as_ref();
        if name.eq_ignore_ascii_case(CONTENT_TYPE) {
            message.content_type = Some(value);
        } else if name.eq_ignore_ascii_case(AsRef::<str>::as_ref(&NATS_MESSAGE_ID)) {
            known_by = Some(value);
        } else {
            message.headers.push((name.to_owned(), value));
        }
    }
    // The relay's `Nats-Msg-Id` is for the stream alone, and the event's id is beside it. Others may have no more than the one.
    message.id = message.header(EVENT_ID).map(str::to_owned).or(known_by);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn found(headers: &[(&str, &str)]) -> async_nats::Message {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            insert(&mut map, name, value);
        }
        async_nats::Message {
            subject: "events.one".into(),
            reply: None,
            payload: "{}".into(),
            headers: Some(map),
            status: None,
            description: None,
            length: 0,
        }
    }

    #[test]
    fn an_event_is_known_by_its_own_id_and_not_by_what_the_stream_knows_it_by() {
        let ours = found(&[("event_id", "e1"), ("Nats-Msg-Id", "01890000-0000-7000-8000-000000000000.bus")]);
        assert_eq!(message(&ours).id.as_deref(), Some("e1"));
        assert_eq!(message(&found(&[("Nats-Msg-Id", "theirs")])).id.as_deref(), Some("theirs"));
        assert_eq!(message(&found(&[])).id, None);
    }
}
