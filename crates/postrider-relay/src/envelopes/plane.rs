//! The flat message of an outbox poller: who published it, what happened to which entity, the payload, the workspace.

use std::io::Write as _;

use crate::envelope::{Envelope, Event};
use crate::json;

/// `payload` is expected to hold `data` and `previous_attributes`, as the generated triggers write them. The key leaves as
/// `entity_id`, the tenant as `workspace_id`, the header `initiator_type` under its own name; what an event does not have is `null`.
/// `timestamp` is the second in which the event was written, not that of this attempt: a repeated message is the same message.
#[derive(Debug)]
pub(crate) struct Plane;

impl Envelope for Plane {
    fn content_type(&self) -> &'static str {
        "application/json"
    }

    fn write(&self, event: &Event<'_>, body: &mut Vec<u8>) {
        let record = event.record;
        body.extend_from_slice(b"{\"timestamp\":");
        // Writing into a vector cannot fail.
        let _ = write!(body, "{}", record.created_at.unix_timestamp());
        body.extend_from_slice(
            b",\"publisher\":\"event-stream\",\"version\":\"1.0\",\"source\":\"poller\",\"event_id\":",
        );
        event.id.push_json(body);
        body.extend_from_slice(b",\"event_type\":");
        json::push_string(body, &record.r#type);
        body.extend_from_slice(b",\"entity_id\":");
        json::push_optional(body, record.key.as_deref());
        body.extend_from_slice(b",\"payload\":");
        body.extend_from_slice(event.payload.as_bytes());
        body.extend_from_slice(b",\"workspace_id\":");
        json::push_optional(body, record.tenant.as_deref());
        body.extend_from_slice(b",\"initiator_type\":");
        let initiator = record.headers.as_deref().and_then(initiator);
        body.extend_from_slice(initiator.unwrap_or("null").as_bytes());
        body.push(b'}');
    }
}

/// As it is written in the headers.
fn initiator(headers: &str) -> Option<&str> {
    json::members(headers)
        .filter(|(name, _)| json::is_named(name, "initiator_type"))
        .last()
        .map(|(_, value)| value)
}
