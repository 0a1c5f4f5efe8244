//! What Debezium's outbox event router produces.

use crate::envelope::{Envelope, Event, own_headers};

/// The router's message with `table.expand.json.payload=true` and `table.fields.additional.placement=type:header:eventType`:
/// the value is the payload itself, not a string with JSON in it; the message key is the aggregate's id (the event's key); the
/// headers are `id`, `eventType`, and each of the event's own (a placement for every further column). A sink without headers, such
/// as `file`, gets the value alone.
#[derive(Debug)]
pub(crate) struct Debezium;

impl Envelope for Debezium {
    fn content_type(&self) -> &'static str {
        "application/json"
    }

    fn write(&self, event: &Event<'_>, body: &mut Vec<u8>) {
        body.extend_from_slice(event.payload.as_bytes());
    }

    fn headers(&self, event: &Event<'_>) -> Vec<(String, String)> {
        let record = event.record;
        let mut headers =
            vec![("id".to_owned(), event.id.to_string()), ("eventType".to_owned(), record.r#type.clone())];
        headers.extend(own_headers(record).filter(|(name, _)| !matches!(name.as_str(), "id" | "eventType")));
        headers
    }
}
