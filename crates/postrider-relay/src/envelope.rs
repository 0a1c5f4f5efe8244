//! The form in which an event leaves.

use postrider::log::Record;

use crate::envelopes::binary::BinaryCloudEvents;
use crate::envelopes::cloudevents::CloudEvents;
use crate::envelopes::debezium::Debezium;
use crate::envelopes::plain::Plain;
use crate::envelopes::plane::Plane;
use crate::json;
use crate::prepare::PrepareError;
use crate::settings::EnvelopeKind;
use crate::sink::EventId;

/// Writes an event into the bytes that leave.
///
/// The same event gives the same bytes every time: whoever compares two deliveries of one id finds no difference. The payload is
/// embedded byte for byte and never parsed.
pub(crate) trait Envelope: Send + Sync {
    /// Of the body.
    fn content_type(&self) -> &'static str;

    /// Appends the body.
    fn write(&self, event: &Event<'_>, body: &mut Vec<u8>);

    /// What stands beside the body where the protocol has headers.
    fn headers(&self, _event: &Event<'_>) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Why it cannot be made from this event.
    fn objection(&self, _event: &Event<'_>) -> Option<&'static str> {
        None
    }
}

/// What goes into an envelope.
pub(crate) struct Event<'a> {
    pub(crate) record: &'a Record,
    pub(crate) id: EventId<'a>,
    /// The record's own, or what a transform made of it.
    pub(crate) payload: &'a str,
}

impl Event<'_> {
    /// Enough room for the body of most events, whatever the envelope.
    pub(crate) fn expected_size(&self) -> usize {
        let record = self.record;
        let names = record.r#type.len()
            + record.entity.as_ref().map_or(0, String::len)
            + record.tenant.as_ref().map_or(0, String::len)
            + 2 * record.key.as_ref().map_or(0, String::len);
        self.payload.len() + record.headers.as_ref().map_or(0, String::len) + names + 320
    }
}

/// The event's own headers, as text, for protocols that have headers.
pub(crate) fn own_headers(record: &Record) -> impl Iterator<Item = (String, String)> {
    record.headers.as_deref().into_iter().flat_map(json::members).filter_map(|(name, value)| {
        let name = json::unescape(name).filter(|_| value != "null")?;
        let value = match json::inside_quotes(value) {
            Some(text) => json::unescape(text).map_or_else(|| value.to_owned(), Into::into),
            None => value.to_owned(),
        };
        Some((name.into_owned(), value))
    })
}

/// The envelope of this kind, for a sink of that kind.
pub(crate) fn envelope(
    kind: EnvelopeKind,
    source: &str,
    sink: &str,
) -> Result<Box<dyn Envelope>, PrepareError> {
    Ok(match kind {
        EnvelopeKind::Cloudevents => Box::new(CloudEvents::new(source)?),
        EnvelopeKind::CloudeventsBinary => Box::new(BinaryCloudEvents::new(source, sink)?),
        EnvelopeKind::Plain => Box::new(Plain),
        EnvelopeKind::Plane => Box::new(Plane),
        EnvelopeKind::Debezium => Box::new(Debezium),
    })
}
