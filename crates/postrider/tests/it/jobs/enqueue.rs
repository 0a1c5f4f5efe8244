//! Writing jobs: the caller's transaction, and what is refused with which words.

use postrider::jobs::{NewJob, enqueue, enqueue_many};
use serde_json::json;
use sqlx::Connection as _;
use sqlx::postgres::PgDatabaseError;
use time::OffsetDateTime;

use super::{claim, finish, kinds, one, until, work_off};
use crate::support::{database, run};

#[tokio::test]
async fn a_job_is_there_if_and_only_if_the_transaction_commits() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    enqueue(&mut tx, &NewJob::new("taken.back", &json!({})).unwrap()).await.unwrap();
    tx.rollback().await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    let id = enqueue(&mut tx, &NewJob::new("kept", &json!({"n": 1})).unwrap()).await.unwrap();
    let mut other = database.connect().await.unwrap();
    assert_eq!(claim(&mut other, 10).await, []);
    tx.commit().await.unwrap();
    assert_eq!(claim(&mut other, 10).await, [(1, id, "kept".to_owned())]);
}

#[tokio::test]
async fn every_kind_of_json_is_taken() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(
        &mut connection,
        "select postrider.enqueue('literal', '{\"b\":  1}'), postrider.enqueue('json', '{}'::json), postrider.enqueue('jsonb', '{}'::jsonb),
                postrider.enqueue('text', '\"x\"'::text);
         select postrider.enqueue_many('[{\"kind\": \"s\", \"payload\": \"a string\"}, {\"kind\": \"n\", \"payload\": null}]')",
    )
    .await;
    let payloads: Vec<String> =
        sqlx::query_scalar("select payload::text from postrider.claim_jobs() order by id")
            .fetch_all(&mut connection)
            .await
            .unwrap();
    // Byte for byte, where it was text.
    assert_eq!(payloads, ["{\"b\":  1}", "{}", "{}", "\"x\"", "\"a string\"", "null"]);
}

#[tokio::test]
async fn bad_input_is_refused_with_what_to_do() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    for (call, state, message) in [
        ("enqueue(null, '{}')", "22004", "the kind of a job must not be null"),
        ("enqueue('', '{}')", "22023", "the kind of a job must not be empty"),
        ("enqueue('a', null::json)", "22004", "the payload of a job must not be null"),
        ("enqueue('a', 'hello')", "22P02", "the payload of job 'a' is not JSON"),
        ("enqueue('a', '{}', priority => 40000)", "22003", "priority 40000 of job 'a' is out of range"),
        ("enqueue('a', '{}', max_attempts => 0)", "22023", "job 'a' cannot have 0 attempts"),
        ("enqueue('a', '{}', queue => repeat('q', 256))", "54000", "job 'a' is over a limit"),
        ("enqueue('a', '{}', key => '')", "22023", "the key of a job must not be empty"),
        ("enqueue_many('{}')", "22023", "enqueue_many takes a JSON array of jobs"),
        (
            "enqueue_many('[{\"kind\": \"a\"}]')",
            "22004",
            "the payload of a job must not be null (job 1 of enqueue_many)",
        ),
        ("enqueue('a', '{}', run_at => 'infinity')", "22008", "job 'a' cannot run at infinity"),
        ("enqueue('a', '{}', run_at => '-infinity')", "22008", "job 'a' cannot run at -infinity"),
        (
            "enqueue_many('[{\"kind\": \"a\", \"payload\": 1, \"run_at\": \"20000-01-01\"}]')",
            "22008",
            "job 'a' cannot run at 20000-01-01",
        ),
        (
            "enqueue_many('[{\"kind\": \"a\", \"payload\": 1, \"run_at\": \"0001-01-01 BC\"}]')",
            "22008",
            "job 'a' cannot run at 000",
        ),
        ("enqueue('a', '{}', unique_for => '1 day')", "22023", "job 'a' has a unique_for and no unique_key"),
        (
            "enqueue('a', '{}', unique_key => 'u', unique_for => '-1 day')",
            "22008",
            "job 'a' cannot be unique for -1 days",
        ),
        (
            "enqueue('a', '{}', unique_key => 'u', unique_for => '100000 years')",
            "22008",
            "job 'a' cannot be unique for 100000 years",
        ),
        (
            "enqueue_many('[{\"kind\": \"a\", \"payload\": 1, \"unique_for\": \"1 day\"}]')",
            "22023",
            "job 'a' has a unique_for and no unique_key",
        ),
        ("enqueue_many('nope')", "22P02", "the argument of enqueue_many is not JSON"),
        ("enqueue_many('[1]')", "22023", "job 1 of enqueue_many is not a job"),
        // Two jobs, if nobody minded.
        (
            "enqueue_many('[{\"kind\": \"a\", \"payload\": 1}, {\"kind\": \"a\", \"payload\": 1, \"uniqueKey\": \"u\"}]')",
            "22023",
            "job 2 of enqueue_many is not a job",
        ),
        ("claim_jobs(most => 0)", "22023", "these jobs cannot be claimed"),
        ("set_queue('default', lease => '0')", "22023", "queue 'default' cannot have a lease of 00:00:00"),
        (
            "set_queue('default', max_backoff => '-1 hour')",
            "22023",
            "queue 'default' cannot have a max_backoff of -01:00:00",
        ),
        // Beyond the server's times, now or when it is added to the clock.
        ("set_queue('default', lease => '101 years')", "22023", "cannot have a lease of 101 years"),
        (
            "set_queue('default', keep_results => '100000 years')",
            "22023",
            "cannot have keep_results of 100000 years",
        ),
        (
            "set_queue('default', first_backoff => '290000 years')",
            "22023",
            "cannot have a first_backoff of 290000 years",
        ),
        (
            "set_queue('default', max_backoff => '290000 years')",
            "22023",
            "cannot have a max_backoff of 290000 years",
        ),
        ("set_queue(null)", "22004", "the queue must not be null"),
        ("pause_queue('')", "22023", "the queue must not be empty"),
        ("pause_queue('default', null)", "22004", "null is neither"),
        ("extend_jobs(null)", "22004", "a worker and its lease must not be null"),
        ("extend_jobs(gen_random_uuid(), '-1 day')", "22023", "a lease of -1 days has run out already"),
        ("declare_cron('c', '@daily', '')", "22023", "the kind of a job must not be empty (schedule 'c')"),
        ("declare_cron('c', '@daily', 'a', missed => 'some')", "22023", "schedule 'c' cannot be kept"),
        ("declare_cron('c', '@daily', 'a', time_zone => 'Mars')", "22023", "there is no time zone 'Mars'"),
    ] {
        let statement = sqlx::AssertSqlSafe(format!("select postrider.{call}"));
        let error = sqlx::query(statement).execute(&mut connection).await.unwrap_err();
        let said = error.as_database_error().unwrap().downcast_ref::<PgDatabaseError>();
        assert_eq!(said.code(), state, "{call}: {said}");
        assert!(said.message().contains(message), "{call}: {said}");
        assert!(said.detail().is_some() && said.hint().is_some(), "{call}: {said:?}");
    }
    assert_eq!(claim(&mut connection, 10).await, []);
}

#[tokio::test]
async fn high_priorities_come_first_and_times_are_kept() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let job = |kind: &str| NewJob::new(kind, &()).unwrap();
    let later = OffsetDateTime::now_utc() + time::Duration::hours(1);
    let jobs = [
        job("low").priority(-5),
        job("first"),
        job("second"),
        job("high").priority(7),
        job("later").run_at(later),
    ];
    enqueue_many(&mut connection, &jobs).await.unwrap();
    assert_eq!(kinds(&mut connection, 3).await, ["high", "first", "second"]);
    // One that comes now is before what waited, if it is higher.
    enqueue(&mut connection, &job("urgent").priority(100)).await.unwrap();
    assert_eq!(kinds(&mut connection, 3).await, ["urgent", "low"]);
    run(&mut connection, "update postrider.job_waiting set run_at = now()").await;
    // Moved by one claim, brought by the next.
    assert_eq!(kinds(&mut connection, 3).await, Vec::<String>::new());
    assert_eq!(kinds(&mut connection, 3).await, ["later"]);
}

/// A producer that finds a key taken stands in nobody's way: neither of who finishes the job nor of others that find the same.
#[tokio::test]
async fn a_unique_key_that_is_taken_is_locked_by_nobody() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(
        &mut connection,
        "set lock_timeout = '5s'; select postrider.enqueue('sync', '{}', unique_key => 'u')",
    )
    .await;
    let mut producer = database.connect().await.unwrap();
    run(&mut producer, "begin; select postrider.enqueue('sync', '{}', unique_key => 'u')").await;
    run(&mut connection, "select postrider.enqueue('sync', '{}', unique_key => 'u')").await;
    assert_eq!(work_off(&mut connection).await, ["sync"]);
    run(&mut producer, "commit").await;
}

/// Whoever enqueues while the job that has the key is being finished gets a job of its own: that one may have looked before.
#[tokio::test]
async fn a_unique_key_that_is_being_given_back_is_waited_for() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "select postrider.enqueue('sync', '{}', unique_key => 'u')").await;
    let claimed = claim(&mut connection, 10).await;
    run(&mut connection, "begin").await;
    finish(&mut connection, claimed[0].0).await.unwrap();
    let mut producer = database.connect().await.unwrap();
    let enqueued = tokio::spawn(async move {
        one::<i64>(&mut producer, "select postrider.enqueue('sync', '{}', unique_key => 'u')").await
    });
    let mut watcher = database.connect().await.unwrap();
    until(
        &mut watcher,
        "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')",
    )
    .await;
    run(&mut connection, "commit").await;
    assert_ne!(enqueued.await.unwrap(), claimed[0].1);
    assert_eq!(work_off(&mut connection).await, ["sync"]);
}

#[tokio::test]
async fn a_unique_key_is_taken_until_the_job_has_ended_or_for_a_time() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let job = NewJob::new("sync", &()).unwrap().unique("customer 7");
    let first = enqueue(&mut connection, &job).await.unwrap();
    assert_eq!(enqueue(&mut connection, &job).await.unwrap(), first);
    let other = job.clone().queue("other");
    assert_ne!(enqueue(&mut connection, &other).await.unwrap(), first, "in another queue it is another");
    let claimed = claim(&mut connection, 10).await;
    assert_eq!(claimed.len(), 1);
    assert_eq!(enqueue(&mut connection, &job).await.unwrap(), first, "it runs");
    finish(&mut connection, claimed[0].0).await.unwrap();
    assert_ne!(enqueue(&mut connection, &job).await.unwrap(), first);

    let hour = NewJob::new("once", &()).unwrap().unique_for("event 1", std::time::Duration::from_hours(1));
    let once = enqueue(&mut connection, &hour).await.unwrap();
    work_off(&mut connection).await;
    assert_eq!(enqueue(&mut connection, &hour).await.unwrap(), once, "it has ended, the hour has not");
    run(
        &mut connection,
        "update postrider.job_unique set until = now() - interval '1 second' where until < 'infinity'",
    )
    .await;
    assert_ne!(enqueue(&mut connection, &hour).await.unwrap(), once);
    run(
        &mut connection,
        "update postrider.job_unique set until = now() - interval '1 second'; select postrider.tend_jobs()",
    )
    .await;
    assert_eq!(one::<i64>(&mut connection, "select count(*) from postrider.job_unique").await, 0);
}

/// Or more could come than are swept, and nobody would see it.
#[tokio::test]
async fn tending_says_when_more_unique_keys_have_run_out_than_it_sweeps_at_once() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(
        &mut connection,
        "insert into postrider.job_unique select 'default', n::text, n, now() - interval '1 second' from generate_series(1, 15000) n",
    )
    .await;
    assert_eq!(one::<i32>(&mut connection, "select postrider.tend_jobs()").await, 1);
    assert_eq!(one::<i32>(&mut connection, "select postrider.tend_jobs()").await, 0);
    assert_eq!(one::<i64>(&mut connection, "select count(*) from postrider.job_unique").await, 0);
}

/// Also of one that is cancelled: an event that is sent again must not bring back what somebody has taken out.
#[tokio::test]
async fn a_cancelled_job_keeps_its_unique_key_for_its_time() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let later = "run_at => now() + interval '1 hour'";
    for (place, is_told) in [(later, "cancelled"), ("run_at => null", "told")] {
        let call = format!(
            "select postrider.enqueue('once', '{{}}', {place}, unique_key => '{is_told}', unique_for => '1 hour')"
        );
        let mut again = async || -> i64 {
            let call = sqlx::AssertSqlSafe(call.clone());
            sqlx::query_scalar(call).fetch_one(&mut connection).await.unwrap()
        };
        let id = again().await;
        let cancelled: String = sqlx::query_scalar("select postrider.cancel_job($1)")
            .bind(id)
            .fetch_one(&mut database.connect().await.unwrap())
            .await
            .unwrap();
        assert_eq!(cancelled, is_told);
        assert_eq!(again().await, id);
        assert_eq!(work_off(&mut database.connect().await.unwrap()).await, [""; 0]);
        assert_eq!(again().await, id);
    }
    // Without a time, it is taken until the job has ended.
    let job = NewJob::new("sync", &())
        .unwrap()
        .unique("u")
        .run_at(OffsetDateTime::now_utc() + time::Duration::HOUR);
    let first = enqueue(&mut connection, &job).await.unwrap();
    sqlx::query("select postrider.cancel_job($1)").bind(first).execute(&mut connection).await.unwrap();
    assert_ne!(enqueue(&mut connection, &job).await.unwrap(), first);
}
