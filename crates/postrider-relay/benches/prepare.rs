//! What preparing one event costs: `cargo bench -p postrider-relay --all-features --bench prepare`.

#![allow(clippy::unwrap_used, clippy::cast_precision_loss, missing_docs)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use postrider::log::Record;
use postrider_relay::sinks::Target;
use postrider_relay::sinks::file::{FileConfig, FileSink, Fsync};
use postrider_relay::sinks::null::NullConfig;
use postrider_relay::{EnvelopeKind, Prepared, Preparer, Sink, SinkSettings};

const BATCH: usize = 500;

fn records() -> Vec<Record> {
    let filler = "x".repeat(400);
    (0..BATCH)
        .map(|n| Record {
            seq: 0,
            lane: 0,
            id: uuid::Uuid::now_v7(),
            source_id: None,
            r#type: "order.paid".to_owned(),
            entity: Some("order".to_owned()),
            key: Some(n.to_string()),
            tenant: Some("acme".to_owned()),
            payload: format!(
                r#"{{"id":{n},"total":12.50,"currency":"EUR","note":"{filler}","lines":[1,2,3]}}"#
            ),
            headers: None,
            created_at: time::OffsetDateTime::now_utc(),
        })
        .collect()
}

fn to_null() -> SinkSettings {
    SinkSettings::new("bench", Target::Null(NullConfig {}))
}

/// Nanoseconds per event, the best of several rounds.
fn measure(settings: &SinkSettings, records: &[Record], all: bool) -> f64 {
    let mut preparer = Preparer::new(settings).unwrap();
    let together: Vec<_> = records.iter().collect();
    let mut best = f64::MAX;
    for _ in 0..30 {
        let start = Instant::now();
        if all {
            black_box(preparer.prepare_all(black_box(&together)));
        } else {
            for record in records {
                black_box(preparer.prepare(black_box(record)));
            }
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / records.len() as f64);
    }
    best
}

fn main() {
    let records = records();
    println!("{:<44} {:>10} {:>12}", "500 B payload", "ns/event", "events/s");
    let show = |name: &str, nanos: f64| println!("{name:<44} {nanos:>10.0} {:>12.0}", 1e9 / nanos);
    for kind in [EnvelopeKind::Cloudevents, EnvelopeKind::Plain, EnvelopeKind::Plane, EnvelopeKind::Debezium]
    {
        let settings = SinkSettings { envelope: kind, ..to_null() };
        show(&format!("{kind:?}"), measure(&settings, &records, false));
    }
    let with_headers: Vec<_> = records
        .iter()
        .cloned()
        .map(|record| Record {
            headers: Some(r#"{"traceparent":"00-4bf9-01","attempt":3}"#.to_owned()),
            ..record
        })
        .collect();
    show("Cloudevents, two headers", measure(&to_null(), &with_headers, false));
    let routed = SinkSettings { route: Some("app.{type}.{payload.currency}".to_owned()), ..to_null() };
    show("Cloudevents, routed by payload", measure(&routed, &records, false));
    let filter = SinkSettings { filter: Some(".type | startswith(\"order.\")".to_owned()), ..to_null() };
    show("filter by type, one by one", measure(&filter, &records, false));
    show("filter by type, a batch at a time", measure(&filter, &records, true));
    let both = SinkSettings {
        transform: Some("{id, total: .payload.total, n: (.payload.lines | length)}".to_owned()),
        ..filter
    };
    show("filter and transform, a batch at a time", measure(&both, &records, true));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(hand_overs());
    runtime.block_on(file(&records));
}

/// Ways to get blocking work done from async code, with no work to do.
async fn hand_overs() {
    let pool = percentiles(2000, async || {
        tokio::task::spawn_blocking(|| black_box(1)).await.unwrap();
    })
    .await;
    println!("spawn_blocking, there and back: {pool}");
    let place = percentiles(2000, async || {
        tokio::spawn(async { tokio::task::block_in_place(|| black_box(1)) }).await.unwrap();
    })
    .await;
    println!("block_in_place, on a task of its own: {place}");
    let (jobs, inbox) = std::sync::mpsc::channel::<tokio::sync::oneshot::Sender<()>>();
    std::thread::spawn(move || {
        while let Ok(job) = inbox.recv() {
            let _ = job.send(());
        }
    });
    let thread = percentiles(2000, async || {
        let (answer, answered) = tokio::sync::oneshot::channel();
        jobs.send(answer).unwrap();
        answered.await.unwrap();
    })
    .await;
    println!("a thread of one's own, there and back: {thread}");
}

/// Batches of one event, and of 500, as the engine would deliver them.
async fn file(records: &[Record]) {
    let mut preparer = Preparer::new(&to_null()).unwrap();
    let messages: Vec<_> = preparer
        .prepare_all(&records.iter().collect::<Vec<_>>())
        .into_iter()
        .filter_map(|prepared| match prepared {
            Prepared::Send(message) => Some(message),
            _ => None,
        })
        .collect();
    let path = std::env::temp_dir().join(format!("postrider-bench-{}.ndjson", std::process::id()));
    for fsync in [Fsync::Never, Fsync::Batch] {
        let mut sink = FileSink::open(FileConfig { fsync, ..FileConfig::new(&path) }).await.unwrap();
        for size in [1, 10, 500] {
            let mut times = Vec::new();
            for _ in 0..200 {
                let start = Instant::now();
                assert!(sink.deliver(&messages[..size]).await.unavailable.is_none());
                times.push(start.elapsed());
            }
            println!("file, fsync {fsync:?}, {size} events: {}", Shown(times));
        }
    }
    std::fs::remove_file(path).unwrap();
}

async fn percentiles(times: usize, mut work: impl AsyncFnMut()) -> Shown {
    let mut taken = Vec::with_capacity(times);
    for _ in 0..times {
        let start = Instant::now();
        work().await;
        taken.push(start.elapsed());
    }
    Shown(taken)
}

struct Shown(Vec<Duration>);

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = |percent: usize| sorted[(sorted.len() - 1) * percent / 100];
        write!(f, "p50 {:.1?}, p99 {:.1?}", at(50), at(99))
    }
}
