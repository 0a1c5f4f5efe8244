//! An event as a handler gets it.

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// An event that came through a broker, with its payload as what it stands for.
///
/// `Box<RawValue>` takes every payload as its text, [`Value`] as a tree.
#[derive(Debug, Clone)]
pub struct Event<T = Box<RawValue>> {
    /// The same however often it is delivered.
    pub id: String,
    /// What happened, `order.paid`.
    pub r#type: String,
    /// Events of one key are handled one after the other.
    pub key: Option<String>,
    /// The customer's scope.
    pub tenant: Option<String>,
    /// The kind of thing it happened to, `order`.
    pub entity: Option<String>,
    /// When it was written, as the envelope says it.
    pub time: Option<String>,
    /// Its headers, and what else stood beside the body.
    pub headers: Map<String, Value>,
    /// Which attempt this is, as far as it is known; the first is 1.
    pub attempt: u32,
    /// What happened in detail.
    pub payload: T,
}

impl Event {
    /// With its payload as what it stands for.
    pub(super) fn typed<T: DeserializeOwned>(&self, attempt: u32) -> serde_json::Result<Event<T>> {
        let Self { id, r#type, key, tenant, entity, time, headers, payload, .. } = self.clone();
        let payload = serde_json::from_str(payload.get())?;
        Ok(Event { id, r#type, key, tenant, entity, time, headers, attempt, payload })
    }
}
