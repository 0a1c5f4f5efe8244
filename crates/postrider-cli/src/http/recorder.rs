//! Where the counters of the relay live.
//!
//! Not metrics-exporter-prometheus: it keeps every value of a histogram until somebody scrapes, 16 bytes and 48 ns each, and a
//! relay confirms some hundred thousand events a second. Here a histogram is its buckets: nothing grows, and a batch costs a few
//! additions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use postrider_relay::telemetry::{BUCKETS, Shape};

use super::text::{Family, Text};

/// What is counted in this process, from now on. Call it before anything that counts is made.
pub(crate) fn start_counting() {
    installed();
    super::process::started();
}

/// The registry of this process.
pub(super) fn installed() -> &'static Registry {
    static INSTALLED: OnceLock<&'static Registry> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let registry: &'static Registry = Box::leak(Box::default());
        if metrics::set_global_recorder(registry).is_err() {
            tracing::warn!(
                "somebody else records the metrics of this process; /metrics will lack the sinks' own"
            );
        }
        registry
    })
}

type Labels = Vec<(String, String)>;
type Series<T> = Mutex<BTreeMap<String, BTreeMap<Labels, Arc<T>>>>;

/// Every series that something counts.
#[derive(Debug, Default)]
pub(super) struct Registry {
    help: Mutex<BTreeMap<String, String>>,
    counters: Series<AtomicU64>,
    gauges: Series<AtomicU64>,
    histograms: Series<Buckets>,
}

impl Registry {
    /// Writes everything. A gauge of a sink that `is_current` does not know is left out: nobody moves it any more.
    pub(super) fn write(&self, text: &mut Text, is_current: impl Fn(&str) -> bool) {
        let help = lock(&self.help);
        let help = |name: &str| help.get(name).map_or("", String::as_str);
        for (name, series) in &*lock(&self.counters) {
            let mut family = text.described(name, Shape::Counter, help(name));
            for (labels, value) in series {
                family.sample(&borrowed(labels), value.load(Ordering::Relaxed));
            }
        }
        for (name, series) in &*lock(&self.gauges) {
            let mut family = text.described(name, Shape::Gauge, help(name));
            for (labels, value) in series {
                let sink = labels.iter().find(|(name, _)| name == "sink");
                if sink.is_none_or(|(_, sink)| is_current(sink)) {
                    family.sample(&borrowed(labels), f64::from_bits(value.load(Ordering::Relaxed)));
                }
            }
        }
        for (name, series) in &*lock(&self.histograms) {
            let mut family = text.described(name, Shape::Histogram, help(name));
            for (labels, buckets) in series {
                buckets.write(&mut family, &borrowed(labels));
            }
        }
    }

    fn describe(&self, key: &KeyName, description: &SharedString) {
        lock(&self.help).insert(key.as_str().to_owned(), description.to_string());
    }
}

impl Recorder for Registry {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, description: SharedString) {
        self.describe(&key, &description);
    }

    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, description: SharedString) {
        self.describe(&key, &description);
    }

    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, description: SharedString) {
        self.describe(&key, &description);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(series(&self.counters, key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(series(&self.gauges, key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(series(&self.histograms, key))
    }
}

/// A histogram: how many values fell into each bucket, and their sum.
#[derive(Debug, Default)]
struct Buckets {
    counts: [AtomicU64; BUCKETS.len() + 1],
    /// The bits of a float.
    sum: AtomicU64,
}

impl Buckets {
    fn write(&self, family: &mut Family<'_>, labels: &[(&str, &str)]) {
        let mut count = 0;
        for (bucket, events) in self.counts.iter().enumerate() {
            count += events.load(Ordering::Relaxed);
            let bound = BUCKETS.get(bucket).map_or_else(|| "+Inf".to_owned(), f64::to_string);
            family.suffixed("_bucket", &[labels, &[("le", &bound)]].concat(), count);
        }
        family.suffixed("_sum", labels, f64::from_bits(self.sum.load(Ordering::Relaxed)));
        family.suffixed("_count", labels, count);
    }
}

impl HistogramFn for Buckets {
    fn record(&self, value: f64) {
        self.record_many(value, 1);
    }

    #[allow(clippy::cast_precision_loss)] // counts of one batch
    fn record_many(&self, value: f64, count: usize) {
        let bucket = BUCKETS.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(count as u64, Ordering::Relaxed);
        let add = |bits| Some((f64::from_bits(bits) + value * count as f64).to_bits());
        let _ = self.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

fn series<T: Default>(all: &Series<T>, key: &Key) -> Arc<T> {
    let mut labels: Labels =
        key.labels().map(|label| (label.key().to_owned(), label.value().to_owned())).collect();
    labels.sort();
    Arc::clone(lock(all).entry(key.name().to_owned()).or_default().entry(labels).or_default())
}

fn borrowed(labels: &Labels) -> Vec<(&str, &str)> {
    labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

/// Whoever panicked has left a map that is still a map.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
