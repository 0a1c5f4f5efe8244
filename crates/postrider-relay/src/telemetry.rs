//! What is counted and timed about one sink.

use std::time::{Duration, Instant};

use postrider::log::Record;

use crate::sink::{RefusalKind, UnavailableKind};

/// The metrics of one sink's pipeline.
#[derive(Debug)]
pub struct Telemetry {}

impl Telemetry {
    /// For the sink of this name and kind.
    pub fn new(_sink: &str, _kind: &'static str) -> Self {
        Self {}
    }

    /// These were confirmed just now; they were first seen by the reader at `read_at`.
    pub fn delivered<'a>(&self, _records: impl Iterator<Item = &'a Record>, _read_at: Instant) {}

    /// So many events did not pass the filter.
    pub fn filtered(&self, _events: usize) {}

    /// One event was refused.
    pub fn refused(&self, _kind: RefusalKind) {}

    /// The sink was unavailable once.
    pub fn unavailable(&self, _kind: UnavailableKind) {}

    /// An event was refused for the last time.
    pub fn dead(&self, _events: usize) {}

    /// One delivery took so long.
    pub fn delivery(&self, _took: Duration) {}

    /// Progress past so many events was stored, which took so long.
    pub fn settled(&self, _events: usize, _took: Duration) {}

    /// Events sent and not yet settled.
    pub fn in_flight(&self, _events: usize) {}

    /// Lanes held.
    pub fn lanes(&self, _lanes: usize) {}
}
