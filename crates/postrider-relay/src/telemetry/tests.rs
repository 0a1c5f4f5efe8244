use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use metrics::{HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use uuid::Uuid;

use super::*;

/// Keeps every value of every histogram.
#[derive(Default, Clone)]
struct Notes {
    values: Arc<Mutex<Vec<(String, f64, usize)>>>,
    counters: Arc<Mutex<BTreeMap<String, Arc<metrics::atomics::AtomicU64>>>>,
}

struct Line(Notes, String);

impl HistogramFn for Line {
    fn record(&self, value: f64) {
        self.record_many(value, 1);
    }

    fn record_many(&self, value: f64, count: usize) {
        self.0.values.lock().unwrap().push((self.1.clone(), value, count));
    }
}

impl Recorder for Notes {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let kind = key.labels().find(|label| label.key() == "kind").map_or("", |label| label.value());
        let mut counters = self.counters.lock().unwrap();
        Counter::from_arc(Arc::clone(counters.entry(format!("{} {kind}", key.name())).or_default()))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Line(self.clone(), key.name().to_owned())))
    }
}

impl Notes {
    fn counter(&self, name: &str) -> u64 {
        self.counters.lock().unwrap()[name].load(std::sync::atomic::Ordering::Relaxed)
    }

    fn of(&self, name: &str) -> Vec<(f64, usize)> {
        let values = self.values.lock().unwrap();
        values
            .iter()
            .filter(|(known, _, _)| known == name)
            .map(|(_, value, count)| (*value, *count))
            .collect()
    }
}

fn record(created_at: OffsetDateTime) -> Record {
    Record {
        seq: 1,
        lane: 0,
        id: Uuid::nil(),
        source_id: None,
        r#type: "order.paid".to_owned(),
        entity: None,
        key: None,
        tenant: None,
        payload: "{}".to_owned(),
        headers: None,
        created_at,
    }
}

#[test]
fn a_batch_is_counted_as_a_whole_and_loses_neither_count_nor_sum() {
    let notes = Notes::default();
    let telemetry = metrics::with_local_recorder(&notes, || Telemetry::new("web", "null"));
    let now = OffsetDateTime::now_utc();
    let ago = |seconds| record(now - Duration::from_secs_f64(seconds));
    let records: Vec<Record> = [vec![ago(3.0); 300], vec![ago(4.0); 100], vec![ago(700.0); 5]].concat();
    telemetry.delivered(records.iter(), Instant::now());

    let lags = notes.of("postrider_lag_since_transaction_seconds");
    assert_eq!(
        lags.iter().map(|(_, count)| *count).collect::<Vec<_>>(),
        [400, 5],
        "one per bucket: {lags:?}"
    );
    assert!((lags[0].0 - 3.25).abs() < 0.5 && (lags[1].0 - 700.0).abs() < 0.5, "{lags:?}");
    assert_eq!(notes.of("postrider_lag_since_read_seconds")[0].1, 405);
    assert_eq!(notes.counter("postrider_events_delivered_total "), 405);
}

#[test]
fn a_database_whose_clock_is_ahead_gives_no_negative_lag() {
    let notes = Notes::default();
    let telemetry = metrics::with_local_recorder(&notes, || Telemetry::new("web", "null"));
    let ahead = record(OffsetDateTime::now_utc() + Duration::from_mins(1));
    telemetry.delivered([&ahead].into_iter(), Instant::now());
    assert_eq!(notes.of("postrider_lag_since_transaction_seconds"), [(0.0, 1)]);
}

#[test]
fn every_kind_of_trouble_is_there_from_the_start_and_counted_as_itself() {
    let notes = Notes::default();
    let telemetry = metrics::with_local_recorder(&notes, || Telemetry::new("web", "null"));
    for kind in RefusalKind::ALL {
        assert_eq!(notes.counter(&format!("postrider_events_refused_total {}", kind.policy().code)), 0);
        telemetry.refused(kind);
        assert_eq!(notes.counter(&format!("postrider_events_refused_total {}", kind.policy().code)), 1);
    }
    for kind in UnavailableKind::ALL {
        telemetry.unavailable(kind);
        assert_eq!(notes.counter(&format!("postrider_sink_unavailable_total {}", kind.policy().code)), 1);
    }
}

#[test]
fn slots_are_counted_over_all_sinks() {
    let notes = Notes::default();
    let new = |sink| metrics::with_local_recorder(&notes, || Telemetry::new(sink, "null"));
    new("web").shortened(2);
    new("mail").shortened(1);
    assert_eq!(notes.counter("postrider_slots_shortened_total "), 3);
}

#[test]
fn names_carry_their_units() {
    for metric in METRICS {
        let name = metric.name;
        assert!(name.starts_with("postrider_") && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
        assert_eq!(name.ends_with("_total"), metric.shape == Shape::Counter, "{name}");
        assert_eq!(name.ends_with("_seconds"), metric.shape == Shape::Histogram, "{name}");
    }
}
