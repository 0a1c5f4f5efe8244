//! Every sink, against its real server: what `postrider_testkit::conformance` asks of it, and the faults of its broker by their numbers.

mod file;
mod jobs;
mod kafka;
mod nats;
mod nats_cluster;
pub mod rabbitmq;
mod redis;
mod redis_cluster;

use std::time::{Duration, Instant};

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
    deliver_to(sink, records.iter().map(|record| (record, destination))).await
}

/// Delivers events, each to a destination of its own.
async fn deliver_to<'a>(
    sink: &mut dyn Sink,
    events: impl IntoIterator<Item = (&'a Record, &'a str)>,
) -> Report {
    let message = |(record, destination): (&'a Record, &str)| Message {
        record,
        id: EventId::of(record),
        destination: destination.to_owned(),
        content_type: "application/json",
        headers: Vec::new(),
        body: record.payload.clone().into_bytes(),
    };
    let batch: Vec<Message<'_>> = events.into_iter().map(message).collect();
    sink.deliver(&batch).await
}

/// All of them.
async fn delivered(sink: &mut dyn Sink, records: &[Record], destination: &str) {
    let report = deliver(sink, records, destination).await;
    assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
    assert_eq!(report.outcomes, vec![Outcome::Delivered; records.len()]);
}

/// Delivers until everything is delivered, as the engine does.
async fn carried(sink: &mut dyn Sink, records: &[Record], destination: &str) {
    let begun = Instant::now();
    let mut left = records.to_vec();
    while !left.is_empty() {
        let report = deliver(sink, &left, destination).await;
        assert!(begun.elapsed() < Duration::from_mins(2), "it does not come back: {:?}", report.unavailable);
        let mut outcomes = report.outcomes.into_iter();
        left.retain(|_| outcomes.next() != Some(Outcome::Delivered));
        if report.unavailable.is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Whether all of them are there, each behind those that were sent before it. What was stored twice counts where it was first.
fn assert_in_order(stored: &[Uuid], sent: &[Record]) {
    let mut seen = std::collections::HashSet::new();
    let first: Vec<Uuid> = stored.iter().filter(|id| seen.insert(**id)).copied().collect();
    let sent: Vec<Uuid> = sent.iter().map(|record| record.id).collect();
    assert_eq!(first, sent, "{} stored", stored.len());
}

/// How often a server is killed under load: in the suite so often as its coming back allows.
fn kills(in_the_suite: usize) -> usize {
    if is_soak() { 200 } else { in_the_suite }
}

/// How often one of three servers is: until the others have a new leader and it is back takes ten times as long.
fn kills_of_one_in_three() -> usize {
    if is_soak() { 30 } else { 2 }
}

fn is_soak() -> bool {
    std::env::var_os("POSTRIDER_SOAK").is_some()
}
