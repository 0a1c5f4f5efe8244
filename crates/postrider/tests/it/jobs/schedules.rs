//! Fault 110: several schedulers, kills between claim and enqueue, jumping clocks, missed ticks: each tick once.

use std::time::Duration;

use postrider::jobs::{Cron, HandlerResult, Job, JobContext, Missed, Outcome, Worker};
use serde_json::Value;

use super::process::{Orders, WorkerProcess};
use super::{Working, one, pool, quick, until};
use crate::support::{database, run};

async fn nothing(_context: &mut JobContext, _job: Job<Value>) -> HandlerResult {
    Ok(Outcome::Done)
}

/// Ticks are every minute; the test moves the clock by moving the schedule, ninety ticks back at a time.
#[tokio::test(flavor = "multi_thread")]
async fn fault_110_three_schedulers_that_are_killed_enqueue_each_tick_once() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(
        &mut connection,
        "create table effects (job bigint, n bigint); create table hits (point text);
         create table enqueued (tick timestamptz);
         -- Every job of the schedule, in the transaction that enqueues it; so long that kills fall into it.
         create function note() returns trigger language plpgsql as $$
             begin perform pg_sleep(0.002); insert into public.enqueued values (clock_timestamp()); return new; end $$;
         -- Not what is tried again: the worker that is killed may have had some of them.
         create trigger note before insert on postrider.jobs_0 for each row when (new.attempt = 1) execute function note()",
    )
    .await;
    let orders = |number: usize| Orders {
        name: format!("scheduler {number}"),
        database: database.url(),
        lease: Duration::from_secs(1),
        dies: None,
        cron: Some(("every minute".to_owned(), "* * * * *".to_owned())),
    };
    let mut workers: Vec<WorkerProcess> =
        (0..3).map(|number| WorkerProcess::start(&orders(number))).collect();
    until(&mut connection, "select count(*) = 1 from postrider.job_crons where next_at is not null").await;
    let mut ticks = 0;
    for round in 0..8 {
        let before: i64 = one(&mut connection, "select count(*) from enqueued").await;
        // As if the clock had jumped forward by ninety minutes.
        let missed: i64 = sqlx::query_scalar(
            "update postrider.job_crons set next_at = date_trunc('minute', clock_timestamp()) - interval '89 minutes'
             returning floor(date_part('epoch', clock_timestamp() - next_at) / 60)::bigint + 1",
        )
        .fetch_one(&mut connection)
        .await
        .unwrap();
        // In the middle of it.
        tokio::time::sleep(Duration::from_millis(20 * round)).await;
        workers.remove(0).kill();
        workers.push(WorkerProcess::start(&orders(3)));
        until(&mut connection, "select next_at > clock_timestamp() from postrider.job_crons").await;
        let now: i64 = one(&mut connection, "select count(*) from enqueued").await;
        // A minute may have ended meanwhile.
        assert!((missed..=missed + 1).contains(&(now - before)), "{missed} ticks, {} jobs", now - before);
        ticks += now - before;
    }
    assert!(ticks >= 720);
    drop(workers);
}

/// The clock of the database goes back: what has ticked does not tick again.
#[tokio::test(flavor = "multi_thread")]
async fn fault_110_a_clock_that_goes_back_repeats_nothing() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let cron = Cron::new("hourly", "@hourly", "tick", &Value::Null).time_zone("Europe/Berlin");
    let working = Working::start(
        Worker::new(pool(&database).await).options(quick()).cron(cron).handle("tick", nothing),
    );
    until(&mut connection, "select count(*) = 1 from postrider.job_crons where next_at > clock_timestamp()")
        .await;
    // As if it had ticked an hour ahead of what the clock says now: the next one is later still.
    run(
        &mut connection,
        "update postrider.job_crons set next_at = next_at + interval '1 hour', last_tick = next_at",
    )
    .await;
    let expected: String = one(&mut connection, "select next_at::text from postrider.job_crons").await;
    run(&mut connection, "select postrider.enqueue('tick', 'null')").await;
    until(&mut connection, "select count(*) = 1 from postrider.job_results").await;
    assert_eq!(
        one::<String>(&mut connection, "select next_at::text from postrider.job_crons").await,
        expected
    );
    working.stop().await;
}

/// Two who found the same tick due: the second one's is refused as a whole.
#[tokio::test]
async fn fault_110_a_tick_that_another_took_is_not_taken_again() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "select postrider.declare_cron('c', '@daily', 'tick'); update postrider.job_crons set next_at = '2026-01-01 00:00Z'").await;
    let tick =
        "select postrider.tick_cron('c', '2026-01-01 00:00Z', array[timestamp '2026-01-01'], '2026-01-02')";
    assert!(one::<bool>(&mut connection, tick).await);
    assert!(!one::<bool>(&mut connection, tick).await);
    assert_eq!(one::<i64>(&mut connection, "select count(*) from postrider.jobs").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn missed_ticks_are_treated_as_stated() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let cron = |name: &str, missed| Cron::new(name, "@hourly", name, &Value::Null).missed(missed);
    let worker = Worker::new(pool(&database).await)
        .options(quick())
        .handle("skip", nothing)
        .handle("last", nothing)
        .handle("all", nothing);
    let worker = worker
        .cron(cron("skip", Missed::Skip))
        .cron(cron("last", Missed::Last))
        .cron(cron("all", Missed::All));
    let working = Working::start(worker);
    until(&mut connection, "select count(*) = 3 from postrider.job_crons where next_at is not null").await;
    run(&mut connection, "update postrider.job_crons set next_at = date_trunc('hour', clock_timestamp() - interval '61 minutes') - interval '4 hours'").await;
    until(&mut connection, "select count(*) = 3 from postrider.job_crons where next_at > clock_timestamp()")
        .await;
    until(&mut connection, "select (select count(*) from postrider.list_running_jobs()) = 0 and (select coalesce(sum(ready), 0) from postrider.job_stats) = 0").await;
    working.stop().await;
    let counts: Vec<(String, i64)> =
        sqlx::query_as("select kind, count(*) from postrider.job_results group by kind order by kind")
            .fetch_all(&mut connection)
            .await
            .unwrap();
    let count = |kind: &str| counts.iter().find(|one| one.0 == kind).map_or(0, |one| one.1);
    assert!((5..=7).contains(&count("all")), "{counts:?}");
    assert_eq!(count("last"), 1);
    assert!(count("skip") <= 1);
}

/// One that the database refuses, now or with each tick, does not keep the others from their ticks.
#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_that_is_refused_is_left_out_alone() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let cron = |name: &str, kind: &str| Cron::new(name, "@hourly", kind, &Value::Null);
    let worker = Worker::new(pool(&database).await)
        .options(quick())
        .cron(cron("a", "tick").time_zone("Mars/Olympus"))
        .cron(cron("b", "tick"))
        .cron(cron("c", "tick"));
    let working = Working::start(worker.handle("tick", nothing));
    until(&mut connection, "select count(*) = 2 from postrider.job_crons where next_at is not null").await;
    // As only somebody who writes there himself can: the tick of `b` is refused, and comes first.
    run(
        &mut connection,
        "update postrider.job_crons set next_at = next_at - interval '1 hour', kind = case name when 'b' then '' else kind end",
    )
    .await;
    until(&mut connection, "select count(*) >= 1 from postrider.job_results").await;
    until(&mut connection, "select next_at > clock_timestamp() from postrider.job_crons where name = 'c'")
        .await;
    working.stop().await;
}

/// Whatever keeps the rings from being turned, the clock goes on.
#[tokio::test(flavor = "multi_thread")]
async fn schedules_are_kept_although_the_rings_cannot_be_turned() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    // As only somebody who writes there himself can: more than the server can take from its clock.
    run(
        &mut connection,
        "insert into postrider.job_queues (queue, keep_results) values ('for ever', '100000 years');
         insert into postrider.job_results (slot, id, queue, kind, state, attempt, created_at)
         values (0, 1000, 'for ever', 'old', 'done', 1, now())",
    )
    .await;
    let refused = sqlx::query("select postrider.tend_jobs()").execute(&mut connection).await.unwrap_err();
    assert_eq!(refused.as_database_error().unwrap().code().as_deref(), Some("22008"), "{refused}");
    let cron = Cron::new("hourly", "@hourly", "tick", &Value::Null);
    let working = Working::start(
        Worker::new(pool(&database).await).options(quick()).cron(cron).handle("tick", nothing),
    );
    until(&mut connection, "select count(*) = 1 from postrider.job_crons where next_at is not null").await;
    run(&mut connection, "update postrider.job_crons set next_at = next_at - interval '1 hour'").await;
    until(&mut connection, "select exists (select from postrider.job_results where kind = 'tick')").await;
    working.stop().await;
}
