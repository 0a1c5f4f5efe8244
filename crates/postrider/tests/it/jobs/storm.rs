//! Everything at once: priorities, keys, retries, snoozes, cancels, slow transactions, several workers, a turning ring; and a ledger.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use postrider::jobs::{
    HandlerResult, Job, JobContext, NewJob, Outcome, Worker, WorkerOptions, admin, enqueue,
};
use postrider_testkit::Seed;
use rand::RngExt as _;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use sqlx::{Connection as _, PgConnection};

use super::{Working, one, pool, quick, until};
use crate::support::{database, run};

const JOBS: i64 = 1500;
const KEYS: i64 = 12;

#[derive(Debug, Serialize, Deserialize)]
struct Payload {
    n: i64,
    trouble: u8,
}

/// Which keys have a job running, in this process and so in the whole test.
#[derive(Default)]
struct Busy(Mutex<HashMap<String, i64>>);

async fn work(context: &mut JobContext, job: Job<Payload>) -> HandlerResult {
    let busy = context.state::<std::sync::Arc<Busy>>();
    if let Some(key) = &job.key {
        let before = busy.0.lock().unwrap().insert(key.clone(), job.id);
        assert_eq!(before, None, "two jobs of key {key} at once");
    }
    let result = attempt(context, &job).await;
    if let Some(key) = &job.key {
        busy.0.lock().unwrap().remove(key);
    }
    result
}

async fn attempt(context: &mut JobContext, job: &Job<Payload>) -> HandlerResult {
    match (job.payload.trouble, job.attempt) {
        (1, 1) => return Err("the first time it fails".into()),
        (2, 1) if job.created_at > time::OffsetDateTime::now_utc() - time::Duration::milliseconds(50) => {
            return Ok(Outcome::Snooze(Duration::from_millis(20)));
        }
        (3, 1..=2) => {
            let tx = context.transaction().await?;
            sqlx::query("insert into effects values ($1, $2, $3)")
                .bind(job.id)
                .bind(job.payload.n)
                .bind(&job.key)
                .execute(&mut **tx)
                .await?;
            return Err("after its effect".into());
        }
        _ => {}
    }
    let tx = context.transaction().await?;
    sqlx::query("insert into effects values ($1, $2, $3)")
        .bind(job.id)
        .bind(job.payload.n)
        .bind(&job.key)
        .execute(&mut **tx)
        .await?;
    Ok(Outcome::Done)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_jobs_leaves_an_exact_ledger() {
    let seed = Seed::from_env_or_random("jobs storm");
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(
        &mut connection,
        "create table effects (job bigint, n bigint, key text, place bigserial);
         select postrider.set_queue('default', first_backoff => '5 milliseconds', max_backoff => '20 milliseconds')",
    )
    .await;
    let pool = pool(&database).await;
    let busy = std::sync::Arc::new(Busy::default());
    let workers: Vec<Working> = (0..2)
        .map(|_| {
            let options = WorkerOptions {
                concurrency: 4,
                lease: Some(Duration::from_secs(30)),
                idle: Duration::from_millis(50),
                ..quick()
            };
            Working::start(
                Worker::new(pool.clone()).options(options).state(busy.clone()).handle("storm", work),
            )
        })
        .collect();
    let mut random = StdRng::seed_from_u64(seed.value());
    let mut slow = database.connect().await.unwrap();
    let mut cancelled = Vec::new();
    let mut committed: Vec<i64> = Vec::new();
    let mut n = 0;
    while n < JOBS {
        let mut open = slow.begin().await.unwrap();
        let mut ids = Vec::new();
        let mut later = Vec::new();
        for _ in 0..random.random_range(1..40) {
            n += 1;
            let mut job = NewJob::new("storm", &Payload { n, trouble: random.random_range(0..8) }).unwrap();
            job = job.priority(random.random_range(-1..2));
            if random.random_bool(0.3) {
                job = job.key(random.random_range(0..KEYS));
            }
            if random.random_bool(0.1) {
                job = job.run_at(
                    time::OffsetDateTime::now_utc()
                        + time::Duration::milliseconds(random.random_range(1..50)),
                );
            }
            // Some in a transaction that is open for longer.
            if random.random_bool(0.5) {
                later.push(enqueue(&mut open, &job).await.unwrap());
            } else {
                ids.push(enqueue(&mut connection, &job).await.unwrap());
            }
        }
        if random.random_bool(0.2) {
            open.rollback().await.unwrap();
        } else {
            open.commit().await.unwrap();
            ids.extend(later);
        }
        committed.extend_from_slice(&ids);
        if !ids.is_empty() && random.random_bool(0.3) {
            let id = ids[random.random_range(0..ids.len())];
            if admin::cancel(&mut connection, id).await.unwrap().is_some() {
                cancelled.push(id);
            }
        }
        run(&mut connection, "select postrider.tend_jobs(16384, 8192)").await;
    }
    until(
        &mut connection,
        "select (select sum(ready + running + scheduled + behind_key) from postrider.job_stats) = 0",
    )
    .await;
    for worker in workers {
        worker.stop().await;
    }
    is_exact(&mut connection, committed, &cancelled).await;
}

/// Every job that was committed has ended once, and had its effect once unless it was cancelled; nothing is left of any.
async fn is_exact(connection: &mut PgConnection, mut committed: Vec<i64>, cancelled: &[i64]) {
    let mut ends: HashMap<i64, String> = sqlx::query_as("select id, state from postrider.job_results")
        .fetch_all(&mut *connection)
        .await
        .unwrap()
        .into_iter()
        .collect();
    assert_eq!(
        one::<i64>(connection, "select count(*) - count(distinct id) from postrider.job_results").await,
        0,
        "an end twice"
    );
    committed.retain(|id| !ends.contains_key(id));
    assert!(committed.is_empty(), "jobs without an end: {committed:?}");
    let effects: HashMap<i64, i64> = sqlx::query_as("select job, count(*) from effects group by job")
        .fetch_all(&mut *connection)
        .await
        .unwrap()
        .into_iter()
        .collect();
    for (id, count) in &effects {
        assert_eq!(*count, 1, "job {id} had its effect {count} times");
        assert_eq!(ends.remove(id).as_deref(), Some("done"), "job {id} had an effect");
    }
    for (id, state) in ends {
        assert!(state == "cancelled" && cancelled.contains(&id), "job {id} is {state} and had no effect");
    }
    assert_eq!(one::<i64>(connection, "select count(*) from postrider.job_waiting").await, 0);
    assert_eq!(one::<i64>(connection, "select count(*) from postrider.job_keys").await, 0);
    assert_eq!(one::<i64>(connection, "select count(*) from postrider.job_failures").await, 0);
}
