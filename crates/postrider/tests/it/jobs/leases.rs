//! Who holds what: answers that were lost, and attempts that were not begun.

use std::sync::Arc;
use std::time::Duration;

use postrider::jobs::{HandlerResult, Job, JobContext, Outcome, Worker, WorkerOptions};
use serde_json::Value;
use sqlx::Connection as _;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, Semaphore};

use super::{Working, one, pool, quick, until};
use crate::support::{database, run};

async fn wait(context: &mut JobContext, job: Job<Value>) -> HandlerResult {
    if job.kind == "long" {
        context.state::<Semaphore>().acquire().await?.forget();
    }
    Ok(Outcome::Done)
}

/// A claim that was committed and whose answer was lost: nobody knows of it, so nobody may keep it alive, whatever else the worker does.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_answer_was_lost_runs_out_beside_a_long_job() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    // So long that the long job is not lost to a machine that stands still for some seconds.
    let options = WorkerOptions { concurrency: 2, lease: Some(Duration::from_secs(6)), ..quick() };
    let worker = Worker::new(pool(&database).await).options(options).state(Semaphore::new(0));
    let working = Working::start(worker.handle("long", wait).handle("short", wait));
    run(&mut connection, "select postrider.enqueue('long', '{}')").await;
    until(&mut connection, "select count(*) = 1 from postrider.list_running_jobs()").await;
    // In the worker's name and behind its back, which is what a lost answer comes to. Its own claims wait for the lock.
    let mut other = database.connect().await.unwrap();
    let mut tx = other.begin().await.unwrap();
    run(&mut tx, "select from postrider.job_queues for update").await;
    run(&mut connection, "select postrider.enqueue('short', '{}')").await;
    let lost: i64 = one(
        &mut tx,
        "select c.claim from (select worker from postrider.job_claims limit 1) w, postrider.claim_jobs(worker => w.worker, lease => '6 seconds') c",
    )
    .await;
    tx.commit().await.unwrap();
    run(
        &mut connection,
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name like '%(claiming)'",
    )
    .await;
    until(&mut connection, "select exists (select from postrider.job_results where kind = 'short')").await;
    let running: Vec<String> = sqlx::query_scalar("select kind from postrider.list_running_jobs()")
        .fetch_all(&mut connection)
        .await
        .unwrap();
    assert_eq!(running, ["long"], "claim {lost} was taken over, and the long one was not");
    assert_eq!(one::<i16>(&mut connection, "select max(attempt) from postrider.job_results").await, 2);
    working.abort();
}

/// With one attempt, what was not begun when its worker vanished has not had it.
#[tokio::test]
async fn neighbours_of_a_crash_that_were_not_begun_are_not_dead() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    for statement in [
        "select postrider.enqueue('a', '{}', max_attempts => 1) from generate_series(1, 3)",
        "select postrider.enqueue('b', '{}', max_attempts => 2)",
        "select count(*) from postrider.claim_jobs(begins => true)",
        "select postrider.begin_jobs(1, array[2])",
        "update postrider.job_claims set expires_at = now() - interval '1 second'",
    ] {
        run(&mut connection, statement).await;
    }
    assert_eq!(one::<i32>(&mut connection, "select postrider.reap_jobs()").await, 4);
    let found: Vec<(i64, String, i16, i16)> =
        sqlx::query_as("select id, state, attempt, lost from postrider.job_waiting order by id")
            .fetch_all(&mut connection)
            .await
            .unwrap();
    let scheduled = "scheduled".to_owned();
    assert_eq!(
        found,
        [
            (1, scheduled.clone(), 1, 0),
            (2, "dead".to_owned(), 1, 1),
            (3, scheduled.clone(), 1, 0),
            (4, scheduled, 2, 1)
        ]
    );
    let late =
        sqlx::query("select postrider.begin_jobs(1, array[3])").execute(&mut connection).await.unwrap_err();
    assert_eq!(late.as_database_error().unwrap().code().as_deref(), Some("55000"), "{late}");
}

/// The worker says so before the last attempt, and spends nothing on any other.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_says_that_a_last_attempt_begins() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(
        &mut connection,
        "select postrider.enqueue('long', '{}', max_attempts => 1), postrider.enqueue('long', '{}')",
    )
    .await;
    let worker = Worker::new(pool(&database).await).options(quick()).state(Semaphore::new(0));
    let working = Working::start(worker.handle("long", wait));
    until(&mut connection, "select count(*) = 2 from postrider.list_running_jobs()").await;
    until(
        &mut connection,
        "select coalesce(array_agg(id) = array[1::bigint], false) from postrider.job_begun",
    )
    .await;
    working.abort();
}

/// What is not inside `block_on` of it stands still.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

async fn book(context: &mut JobContext, job: Job<Value>) -> HandlerResult {
    let tx = context.transaction().await?;
    sqlx::query("insert into effects values ($1)").bind(job.id).execute(&mut **tx).await?;
    Ok(Outcome::Done)
}

async fn book_and_freeze(context: &mut JobContext, job: Job<Value>) -> HandlerResult {
    book(context, job).await?;
    context.state::<Arc<Notify>>().notify_one();
    std::future::pending().await
}

/// A worker that freezes behind its effect has locked it. Whoever takes the job over meets that lock, and the server ends the frozen one.
#[test]
fn fault_109_a_frozen_worker_keeps_what_it_has_locked_from_nobody() {
    let (world, frozen) = (runtime(), runtime());
    let database = world.block_on(database());
    let mut connection = world.block_on(async { database.connect().await.unwrap() });
    world.block_on(run(
        &mut connection,
        "create table effects (job bigint primary key); select postrider.enqueue('book', '{}')",
    ));
    let second = Duration::from_secs(1);
    let options = || WorkerOptions { lease: Some(second), silence: second, ..quick() };
    let stands_still = frozen.block_on(async {
        let begun = Arc::new(Notify::new());
        let worker = Worker::new(pool(&database).await).options(options()).state(Arc::clone(&begun));
        let working = Working::start(worker.handle("book", book_and_freeze));
        begun.notified().await;
        working
    });
    world.block_on(async {
        let heir = Worker::new(pool(&database).await).options(options()).handle("book", book);
        let heir = Working::start(heir);
        until(&mut connection, "select exists (select from effects)").await;
        until(&mut connection, "select count(*) = 1 from postrider.job_results where attempt > 1").await;
        heir.stop().await;
    });
    drop(stands_still);
}
