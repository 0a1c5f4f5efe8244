//! The payload alone.

use crate::envelope::{Envelope, Event};

/// No envelope. What is not in the payload is lost to the consumer, the id too, unless the sink's protocol carries it.
#[derive(Debug)]
pub(crate) struct Plain;

impl Envelope for Plain {
    fn content_type(&self) -> &'static str {
        "application/json"
    }

    fn write(&self, event: &Event<'_>, body: &mut Vec<u8>) {
        body.extend_from_slice(event.payload.as_bytes());
    }
}
