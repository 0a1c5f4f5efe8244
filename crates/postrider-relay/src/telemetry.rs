//! What is counted and timed about one sink.
//!
//! Through the `metrics` facade: a service that runs a relay inside itself gets these with its own. Handles are made once
//! per sink, and a batch is counted as a whole, because the engine carries some hundred thousand events a second: with 500 to a
//! batch an event cost 10 to 15 ns here on two busy cores; a `record` each, with metrics-exporter-prometheus, cost 48 and memory until the
//! next scrape.

mod tally;

use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, Histogram};
use postrider::log::Record;
use time::OffsetDateTime;

use crate::sink::{RefusalKind, UnavailableKind};
pub use tally::BUCKETS;
use tally::Tally;

/// What a metric is called and what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// With its unit, and `_total` if it only grows.
    pub name: &'static str,
    /// How it moves.
    pub shape: Shape,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// One sentence for the operator.
    pub help: &'static str,
}

/// How a metric moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Only grows, from 0 at the start of the process.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts values by [`BUCKETS`].
    Histogram,
}

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, shape: Shape::Counter, labels, help }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, shape: Shape::Gauge, labels, help }
}

const fn histogram(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, shape: Shape::Histogram, labels, help }
}

const SINK: &[&str] = &["sink"];
const SINK_KIND: &[&str] = &["sink", "kind"];

const DELIVERED: Metric =
    counter("postrider_events_delivered_total", SINK, "Events that the sink confirmed to this relay");
const FILTERED: Metric =
    counter("postrider_events_filtered_total", SINK, "Events that the sink's filter left out");
const REFUSED: Metric =
    counter("postrider_events_refused_total", SINK_KIND, "Refusals of single events; each parks its event");
const DEAD: Metric = counter(
    "postrider_events_dead_total",
    SINK,
    "Events that were refused for the last time and are dead now",
);
const TAKEN_BACK: Metric = counter(
    "postrider_events_taken_back_total",
    SINK,
    "Events that were delivered and that a failover then took back; the log names them",
);
const DROPPED: Metric = counter(
    "postrider_events_dropped_total",
    SINK,
    "Events, counted as delivered too, that nobody was there to take and that the sink's configuration lets go",
);
const UNAVAILABLE: Metric =
    counter("postrider_sink_unavailable_total", SINK_KIND, "Times the sink as a whole could not take events");
const DELIVERY: Metric = histogram(
    "postrider_delivery_seconds",
    SINK,
    "How long the sink took to answer for one batch, confirmed or not",
);
const SETTLE: Metric =
    histogram("postrider_settle_seconds", SINK, "How long it took to store progress in the database");
const SETTLED: Metric =
    counter("postrider_events_settled_total", SINK, "Events that stored progress has moved past");
const SINCE_TRANSACTION: Metric = histogram(
    "postrider_lag_since_transaction_seconds",
    SINK,
    "From the start of the writing transaction, by the database's clock, to the sink's confirmation, by the relay's",
);
const SINCE_READ: Metric = histogram(
    "postrider_lag_since_read_seconds",
    SINK,
    "From the first sight of the event by this relay to the sink's confirmation",
);
const IN_FLIGHT: Metric =
    gauge("postrider_in_flight", SINK, "Events sent and not yet settled: what a crash now would send twice");
const LANES: Metric = gauge("postrider_lanes", SINK, "Lanes of the sink that this relay holds");
const SHORTENED: Metric = counter(
    "postrider_slots_shortened_total",
    &[],
    "Slots of the ring that this relay emptied before their retention was over, because of log.max_log_size",
);

/// Everything that [`Telemetry`] counts.
pub const METRICS: &[Metric] = &[
    DELIVERED,
    FILTERED,
    REFUSED,
    DEAD,
    TAKEN_BACK,
    DROPPED,
    UNAVAILABLE,
    SETTLED,
    DELIVERY,
    SETTLE,
    SINCE_TRANSACTION,
    SINCE_READ,
    IN_FLIGHT,
    LANES,
    SHORTENED,
];

/// The metrics of one sink's pipeline. What was installed with `metrics::set_global_recorder` before it was made gets them.
#[derive(Debug)]
pub struct Telemetry {
    delivered: Counter,
    filtered: Counter,
    refused: Vec<Counter>,
    unavailable: Vec<Counter>,
    dead: Counter,
    taken_back: Counter,
    dropped: Counter,
    settled: Counter,
    delivery: Histogram,
    settle: Histogram,
    since_transaction: Histogram,
    since_read: Histogram,
    in_flight: Gauge,
    lanes: Gauge,
    shortened: Counter,
}

impl Telemetry {
    /// For the sink of this name and kind.
    pub fn new(sink: &str, _kind: &'static str) -> Self {
        describe();
        let counter = |metric: Metric| metrics::counter!(metric.name, "sink" => sink.to_owned());
        let histogram = |metric: Metric| metrics::histogram!(metric.name, "sink" => sink.to_owned());
        let gauge = |metric: Metric| metrics::gauge!(metric.name, "sink" => sink.to_owned());
        // Every kind from the start at 0: an alarm on an increase would not see a counter that appears with 1.
        let of_kind =
            |metric: Metric, code| metrics::counter!(metric.name, "sink" => sink.to_owned(), "kind" => code);
        Self {
            delivered: counter(DELIVERED),
            filtered: counter(FILTERED),
            refused: RefusalKind::ALL.map(|kind| of_kind(REFUSED, kind.policy().code)).into(),
            unavailable: UnavailableKind::ALL.map(|kind| of_kind(UNAVAILABLE, kind.policy().code)).into(),
            dead: counter(DEAD),
            taken_back: counter(TAKEN_BACK),
            dropped: counter(DROPPED),
            settled: counter(SETTLED),
            delivery: histogram(DELIVERY),
            settle: histogram(SETTLE),
            since_transaction: histogram(SINCE_TRANSACTION),
            since_read: histogram(SINCE_READ),
            in_flight: gauge(IN_FLIGHT),
            lanes: gauge(LANES),
            // The ring is everybody's: one number for all sinks.
            shortened: metrics::counter!(SHORTENED.name),
        }
    }

    /// So many of those that were delivered nobody has got, as the configuration wants it.
    pub fn dropped(&self, events: u64) {
        self.dropped.increment(events);
    }

    /// These were confirmed just now; they were first seen by the reader at `read_at`.
    pub fn delivered<'a>(&self, records: impl Iterator<Item = &'a Record>, read_at: Instant) {
        let now = OffsetDateTime::now_utc();
        let mut lags = Tally::default();
        let mut last = None;
        for record in records {
            // The events of one transaction stand together and share its start.
            let lag = match last {
                Some((created_at, lag)) if is_same(created_at, record.created_at) => lag,
                // Two clocks: the database's may be ahead.
                _ => (now - record.created_at).as_seconds_f64().max(0.0),
            };
            last = Some((record.created_at, lag));
            lags.add(lag);
        }
        let events = lags.count();
        lags.record(&self.since_transaction);
        self.since_read.record_many(read_at.elapsed().as_secs_f64(), events);
        self.delivered.increment(whole(events));
    }

    /// So many events did not pass the filter.
    pub fn filtered(&self, events: usize) {
        self.filtered.increment(whole(events));
    }

    /// One event was refused.
    pub fn refused(&self, kind: RefusalKind) {
        if let Some(place) = RefusalKind::ALL.iter().position(|known| *known == kind) {
            self.refused[place].increment(1);
        }
    }

    /// The sink was unavailable once.
    pub fn unavailable(&self, kind: UnavailableKind) {
        if let Some(place) = UnavailableKind::ALL.iter().position(|known| *known == kind) {
            self.unavailable[place].increment(1);
        }
    }

    /// An event was refused for the last time.
    pub fn dead(&self, events: usize) {
        self.dead.increment(whole(events));
    }

    /// So many events were delivered and are not in the log any more.
    pub fn taken_back(&self, events: usize) {
        self.taken_back.increment(whole(events));
    }

    /// One delivery took so long.
    pub fn delivery(&self, took: Duration) {
        self.delivery.record(took.as_secs_f64());
    }

    /// Progress past so many events was stored, which took so long.
    pub fn settled(&self, events: usize, took: Duration) {
        self.settled.increment(whole(events));
        self.settle.record(took.as_secs_f64());
    }

    /// Events sent and not yet settled.
    pub fn in_flight(&self, events: usize) {
        self.in_flight.set(approximate(events));
    }

    /// So many slots were emptied before their time.
    pub fn shortened(&self, slots: u64) {
        self.shortened.increment(slots);
    }

    /// Lanes held.
    pub fn lanes(&self, lanes: usize) {
        self.lanes.set(approximate(lanes));
    }
}

fn describe() {
    for metric in METRICS {
        match metric.shape {
            Shape::Counter => metrics::describe_counter!(metric.name, metric.help),
            Shape::Gauge => metrics::describe_gauge!(metric.name, metric.help),
            Shape::Histogram => {
                metrics::describe_histogram!(metric.name, metrics::Unit::Seconds, metric.help);
            }
        }
    }
}

/// Written the same way. Comparing moments converts both to UTC first, which costs more than everything else here.
fn is_same(one: OffsetDateTime, other: OffsetDateTime) -> bool {
    one.time() == other.time() && one.date() == other.date() && one.offset() == other.offset()
}

fn whole(events: usize) -> u64 {
    u64::try_from(events).unwrap_or(u64::MAX)
}

/// A gauge is a float; these numbers are far below 2^53.
#[allow(clippy::cast_precision_loss)]
fn approximate(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests;
