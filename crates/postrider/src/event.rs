//! An event to be emitted.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::producer::EmitError;

/// Something that happened, to be written into the log by [`emit`](crate::emit).
///
/// ```
/// # fn example() -> Result<(), postrider::EmitError> {
/// #[derive(serde::Serialize)]
/// struct OrderPaid {
///     order: u64,
///     cents: u64,
/// }
///
/// let event = postrider::Event::new("order.paid", &OrderPaid { order: 7, cents: 1250 })?
///     .key(7) // events of one key are delivered in the order they were written
///     .tenant("acme")
///     .header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
/// # Ok(())
/// # }
/// ```
// Serialises to an element of the array that postrider.emit_many takes.
#[derive(Debug, Clone, Serialize)]
#[must_use = "an event is only written by `emit` or `emit_many`"]
pub struct Event {
    pub(crate) r#type: String,
    pub(crate) payload: Box<RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) entity: Option<String>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub(crate) headers: Map<String, Value>,
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "`.key(7)` and `.key(order.id)` read better than references"
)]
impl Event {
    /// An event of this type, `order.paid`. The bytes that `payload` serialises to are the bytes that are written.
    pub fn new(r#type: impl Into<String>, payload: &(impl Serialize + ?Sized)) -> Result<Self, EmitError> {
        let r#type = r#type.into();
        match serde_json::value::to_raw_value(payload) {
            Ok(payload) => {
                Ok(Self { r#type, payload, key: None, tenant: None, entity: None, headers: Map::new() })
            }
            Err(source) => Err(EmitError::Payload { r#type, source }),
        }
    }

    /// What it happened to: events of one key stay in order. Without a key an event has no order towards others.
    pub fn key(mut self, key: impl ToString) -> Self {
        self.key = Some(key.to_string());
        self
    }

    /// The customer in whose scope it happened.
    pub fn tenant(mut self, tenant: impl ToString) -> Self {
        self.tenant = Some(tenant.to_string());
        self
    }

    /// The kind of thing it happened to, `order`.
    pub fn entity(mut self, entity: impl Into<String>) -> Self {
        self.entity = Some(entity.into());
        self
    }

    /// Adds a header, or replaces the one of this name. It wins over the same name in the
    /// [`Context`](crate::Context).
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.headers.insert(name.into(), value.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn is_an_element_of_emit_many() -> Result<(), serde_json::Error> {
        let payload = RawValue::from_string(r#"{"z": 1,  "a":2.50}"#.to_owned())?;
        let event = Event::new("order.paid", &payload).expect("JSON already");
        assert_eq!(serde_json::to_string(&event)?, r#"{"type":"order.paid","payload":{"z": 1,  "a":2.50}}"#);
        let event = event.key(7).tenant("acme").entity("order").header("attempt", 2);
        assert_eq!(
            serde_json::to_value(&event)?,
            json!({
                "type": "order.paid", "payload": {"z": 1, "a": 2.50}, "key": "7", "tenant": "acme", "entity": "order",
                "headers": {"attempt": 2}
            })
        );
        Ok(())
    }

    #[test]
    fn names_the_event_whose_payload_cannot_be_json() {
        let payload = std::collections::HashMap::from([((1, 2), "a pair cannot name a field")]);
        let error = Event::new("order.paid", &payload).expect_err("not JSON");
        assert_eq!(
            error.to_string(),
            r#"the payload of event "order.paid" cannot be written as JSON: key must be a string"#
        );
        assert!(
            std::error::Error::source(&error).is_some_and(<dyn std::error::Error>::is::<serde_json::Error>)
        );
    }
}
