//! What a worker counts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use postrider::jobs::{HandlerResult, Job, JobContext, NewJob, Outcome, Worker, enqueue};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{pool, quick, until};
use crate::support::{PATIENCE, database, run};

/// Counters and gauges by name and labels.
#[derive(Default)]
pub struct Figures(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

impl Figures {
    fn place(&self, key: &Key) -> Arc<AtomicU64> {
        let labels: Vec<String> =
            key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        Arc::clone(self.0.lock().unwrap().entry(name).or_default())
    }

    pub fn count(&self, name: &str) -> u64 {
        self.0.lock().unwrap()[name].load(Ordering::Acquire)
    }
}

impl Recorder for Figures {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.place(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.place(key))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

async fn obey(_: &mut JobContext, job: Job<Value>) -> HandlerResult {
    match job.payload.as_str().unwrap() {
        "done" => Ok(Outcome::Done),
        "dead" => Ok(Outcome::Dead("no".to_owned())),
        "panic" => panic!("at the job"),
        _ => Err("not this time".into()),
    }
}

/// On one thread, so that the recorder is this test's own.
#[tokio::test]
async fn a_worker_counts_how_its_jobs_end() {
    let figures = Figures::default();
    let _recording = metrics::set_default_local_recorder(&figures);
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let pool = pool(&database).await;
    let mut transaction = pool.begin().await.unwrap();
    for what in ["done", "done", "dead", "panic", "fail"] {
        let job = NewJob::new("obey", &json!(what)).unwrap().max_attempts(2);
        enqueue(&mut transaction, &job).await.unwrap();
    }
    transaction.commit().await.unwrap();
    run(&mut connection, "select postrider.set_queue('default', first_backoff => '10 milliseconds')").await;
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = Worker::new(pool).options(quick()).handle("obey", obey);
    let watching = async {
        until(&mut connection, "select count(*) = 3 from postrider.job_waiting where state = 'dead'").await;
        until(&mut connection, "select count(*) = 2 from postrider.job_results where state = 'done'").await;
        stop.send(()).unwrap();
    };
    let running = tokio::time::timeout(PATIENCE, worker.run(async { drop(stopped.await) }));
    let (ended, ()) = tokio::join!(running, watching);
    ended.unwrap().unwrap();
    let outcome =
        |outcome: &str| figures.count(&format!("postrider_jobs_ended_total{{kind=obey,outcome={outcome}}}"));
    assert_eq!(figures.count("postrider_jobs_begun_total{kind=obey}"), 7);
    assert_eq!([outcome("done"), outcome("dead"), outcome("retried")], [2, 3, 2]);
    assert_eq!([outcome("snoozed"), outcome("cancelled")], [0, 0]);
    assert_eq!(figures.count("postrider_jobs_refused_total{}"), 0);
    let queued =
        figures.0.lock().unwrap().keys().filter(|name| name.starts_with("postrider_jobs_queued")).count();
    assert_eq!(queued, 5, "ready, running, scheduled, behind_key, dead");
}
