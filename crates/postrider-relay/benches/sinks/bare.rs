//! What a bare loop publishes: messages as the relay would send them, made beforehand.

use anyhow::{Result, bail};
use postrider::log::Record;
use postrider_relay::sinks::Target;
use postrider_relay::sinks::null::NullConfig;
use postrider_relay::{Prepared, Preparer, SinkSettings};
use time::OffsetDateTime;
use uuid::Uuid;

/// So many different bodies, over and over.
const DIFFERENT: u32 = 1_000;

/// Messages to publish, in order.
pub(crate) struct Bare {
    bodies: Vec<(String, Vec<u8>)>,
    next: u32,
    end: u32,
}

/// One of them.
pub(crate) struct Message {
    pub(crate) id: String,
    pub(crate) key: String,
    pub(crate) body: Vec<u8>,
}

pub(crate) const TYPE: &str = "order.paid";
pub(crate) const CONTENT_TYPE: &str = "application/cloudevents+json";

impl Bare {
    /// So many, for a kind of sink.
    pub(crate) fn new(sink: &str, events: u32) -> Result<Self> {
        let settings = SinkSettings::new(sink, Target::Null(NullConfig::default()));
        let mut preparer = Preparer::new(&settings)?;
        let mut bodies = Vec::new();
        for number in 0..DIFFERENT.min(events) {
            let record = record(number);
            match preparer.prepare(&record) {
                Prepared::Send(message) => bodies.push((format!("customer-{number}"), message.body)),
                other => bail!("{other:?}"),
            }
        }
        Ok(Self { bodies, next: 0, end: events })
    }

    /// In so many parts of one size.
    pub(crate) fn split(self, parts: usize) -> Vec<Self> {
        let count = u32::try_from(parts).unwrap_or(u32::MAX);
        let bounds = (0..=count).map(|part| {
            let share = u64::from(self.end) * u64::from(part) / u64::from(count);
            u32::try_from(share).unwrap_or(u32::MAX)
        });
        let bounds: Vec<u32> = bounds.collect();
        let part = |range: &[u32]| Self { bodies: self.bodies.clone(), next: range[0], end: range[1] };
        bounds.windows(2).map(part).collect()
    }
}

impl Iterator for Bare {
    type Item = Message;

    fn next(&mut self) -> Option<Message> {
        if self.next == self.end {
            return None;
        }
        let at = usize::try_from(self.next).unwrap_or_default() % self.bodies.len();
        self.next += 1;
        let (key, body) = self.bodies.get(at)?.clone();
        // Unlike the body, which nobody looks into, an id is looked at.
        Some(Message { id: Uuid::now_v7().to_string(), key, body })
    }
}

fn record(number: u32) -> Record {
    let note = "x".repeat(420);
    Record {
        seq: i64::from(number),
        lane: 0,
        id: Uuid::now_v7(),
        source_id: None,
        r#type: TYPE.to_owned(),
        entity: Some(format!("order-{number}")),
        key: Some(format!("customer-{number}")),
        tenant: Some(format!("tenant-{}", number % 100)),
        payload: format!(
            r#"{{"order":{number},"customer":"customer-{number}","total":{},"currency":"EUR","note":"{note}"}}"#,
            number % 9973
        ),
        headers: None,
        created_at: OffsetDateTime::now_utc(),
    }
}
