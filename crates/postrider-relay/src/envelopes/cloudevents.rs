//! CloudEvents 1.0 in JSON, structured.

use std::collections::HashMap;

use crate::envelope::{Envelope, Event};
use crate::json;
use crate::prepare::PrepareError;

/// `id`, `source`, `type`, `time` (when the event was written) and `data`, the payload's own bytes; `subject` and `partitionkey` are
/// the key, `tenant` and `entity` what the event says. A header whose name and value an attribute may have (lowercase letters and
/// digits; a string, a boolean or a 32-bit integer) is an attribute of its own, `traceparent` and `tracestate` among them. All
/// others are kept together in the attribute `headers`, a string with a JSON object in it: nothing is left out.
#[derive(Debug)]
pub(crate) struct CloudEvents {
    /// Everything before the id: it is the same for every event of a sink.
    opening: Vec<u8>,
}

/// Names that a header may not take.
const TAKEN: [&str; 14] = [
    "specversion",
    "id",
    "source",
    "type",
    "subject",
    "time",
    "datacontenttype",
    "dataschema",
    "data",
    "database64",
    "partitionkey",
    "entity",
    "tenant",
    "headers",
];

impl CloudEvents {
    pub(crate) fn new(source: &str) -> Result<Self, PrepareError> {
        check_source(source)?;
        let mut opening = b"{\"specversion\":\"1.0\",\"source\":".to_vec();
        json::push_string(&mut opening, source);
        opening.extend_from_slice(b",\"id\":");
        Ok(Self { opening })
    }
}

impl Envelope for CloudEvents {
    fn content_type(&self) -> &'static str {
        "application/cloudevents+json"
    }

    fn objection(&self, event: &Event<'_>) -> Option<&'static str> {
        objection(event)
    }

    fn write(&self, event: &Event<'_>, body: &mut Vec<u8>) {
        let record = event.record;
        body.extend_from_slice(&self.opening);
        event.id.push_json(body);
        body.extend_from_slice(b",\"type\":");
        json::push_string(body, &record.r#type);
        // Attributes may be absent, but not empty.
        if let Some(key) = record.key.as_deref().filter(|key| !key.is_empty()) {
            body.extend_from_slice(b",\"subject\":");
            json::push_string(body, key);
            body.extend_from_slice(b",\"partitionkey\":");
            json::push_string(body, key);
        }
        body.extend_from_slice(b",\"time\":\"");
        json::push_time(body, record.created_at);
        body.extend_from_slice(b"\",\"datacontenttype\":\"application/json\"");
        if let Some(entity) = record.entity.as_deref().filter(|entity| !entity.is_empty()) {
            body.extend_from_slice(b",\"entity\":");
            json::push_string(body, entity);
        }
        if let Some(tenant) = record.tenant.as_deref().filter(|tenant| !tenant.is_empty()) {
            body.extend_from_slice(b",\"tenant\":");
            json::push_string(body, tenant);
        }
        if let Some(headers) = record.headers.as_deref() {
            push_headers(body, headers);
        }
        body.extend_from_slice(b",\"data\":");
        body.extend_from_slice(event.payload.as_bytes());
        body.push(b'}');
    }
}

/// Whether a `CloudEvent` can have this source.
pub(super) fn check_source(source: &str) -> Result<(), PrepareError> {
    if source.is_empty() || source.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(PrepareError {
            key: "source",
            message: format!(
                "{source:?} is no URI reference; write a name or a URI, such as shop or //db.example/shop"
            ),
        });
    }
    Ok(())
}

/// Why an event cannot be a `CloudEvent`.
pub(super) fn objection(event: &Event<'_>) -> Option<&'static str> {
    if event.record.r#type.is_empty() {
        return Some("a CloudEvent needs a type, and the event's is empty");
    }
    if event.id.is_empty() {
        return Some("a CloudEvent needs an id, and the event's source_id is empty");
    }
    None
}

fn push_headers(body: &mut Vec<u8>, headers: &str) {
    let others = split_headers(headers, |name, value| {
        body.extend_from_slice(b",\"");
        body.extend_from_slice(name.as_bytes());
        body.extend_from_slice(b"\":");
        body.extend_from_slice(value.as_bytes());
        true
    });
    if let Some(others) = others {
        body.extend_from_slice(b",\"headers\":");
        json::push_string(body, &others);
    }
}

/// Hands each header that can be an attribute to `take`, name and value as they are written in JSON; what is left, or not taken, is an
/// object of its own.
pub(super) fn split_headers<'h>(
    headers: &'h str,
    mut take: impl FnMut(&'h str, &'h str) -> bool,
) -> Option<String> {
    let members: Vec<_> = json::members(headers).collect();
    // Of several members of one name the last counts, as for every reader of JSON.
    let last: HashMap<&str, usize> = members.iter().enumerate().map(|(at, (name, _))| (*name, at)).collect();
    let mut others = String::new();
    for (at, (name, value)) in members.into_iter().enumerate() {
        if last.get(name) != Some(&at) || value == "null" {
            continue;
        }
        if !(is_attribute_name(name) && is_attribute_value(value) && take(name, value)) {
            others.push(if others.is_empty() { '{' } else { ',' });
            others.extend(["\"", name, "\":", value]);
        }
    }
    if others.is_empty() {
        return None;
    }
    others.push('}');
    Some(others)
}

fn is_attribute_name(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        && !TAKEN.contains(&name)
}

fn is_attribute_value(value: &str) -> bool {
    match value.as_bytes().first() {
        Some(b'"') => value.len() > 2,
        Some(b't' | b'f') => true,
        // Many readers take `-0` for a fraction.
        Some(b'-' | b'0'..=b'9') => value.parse::<i32>().is_ok() && value != "-0",
        _ => false,
    }
}
