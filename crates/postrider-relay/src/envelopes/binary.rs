//! CloudEvents 1.0, binary: the body is the payload, the attributes are headers, named as the sink's protocol names them.

use std::fmt::Write as _;

use crate::envelope::{Envelope, Event};
use crate::envelopes::cloudevents::{check_source, objection, split_headers};
use crate::json;
use crate::prepare::PrepareError;

/// The attributes are those of the structured form. The content type is the payload's.
#[derive(Debug)]
pub(crate) struct BinaryCloudEvents {
    binding: Binding,
    source: String,
}

/// How a protocol writes attributes as headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Binding {
    prefix: &'static str,
    /// Values are texts of printable ASCII, all else is percent-encoded.
    is_ascii: bool,
    /// `datacontenttype` is an attribute like any other, beside the protocol's own content type.
    has_content_type: bool,
}

impl Binding {
    /// Of a kind of sink; `None` where there are no headers.
    pub(crate) fn of(kind: &str) -> Option<Self> {
        let plain = |prefix| Some(Self { prefix, is_ascii: false, has_content_type: false });
        match kind {
            "file" | "stdout" => None,
            // Nobody has written a binding for Redis: it has Kafka's.
            "kafka" | "redis" => plain("ce_"),
            // AMQP allows a colon as well and prefers this: selectors of JMS take no colon.
            "rabbitmq" => plain("cloudEvents_"),
            // NATS; and as HTTP has it for sinks that are your own.
            kind => Some(Self { prefix: "ce-", is_ascii: true, has_content_type: kind == "nats" }),
        }
    }

    fn value(self, text: &str) -> String {
        if !self.is_ascii {
            return text.to_owned();
        }
        let mut encoded = String::with_capacity(text.len());
        for byte in text.bytes() {
            match byte {
                b'!'..=b'~' if !matches!(byte, b'"' | b'%') => encoded.push(char::from(byte)),
                // Writing into a string cannot fail.
                _ => _ = write!(encoded, "%{byte:02X}"),
            }
        }
        encoded
    }
}

impl BinaryCloudEvents {
    /// For a sink of this kind.
    pub(crate) fn new(source: &str, kind: &str) -> Result<Self, PrepareError> {
        check_source(source)?;
        let binding = Binding::of(kind).ok_or_else(|| PrepareError {
            key: "envelope",
            message: format!(
                "a {kind} sink has no headers for the attributes of a CloudEvent; take `cloudevents`"
            ),
        })?;
        Ok(Self { source: binding.value(source), binding })
    }
}

impl Envelope for BinaryCloudEvents {
    fn content_type(&self) -> &'static str {
        "application/json"
    }

    fn objection(&self, event: &Event<'_>) -> Option<&'static str> {
        objection(event)
    }

    fn write(&self, event: &Event<'_>, body: &mut Vec<u8>) {
        body.extend_from_slice(event.payload.as_bytes());
    }

    fn headers(&self, event: &Event<'_>) -> Vec<(String, String)> {
        let Binding { prefix, has_content_type, .. } = self.binding;
        let record = event.record;
        let mut headers = Vec::with_capacity(12);
        let mut push = |name: &str, value: String| headers.push((format!("{prefix}{name}"), value));
        push("specversion", "1.0".to_owned());
        push("source", self.source.clone());
        push("id", self.binding.value(&event.id.to_string()));
        push("type", self.binding.value(&record.r#type));
        if has_content_type {
            push("datacontenttype", self.content_type().to_owned());
        }
        let mut time = Vec::with_capacity(27);
        json::push_time(&mut time, record.created_at);
        push("time", String::from_utf8_lossy(&time).into_owned());
        let key = record.key.as_deref();
        let named = [
            ("subject", key),
            ("partitionkey", key),
            ("entity", record.entity.as_deref()),
            ("tenant", record.tenant.as_deref()),
        ];
        for (name, value) in named {
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                push(name, self.binding.value(value));
            }
        }
        let others = record.headers.as_deref().and_then(|headers| {
            split_headers(headers, |name, value| {
                let text = match json::inside_quotes(value) {
                    Some(inside) => json::unescape(inside),
                    None => Some(value.into()),
                };
                // What stands for no character stays as it is written.
                text.map(|text| push(name, self.binding.value(&text))).is_some()
            })
        });
        if let Some(others) = others {
            push("headers", self.binding.value(&others));
        }
        headers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_http_does_not_take_is_encoded() {
        let nats = Binding::of("nats").unwrap();
        assert_eq!(nats.value("a b\"%é\n€~"), "a%20b%22%25%C3%A9%0A%E2%82%AC~");
        assert_eq!(Binding::of("kafka").unwrap().value("a b%é"), "a b%é");
        assert_eq!(Binding::of("file"), None);
    }
}
