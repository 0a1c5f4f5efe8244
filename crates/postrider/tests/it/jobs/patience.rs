//! What is not waited for: a lock that a handler waits for, a database that is away when a worker is to end, a client that stands still.

use std::time::Duration;

use postrider::jobs::{HandlerResult, Job, JobContext, Outcome, Worker, WorkerOptions};
use serde_json::Value;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection as _, PgConnection};

use super::{Working, one, pool, quick, until};
use crate::support::{database, options, pool_through_proxy, run};

async fn count_up(context: &mut JobContext, _job: Job<Value>) -> HandlerResult {
    let tx = context.transaction().await?;
    sqlx::query("update counter set n = n + 1").execute(&mut **tx).await?;
    Ok(Outcome::Done)
}

/// The server answers no rollback while the statement before it waits, and the heartbeat would keep such a job for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_waits_for_a_row_lock_ends_at_its_timeout() {
    let database = database().await;
    let (mut connection, mut holder) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    run(&mut connection, "create table counter (n integer); insert into counter values (0)").await;
    let mut held = holder.begin().await.unwrap();
    run(&mut held, "update counter set n = 0").await;
    let options = WorkerOptions { timeout: Some(Duration::from_secs(1)), ..quick() };
    let worker = Worker::new(pool(&database).await).options(options).handle("count", count_up);
    let working = Working::start(worker);
    run(&mut connection, "select postrider.enqueue('count', '{}', max_attempts => 1)").await;
    until(
        &mut connection,
        "select exists (select from postrider.job_waiting where state = 'dead' and last_error like '%took longer than%')",
    )
    .await;
    // Nor does the statement wait for longer on the server, though nobody has given the lock back.
    until(
        &mut connection,
        "select not exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')",
    )
    .await;
    held.rollback().await.unwrap();
    working.stop().await;
    assert_eq!(one::<i32>(&mut connection, "select n from counter").await, 0);
}

async fn hang_once(_context: &mut JobContext, job: Job<Value>) -> HandlerResult {
    if job.attempt == 1 {
        std::future::pending::<()>().await;
    }
    Ok(Outcome::Done)
}

/// What it could not say any more is found out by the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_told_to_stop_while_the_database_is_away_ends() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let (proxy, remote) = pool_through_proxy(&database).await;
    let options = || WorkerOptions {
        lease: Some(Duration::from_secs(2)),
        drain: Duration::from_millis(200),
        ..quick()
    };
    let working = Working::start(Worker::new(remote).options(options()).handle("hang", hang_once));
    run(&mut connection, "select postrider.enqueue('hang', '{}')").await;
    until(&mut connection, "select count(*) = 1 from postrider.list_running_jobs()").await;
    proxy.refuse();
    proxy.cut();
    working.stop().await;
    let heir = Worker::new(pool(&database).await).options(options()).handle("hang", hang_once);
    let heir = Working::start(heir);
    until(&mut connection, "select count(*) = 1 from postrider.job_results where attempt > 1").await;
    heir.stop().await;
}

/// As if the server, or the role, had this time of its own.
fn with_own_time(options: PgConnectOptions, own: &str) -> PgConnectOptions {
    options.options([("idle_in_transaction_session_timeout", own)])
}

const TIME: &str = "select current_setting('idle_in_transaction_session_timeout')";

/// It has the queue's lock, or its claim, until the server ends it: a shorter time of the server's own stands, a longer one does not.
#[tokio::test]
async fn a_client_that_stands_still_keeps_a_queue_for_half_a_minute_at_most() {
    let database = database().await;
    for (own, kept) in [("0", "30s"), ("1h", "30s"), ("5s", "5s")] {
        let mut connection =
            PgConnection::connect_with(&with_own_time(options(&database), own)).await.unwrap();
        run(&mut connection, "select postrider.enqueue('a', '{}')").await;
        for call in [
            "select postrider.claim_jobs()",
            "select postrider.finish_jobs(max(claim)) from postrider.job_claims",
        ] {
            let mut tx = connection.begin().await.unwrap();
            run(&mut tx, call).await;
            assert_eq!(one::<String>(&mut tx, TIME).await, kept, "{call}, with {own} of its own");
            tx.commit().await.unwrap();
            assert_eq!(one::<String>(&mut connection, TIME).await, own, "afterwards it is as before");
        }
    }
}

async fn tell_time(context: &mut JobContext, _job: Job<Value>) -> HandlerResult {
    let tx = context.transaction().await?;
    let time: String = sqlx::query_scalar(TIME).fetch_one(&mut **tx).await?;
    Ok(Outcome::DoneWith(time.into()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_may_be_silent_for_as_long_as_was_said_or_less() {
    for (own, kept) in [("0", "1min"), ("1h", "1min"), ("5s", "5s")] {
        let database = database().await;
        let mut connection = database.connect().await.unwrap();
        let pool = PgPoolOptions::new().connect_lazy_with(with_own_time(options(&database), own));
        let options = WorkerOptions { silence: Duration::from_mins(1), ..quick() };
        let working = Working::start(Worker::new(pool).options(options).handle("tell", tell_time));
        run(&mut connection, "select postrider.enqueue('tell', '{}')").await;
        until(&mut connection, "select exists (select from postrider.job_results)").await;
        working.stop().await;
        let told: String = one(&mut connection, "select output #>> '{}' from postrider.job_results").await;
        assert_eq!(told, kept, "with {own} of its own");
    }
}
