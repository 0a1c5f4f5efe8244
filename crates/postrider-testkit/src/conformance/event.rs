//! The events of a test.

use postrider::log::Record;
use postrider_relay::sink::{EventId, Message};
use time::OffsetDateTime;
use uuid::Uuid;

/// An event, its place in the order of its key, and where it goes.
pub(super) struct Event {
    pub(super) record: Record,
    pub(super) number: u64,
    pub(super) destination: String,
}

impl Event {
    /// With a body of about so many bytes, and never fewer than its own facts need.
    pub(super) fn new(key: Option<&str>, number: u64, destination: &str, size: usize) -> Self {
        let id = Uuid::now_v7();
        let facts = format!(r#"{{"id":"{id}","key":"{}","number":{number},"pad":""#, key.unwrap_or_default());
        let pad = "x".repeat(size.saturating_sub(facts.len() + 2));
        let record = Record {
            seq: i64::try_from(number).unwrap_or(i64::MAX),
            lane: 0,
            id,
            source_id: None,
            r#type: "conformance.tested".to_owned(),
            entity: Some("conformance".to_owned()),
            key: key.map(str::to_owned),
            tenant: None,
            payload: format!(r#"{facts}{pad}"}}"#),
            headers: None,
            created_at: OffsetDateTime::UNIX_EPOCH,
        };
        Self { record, number, destination: destination.to_owned() }
    }

    pub(super) fn id(&self) -> Uuid {
        self.record.id
    }

    pub(super) fn key(&self) -> Option<&str> {
        self.record.key.as_deref()
    }

    pub(super) fn message(&self) -> Message<'_> {
        Message {
            record: &self.record,
            id: EventId::of(&self.record),
            destination: self.destination.clone(),
            content_type: "application/json",
            headers: Vec::new(),
            body: self.record.payload.clone().into_bytes(),
        }
    }
}
