//! From a message to the event in it, whatever envelope it came in.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::event::Event;
use super::source::Message;

/// The members of a JSON object, unparsed.
type Members<'a> = BTreeMap<String, &'a RawValue>;

/// Why no event could be made out.
#[derive(Debug, thiserror::Error)]
pub(super) enum Undecodable {
    #[error("the body is no JSON: {0}")]
    Json(#[source] serde_json::Error),
    #[error("the body says that it is a CloudEvent and has no {0}")]
    Lacks(&'static str),
    #[error("nothing says which event it is: neither the body nor a header has an id")]
    NoId,
    #[error("nothing says what type of event it is")]
    NoType,
    #[error("no inbox takes its id, which is longer than {LONGEST_ID} bytes or has a zero character")]
    BadId,
}

/// The inbox's limit.
const LONGEST_ID: usize = 1024;

/// CloudEvents, structured and binary, the flat message with `event_id` and `event_type`, Debezium's outbox router, and a payload alone
/// beside which the broker keeps id and type.
pub(super) fn decode(message: &Message) -> Result<Event, Undecodable> {
    let event = made_out(message)?;
    let is_kept = event.id.len() <= LONGEST_ID && !event.id.contains('\0');
    is_kept.then_some(event).ok_or(Undecodable::BadId)
}

fn made_out(message: &Message) -> Result<Event, Undecodable> {
    if message.content_type.as_deref().is_some_and(|kind| kind.starts_with("application/cloudevents+json")) {
        return structured(message);
    }
    if let Some(event) = binary(message) {
        return event;
    }
    if let Some(event) = flat(message) {
        return Ok(event);
    }
    bare(message)
}

fn structured(message: &Message) -> Result<Event, Undecodable> {
    let mut members = members(&message.body).map_err(Undecodable::Json)?;
    let payload = members.remove("data").map_or_else(null, ToOwned::to_owned);
    let mut attributes = Map::new();
    for (name, value) in members {
        attributes.insert(name, serde_json::from_str(value.get()).map_err(Undecodable::Json)?);
    }
    from_attributes(attributes, payload)
}

/// `ce-id`, `ce_id` or `cloudEvents:id`, by the broker.
fn binary(message: &Message) -> Option<Result<Event, Undecodable>> {
    const PREFIXES: [&str; 4] = ["ce-", "ce_", "cloudevents:", "cloudevents_"];
    let attribute = |name: &str| {
        let name = name.to_ascii_lowercase();
        PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix).map(str::to_owned))
    };
    let mut attributes = Map::new();
    let mut others = Vec::new();
    for (name, value) in &message.headers {
        match attribute(name) {
            Some(name) => drop(attributes.insert(name, Value::from(value.as_str()))),
            None => others.push((name, value)),
        }
    }
    if !attributes.contains_key("specversion") {
        return None;
    }
    let payload = match payload(&message.body) {
        Ok(payload) => payload,
        Err(error) => return Some(Err(Undecodable::Json(error))),
    };
    Some(from_attributes(attributes, payload).map(|mut event| {
        event.key = event.key.or_else(|| message.key.clone());
        event.headers.extend(others.into_iter().map(|(name, value)| (name.clone(), value.as_str().into())));
        event
    }))
}

fn from_attributes(mut attributes: Map<String, Value>, payload: Box<RawValue>) -> Result<Event, Undecodable> {
    let mut take = |name: &str| match attributes.remove(name) {
        Some(Value::String(text)) if !text.is_empty() => Some(text),
        _ => None,
    };
    let id = take("id").ok_or(Undecodable::Lacks("id"))?;
    let r#type = take("type").ok_or(Undecodable::Lacks("type"))?;
    let (subject, partition_key) = (take("subject"), take("partitionkey"));
    let (tenant, entity, time, kept) = (take("tenant"), take("entity"), take("time"), take("headers"));
    for name in ["specversion", "source", "datacontenttype", "dataschema"] {
        attributes.remove(name);
    }
    let mut headers = attributes;
    if let Some(Value::Object(kept)) = kept.and_then(|kept| serde_json::from_str(&kept).ok()) {
        headers.extend(kept);
    }
    let key = partition_key.or(subject);
    Ok(Event { id, r#type, key, tenant, entity, time, headers, attempt: 1, payload })
}

/// The message of an outbox poller. Its id has to be the broker's, where that has one: a payload may look the same.
fn flat(message: &Message) -> Option<Event> {
    let members = members(&message.body).ok()?;
    let text = |name: &str| serde_json::from_str::<Option<String>>(members.get(name)?.get()).ok()?;
    let (id, r#type) = (text("event_id")?, text("event_type")?);
    let payload = (*members.get("payload")?).to_owned();
    if message.id.as_deref().is_some_and(|known| known != id) {
        return None;
    }
    let mut headers = own_headers(message);
    if let Some(initiator) = text("initiator_type") {
        headers.insert("initiator_type".to_owned(), initiator.into());
    }
    let time = members.get("timestamp").map(|time| time.get().to_owned());
    let (key, tenant) = (text("entity_id"), text("workspace_id"));
    Some(Event { id, r#type, key, tenant, entity: None, time, headers, attempt: 1, payload })
}

/// The payload alone.
fn bare(message: &Message) -> Result<Event, Undecodable> {
    let known = |own: &Option<String>, names: [&str; 2]| {
        let header = || names.iter().find_map(|name| message.header(name)).map(str::to_owned);
        own.clone().or_else(header).filter(|text| !text.is_empty())
    };
    let id = known(&message.id, ["event_id", "id"]).ok_or(Undecodable::NoId)?;
    let r#type = known(&message.r#type, ["event_type", "eventType"]).ok_or(Undecodable::NoType)?;
    let payload = payload(&message.body).map_err(Undecodable::Json)?;
    let (key, headers) = (message.key.clone(), own_headers(message));
    Ok(Event { id, r#type, key, tenant: None, entity: None, time: None, headers, attempt: 1, payload })
}

fn own_headers(message: &Message) -> Map<String, Value> {
    message.headers.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect()
}

fn members(body: &[u8]) -> serde_json::Result<Members<'_>> {
    serde_json::from_slice(body)
}

fn payload(body: &[u8]) -> serde_json::Result<Box<RawValue>> {
    if body.is_empty() { Ok(null()) } else { serde_json::from_slice(body) }
}

fn null() -> Box<RawValue> {
    RawValue::NULL.to_owned()
}

#[cfg(test)]
mod tests;
