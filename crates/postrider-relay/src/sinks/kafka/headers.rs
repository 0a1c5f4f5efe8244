//! What stands beside the body of a message.

use rdkafka::message::{Header, OwnedHeaders};

use crate::json;
use crate::sink::{Message, Refusal, RefusalKind};

/// By which a consumer knows an event again, whatever the envelope.
const ID: &str = "event_id";
const TYPE: &str = "event_type";
const CONTENT_TYPE: &str = "content-type";
const TRACE: [&str; 2] = ["traceparent", "tracestate"];

/// The event's id, its type, what the body is, its trace, and what the envelope wants.
pub(super) fn headers(message: &Message<'_>) -> OwnedHeaders {
    let mut headers = OwnedHeaders::new_with_capacity(3 + message.headers.len())
        .insert(text(ID, &message.id.to_string()))
        .insert(text(TYPE, &message.record.r#type))
        .insert(text(CONTENT_TYPE, message.content_type));
    for (name, value) in &message.headers {
        // The event's own headers may have one of these names. What tells events apart is not theirs to say.
        if ![ID, TYPE, CONTENT_TYPE].contains(&name.as_str()) {
            headers = headers.insert(text(name, value));
        }
    }
    let own = message.record.headers.as_deref().into_iter().flat_map(json::members);
    for (name, value) in own.filter(|(name, _)| TRACE.contains(name)) {
        let is_there = message.headers.iter().any(|(there, _)| there == name);
        let value = json::inside_quotes(value).and_then(json::unescape).filter(|_| !is_there);
        if let Some(value) = value {
            headers = headers.insert(text(name, &value));
        }
    }
    headers
}

/// Why an event cannot be sent with the headers that it has, if it cannot. Clients in C read the name of a header up to a NUL: one that goes on
/// behind it could pass for another, also for ours.
pub(super) fn unfit(message: &Message<'_>) -> Option<Refusal> {
    let (name, _) = message.headers.iter().find(|(name, _)| name.contains('\0'))?;
    let reason =
        format!("the name of its header {name:?} has a NUL in it, where some clients of Kafka end it");
    Some(Refusal { kind: RefusalKind::Rejected, reason })
}

fn text<'a>(key: &'a str, value: &'a str) -> Header<'a, &'a str> {
    Header { key, value: Some(value) }
}
