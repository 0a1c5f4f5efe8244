//! The payload alone.

use crate::envelope::{Envelope, Event, own_headers};

/// No envelope: the body is the payload, and the event's own headers are headers where the protocol has some. What is in neither
/// is lost to the consumer, the id too, unless the sink's protocol carries it or an adopted table has a header for it.
#[derive(Debug)]
pub(crate) struct Plain;

impl Envelope for Plain {
    fn content_type(&self) -> &'static str {
        "application/json"
    }

    fn write(&self, event: &Event<'_>, body: &mut Vec<u8>) {
        body.extend_from_slice(event.payload.as_bytes());
    }

    fn headers(&self, event: &Event<'_>) -> Vec<(String, String)> {
        own_headers(event.record).collect()
    }
}
