//! Every sink, against its real server: what `postrider_testkit::conformance` asks of it, and the faults of its broker by their numbers.

mod file;
mod kafka;
mod nats;
mod rabbitmq;
mod redis;

use postrider::log::Record;
use postrider_relay::{EventId, Message, Outcome, Report, Sink};
use time::OffsetDateTime;
use uuid::Uuid;

/// An event of a key.
fn event(key: &str) -> Record {
    Record {
        seq: 1,
        lane: 0,
        id: Uuid::now_v7(),
        source_id: None,
        r#type: "order.paid".to_owned(),
        entity: Some("order".to_owned()),
        key: Some(key.to_owned()),
        tenant: None,
        payload: r#"{"total":12.50}"#.to_owned(),
        headers: None,
        created_at: OffsetDateTime::UNIX_EPOCH,
    }
}

/// Delivers events to one destination.
async fn deliver(sink: &mut dyn Sink, records: &[Record], destination: &str) -> Report {
    let batch: Vec<Message<'_>> = records
        .iter()
        .map(|record| Message {
            record,
            id: EventId::of(record),
            destination: destination.to_owned(),
            content_type: "application/json",
            headers: Vec::new(),
            body: record.payload.clone().into_bytes(),
        })
        .collect();
    sink.deliver(&batch).await
}

/// All of them.
async fn delivered(sink: &mut dyn Sink, records: &[Record], destination: &str) {
    let report = deliver(sink, records, destination).await;
    assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
    assert_eq!(report.outcomes, vec![Outcome::Delivered; records.len()]);
}

/// How often a server is killed under load.
fn kills() -> usize {
    if std::env::var_os("POSTRIDER_SOAK").is_some() { 200 } else { 8 }
}
