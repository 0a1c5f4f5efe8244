//! Batches for the tests of what is sent together.

use postrider::log::Record;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::sink::{EventId, Message};

/// An event each, by its key and where it goes.
pub(super) type Events<'a> = [(Option<&'a str>, &'a str)];

pub(super) fn records(events: &Events<'_>) -> Vec<Record> {
    let record = |key: Option<&str>| Record {
        seq: 1,
        lane: 0,
        id: Uuid::nil(),
        source_id: None,
        r#type: "a.b".to_owned(),
        entity: None,
        key: key.map(str::to_owned),
        tenant: None,
        payload: "{}".to_owned(),
        headers: None,
        created_at: OffsetDateTime::UNIX_EPOCH,
    };
    events.iter().map(|(key, _)| record(*key)).collect()
}

pub(super) fn batch<'a>(records: &'a [Record], events: &Events<'_>) -> Vec<Message<'a>> {
    let message = |(record, (_, destination)): (&'a Record, &(Option<&str>, &str))| Message {
        record,
        id: EventId::of(record),
        destination: (*destination).to_owned(),
        content_type: "application/json",
        headers: Vec::new(),
        body: Vec::new(),
    };
    records.iter().zip(events).map(message).collect()
}
