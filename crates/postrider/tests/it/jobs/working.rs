//! The worker: outcomes, failures, panics, transactions, waking, stopping.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postrider::jobs::{
    HandlerResult, Job, JobContext, NewJob, Outcome, Worker, WorkerOptions, admin, enqueue,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::{Working, one, pool, quick, until};
use crate::support::{PATIENCE, database, pool_through_proxy, run};

#[derive(Debug, Serialize, Deserialize)]
struct Order {
    #[serde(rename = "do")]
    what: String,
}

#[derive(Default)]
struct Seen {
    begun: AtomicUsize,
    highest: AtomicUsize,
}

async fn obey(context: &mut JobContext, job: Job<Order>) -> HandlerResult {
    context.state::<Seen>().begun.fetch_add(1, Ordering::SeqCst);
    match job.payload.what.as_str() {
        "fail" => Err("it went wrong".into()),
        "fail once" if job.attempt == 1 => {
            Ok(Outcome::Retry { after: Duration::ZERO, reason: "not yet".to_owned() })
        }
        "panic" if job.attempt == 1 => panic!("out of cheese"),
        "snooze" if job.created_at > time::OffsetDateTime::now_utc() - time::Duration::milliseconds(300) => {
            Ok(Outcome::Snooze(Duration::from_millis(350)))
        }
        "die" => Ok(Outcome::Dead("hopeless".to_owned())),
        "cancel" => Ok(Outcome::Cancel),
        "hang" if job.attempt == 1 => std::future::pending().await,
        what @ ("effect" | "effect with output" | "effect and die") => {
            let tx = context.transaction().await?;
            sqlx::query("insert into effects values ($1)").bind(job.id).execute(&mut **tx).await?;
            Ok(match what {
                "effect with output" => Outcome::DoneWith(json!(7)),
                "effect and die" => Outcome::Dead("hopeless".to_owned()),
                _ => Outcome::Done,
            })
        }
        "effect and retry" => {
            let tx = context.transaction().await?;
            sqlx::query("insert into effects values ($1)").bind(-job.id).execute(&mut **tx).await?;
            let again = Outcome::Retry { after: Duration::ZERO, reason: "not yet".to_owned() };
            Ok(if job.attempt == 1 { again } else { Outcome::Done })
        }
        "effect and fail" => {
            let tx = context.transaction().await?;
            sqlx::query("insert into effects values ($1)").bind(-job.id).execute(&mut **tx).await?;
            Ok(if job.attempt == 1 { return Err("rolled back".into()) } else { Outcome::Done })
        }
        _ => Ok(Outcome::DoneWith(json!({"attempt": job.attempt}))),
    }
}

/// Whatever the pool's own default is: others may have taken the job over, and that has to be seen.
#[tokio::test(flavor = "multi_thread")]
async fn a_handlers_transaction_is_read_committed() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "create table effects (job bigint)").await;
    let name = sqlx::AssertSqlSafe(format!(
        "alter database \"{}\" set default_transaction_isolation = 'serializable'",
        database.name()
    ));
    sqlx::raw_sql(name).execute(&mut connection).await.unwrap();
    let pool = pool(&database).await;
    let working =
        Working::start(Worker::new(pool).options(quick()).state(Seen::default()).handle("order", obey));
    enqueue(&mut connection, &order("effect")).await.unwrap();
    until(&mut connection, "select exists (select from postrider.job_results where state = 'done')").await;
    working.stop().await;
    assert_eq!(one::<i64>(&mut connection, "select count(*) from effects").await, 1);
}

fn order(what: &str) -> NewJob {
    NewJob::new("order", &Order { what: what.to_owned() }).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_outcome_is_what_it_says() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "create table effects (job bigint); select postrider.set_queue('default', first_backoff => '10 milliseconds')").await;
    let mut ids = std::collections::HashMap::new();
    for what in [
        "work",
        "fail once",
        "panic",
        "snooze",
        "die",
        "cancel",
        "hang",
        "effect",
        "effect and fail",
        "effect and retry",
        "effect with output",
        "effect and die",
    ] {
        ids.insert(what, enqueue(&mut connection, &order(what)).await.unwrap());
    }
    let fails = enqueue(&mut connection, &order("fail").max_attempts(3)).await.unwrap();
    let misfit = enqueue(&mut connection, &NewJob::new("order", &7).unwrap()).await.unwrap();
    let stranger =
        enqueue(&mut connection, &NewJob::new("unknown", &()).unwrap().max_attempts(1)).await.unwrap();
    let options =
        WorkerOptions { timeout: Some(Duration::from_secs(10)), name: "tester".to_owned(), ..quick() };
    let working = Working::start(
        Worker::new(pool(&database).await).options(options).state(Seen::default()).handle("order", obey),
    );
    until(&mut connection, "select (select count(*) from postrider.job_results) = 10 and (select count(*) from postrider.job_waiting where state = 'dead') = 4").await;
    working.stop().await;

    let mut shown = async |id: i64| admin::show(&mut connection, id).await.unwrap().unwrap();
    for (what, state, attempt) in [
        ("work", "done", 1),
        ("fail once", "done", 2),
        ("panic", "done", 2),
        ("snooze", "done", 1),
        ("die", "dead", 1),
        ("cancel", "cancelled", 1),
        ("hang", "done", 2),
        ("effect", "done", 1),
        ("effect and fail", "done", 2),
        ("effect and retry", "done", 2),
        ("effect with output", "done", 1),
        ("effect and die", "dead", 1),
    ] {
        let found = shown(ids[what]).await;
        assert_eq!(
            (found.listed.state.as_str(), found.listed.attempt),
            (state, attempt),
            "{what}: {found:?}"
        );
    }
    assert_eq!(shown(ids["work"]).await.output.as_deref(), Some(r#"{"attempt":1}"#));
    assert_eq!(shown(ids["effect with output"]).await.output.as_deref(), Some("7"));
    assert_eq!(shown(ids["die"]).await.listed.error.as_deref(), Some("hopeless"));
    let failed = shown(fails).await;
    assert_eq!((failed.listed.state.as_str(), failed.listed.attempt), ("dead", 3));
    let history: Value = serde_json::from_str(&failed.history.unwrap()).unwrap();
    assert_eq!(history.as_array().unwrap().len(), 3, "{history}");
    assert!(shown(misfit).await.listed.error.unwrap().contains("not what the handler takes"));
    let left = shown(stranger).await;
    assert_eq!((left.listed.state.as_str(), left.listed.attempt), ("scheduled", 1), "nobody has a handler");
    let mut effects: Vec<i64> =
        sqlx::query_scalar("select job from effects").fetch_all(&mut connection).await.unwrap();
    effects.sort_unstable();
    let rolled_back_once = [-ids["effect and retry"], -ids["effect and fail"]];
    let others = ["effect", "effect with output", "effect and die"].map(|what| ids[what]);
    assert_eq!(effects, [rolled_back_once.as_slice(), &others].concat());
    assert_eq!(
        one::<i64>(&mut connection, "select count(*) from postrider.job_workers").await,
        0,
        "it has left"
    );
}

/// As in a deployment that is under way: an old worker must not use up the attempts of what only a new one knows.
#[tokio::test(flavor = "multi_thread")]
async fn a_kind_without_a_handler_waits_for_a_worker_that_has_one() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "select postrider.enqueue('new', '{\"do\": \"work\"}', max_attempts => 1)").await;
    let worker = |pool| Worker::new(pool).options(quick()).state(Seen::default());
    let old = Working::start(worker(pool(&database).await).handle("order", obey));
    until(
        &mut connection,
        "select exists (select from postrider.job_waiting where state = 'scheduled' and attempt = 1 and run_at > now() + interval '5 seconds')",
    )
    .await;
    old.stop().await;
    run(&mut connection, "update postrider.job_waiting set run_at = now()").await;
    let new = Working::start(worker(pool(&database).await).handle("new", obey));
    until(&mut connection, "select exists (select from postrider.job_results where attempt = 1)").await;
    new.stop().await;
}

async fn wait(context: &mut JobContext, _job: Job<Value>) -> HandlerResult {
    let (seen, gate) = (context.state::<Seen>(), context.state::<Semaphore>());
    let now = seen.begun.fetch_add(1, Ordering::SeqCst) + 1;
    seen.highest.fetch_max(now, Ordering::SeqCst);
    let permit = gate.acquire().await;
    seen.begun.fetch_sub(1, Ordering::SeqCst);
    permit?.forget();
    Ok(Outcome::Done)
}

/// Who holds a job since when is seen; what runs ends, what waits is given back, and a deadline is a deadline.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_told_to_stop_gives_back_what_it_has_not_done() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "select postrider.enqueue('wait', '{}') from generate_series(1, 10)").await;
    let options = WorkerOptions {
        concurrency: 3,
        drain: Duration::from_millis(200),
        name: "stopped".to_owned(),
        ..quick()
    };
    let worker = Worker::new(pool(&database).await)
        .options(options)
        .state(Seen::default())
        .state(Semaphore::new(0))
        .handle("wait", wait);
    let working = Working::start(worker);
    until(&mut connection, "select count(*) = 3 from postrider.list_running_jobs()").await;
    let holder: (String, bool) =
        sqlx::query_as("select worker_name, claimed_at <= clock_timestamp() and expires_at > clock_timestamp() from postrider.list_running_jobs() limit 1")
            .fetch_one(&mut connection)
            .await
            .unwrap();
    assert_eq!(holder, ("stopped".to_owned(), true));
    working.stop().await;
    // All ten are there, none of them has lost an attempt, and nobody waits for a lease.
    let options = WorkerOptions { concurrency: 3, ..quick() };
    let worker = Worker::new(pool(&database).await)
        .options(options)
        .state(Seen::default())
        .state(Semaphore::new(10))
        .handle("wait", wait);
    let working = Working::start(worker);
    until(&mut connection, "select count(*) = 10 and max(attempt) = 1 from postrider.job_results").await;
    working.stop().await;
}

/// A sleeping worker is woken, and whoever enqueues does not notify while workers are awake.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_worker_is_woken_by_the_commit() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    // So long that the test would fail if it were by looking.
    let options = WorkerOptions {
        idle: Duration::from_mins(10),
        lease: Some(Duration::from_secs(30)),
        ..WorkerOptions::default()
    };
    let working = Working::start(
        Worker::new(pool(&database).await).options(options).state(Seen::default()).handle("order", obey),
    );
    for number in 1..=20_i64 {
        until(&mut connection, "select coalesce(pg_sequence_last_value('postrider.job_armed'), 0) > coalesce(pg_sequence_last_value('postrider.job_disarmed'), 0)").await;
        enqueue(&mut connection, &order("work")).await.unwrap();
        let done = async {
            while one::<i64>(&mut connection, "select count(*) from postrider.job_results").await < number {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, done).await.expect("nobody woke it");
    }
    working.stop().await;
}

/// A handler that looks is told, and what was cancelled is not tried again.
#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_can_be_cancelled() {
    async fn until_cancelled(context: &mut JobContext, _job: Job<Value>) -> HandlerResult {
        context.cancelled().await;
        Err("stopped half-way".into())
    }
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let options = WorkerOptions { lease: Some(Duration::from_secs(1)), ..quick() };
    let working =
        Working::start(Worker::new(pool(&database).await).options(options).handle("long", until_cancelled));
    let id = enqueue(&mut connection, &NewJob::new("long", &()).unwrap()).await.unwrap();
    until(&mut connection, "select count(*) = 1 from postrider.list_running_jobs()").await;
    assert_eq!(admin::cancel(&mut connection, id).await.unwrap().as_deref(), Some("told"));
    until(&mut connection, "select count(*) = 1 from postrider.job_results where state = 'cancelled'").await;
    assert_eq!(one::<i64>(&mut connection, "select count(*) from postrider.job_waiting").await, 0);
    working.stop().await;
}

/// The database goes away under a worker and comes back: every job is done, and none of those with an effect twice.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_lost_cost_nothing_but_time() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "create table effects (job bigint); select postrider.set_queue('default', first_backoff => '10 milliseconds')").await;
    let (proxy, pool) = pool_through_proxy(&database).await;
    let options = WorkerOptions { concurrency: 8, lease: Some(Duration::from_secs(1)), ..quick() };
    // It is away from the beginning.
    proxy.refuse();
    let working =
        Working::start(Worker::new(pool).options(options).state(Seen::default()).handle("order", obey));
    while proxy.accepted() < 2 {
        tokio::task::yield_now().await;
    }
    proxy.heal();
    for _ in 0..10 {
        run(
            &mut connection,
            "select postrider.enqueue('order', '{\"do\": \"effect\"}') from generate_series(1, 50)",
        )
        .await;
        run(&mut connection, "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()").await;
    }
    until(&mut connection, "select count(*) = 500 from postrider.job_results where state = 'done'").await;
    let (effects, different): (i64, i64) =
        sqlx::query_as("select count(*), count(distinct job) from effects")
            .fetch_one(&mut connection)
            .await
            .unwrap();
    assert_eq!((effects, different), (500, 500));
    working.stop().await;
}
