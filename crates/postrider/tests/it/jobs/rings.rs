//! The rings turn whatever lies in them and whoever reads them.

use postrider::jobs::admin;
use sqlx::Connection as _;

use super::{claim, finish, kinds, one, until, work_off};
use crate::support::{database, run};

/// One job in a slot that nobody works on keeps the whole ring from turning, unless it is moved aside.
#[tokio::test]
async fn jobs_that_nobody_works_on_do_not_stop_the_ring() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    for _ in 0..20 {
        run(
            &mut connection,
            "select postrider.enqueue('left', '{}', queue => 'nobodys', priority => n) from generate_series(0, 1) n;
             select postrider.enqueue('a', '{}') from generate_series(1, 100)",
        )
        .await;
        assert_eq!(work_off(&mut connection).await.len(), 100);
        for _ in 0..3 {
            run(&mut connection, "select postrider.tend_jobs(8192, 8192, '0 seconds')").await;
        }
    }
    let turned: i64 = one(&mut connection, "select last_value from postrider.job_slot").await;
    assert!(turned >= 15, "it turned {turned} times");
    let slots: i64 = one(
        &mut connection,
        "select sum(pg_relation_size(c.oid))::bigint from pg_class c where c.relname ~ '^jobs_[0-7]$'",
    )
    .await;
    assert!(slots < 8 * 8 * 8192, "{slots} bytes");
    // Nothing is lost, no attempt either, and high priorities are first.
    let mut seen = Vec::new();
    loop {
        let claimed: Vec<(i64, i64, i16, i16)> =
            sqlx::query_as("select claim, id, priority, attempt from postrider.claim_jobs('nobodys', 1000)")
                .fetch_all(&mut connection)
                .await
                .unwrap();
        if claimed.is_empty() && !seen.is_empty() {
            break;
        }
        let claims: std::collections::BTreeSet<i64> = claimed.iter().map(|job| job.0).collect();
        for number in claims {
            finish(&mut connection, number).await.unwrap();
        }
        assert!(claimed.is_sorted_by_key(|job| -job.2), "{claimed:?}");
        seen.extend(claimed);
    }
    assert_eq!(seen.len(), 40);
    assert!(seen.iter().all(|job| job.3 == 1), "{seen:?}");
    let mut ids: Vec<i64> = seen.iter().map(|job| job.1).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 40);
}

/// A queue that is worked on has a backlog, not jobs that linger: they stay where they are, in their order.
#[tokio::test]
async fn a_backlog_is_left_in_its_order() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "select postrider.enqueue(n::text, '{}') from generate_series(1, 2000) n").await;
    let mut seen = Vec::new();
    while seen.len() < 2000 {
        seen.extend(work_off_some(&mut connection).await);
        run(&mut connection, "select postrider.tend_jobs(8192, 8192)").await;
        assert_eq!(one::<i64>(&mut connection, "select count(*) from postrider.job_waiting").await, 0);
    }
    let expected: Vec<String> = (1..=2000).map(|n: i32| n.to_string()).collect();
    assert_eq!(seen, expected);
}

async fn work_off_some(connection: &mut sqlx::PgConnection) -> Vec<String> {
    let claimed = claim(connection, 100).await;
    finish(connection, claimed[0].0).await.unwrap();
    claimed.into_iter().map(|job| job.2).collect()
}

/// A queue with nothing in the ring costs nothing when the ring turns, and what comes later is found, once.
#[tokio::test]
async fn cursors_of_queues_with_nothing_in_the_ring_are_forgotten() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    for round in 1..=3_i64 {
        run(
            &mut connection,
            "select postrider.enqueue('a', '{}', queue => 'queue ' || n) from generate_series(1, 30) n",
        )
        .await;
        let claims: Vec<i64> = sqlx::query_scalar(
            "select c.claim from generate_series(1, 30) n, postrider.claim_jobs('queue ' || n) c",
        )
        .fetch_all(&mut connection)
        .await
        .unwrap();
        assert_eq!(claims.len(), 30, "round {round}");
        for number in claims {
            finish(&mut connection, number).await.unwrap();
        }
        until(&mut connection, "select postrider.tend_jobs(1, 1) = 0").await;
        assert_eq!(one::<i64>(&mut connection, "select count(*) from postrider.job_claims where slot <> (select last_value & 3 from postrider.job_claim_slot)").await, 0);
    }
    assert_eq!(one::<i64>(&mut connection, "select count(*) from postrider.job_claims").await, 0);
    assert_eq!(one::<i64>(&mut connection, "select count(distinct id) from postrider.job_results").await, 90);
}

/// Beside a reader that takes long, nobody is made to wait: no lock is asked for that would be queued for.
#[tokio::test(flavor = "multi_thread")]
async fn beside_a_long_reader_nobody_waits_for_the_tending() {
    let database = database().await;
    let (mut connection, mut reader, mut watcher) = (
        database.connect().await.unwrap(),
        database.connect().await.unwrap(),
        database.connect().await.unwrap(),
    );
    for _ in 0..3 {
        run(&mut connection, "select postrider.enqueue('a', '{}') from generate_series(1, 100)").await;
        work_off(&mut connection).await;
        run(&mut connection, "select setval('postrider.job_slot', coalesce(pg_sequence_last_value('postrider.job_slot'), 0) + 1)").await;
    }
    let mut reading = reader.begin_with("begin isolation level repeatable read").await.unwrap();
    run(&mut reading, "select count(*) from postrider.jobs; select count(*) from postrider.job_claims").await;
    let tending = tokio::spawn(async move {
        for _ in 0..10 {
            assert_eq!(one::<i32>(&mut connection, "select postrider.tend_jobs(8192, 1)").await, 0);
        }
        connection
    });
    let mut waited = 0;
    while !tending.is_finished() {
        waited += one::<i64>(
            &mut watcher,
            "select count(*) from pg_locks l join pg_database d on d.oid = l.database
             where d.datname = current_database() and l.mode = 'AccessExclusiveLock' and not l.granted",
        )
        .await;
    }
    let mut connection = tending.await.unwrap();
    assert_eq!(waited, 0, "a lock was waited for, and everybody behind it");
    reading.rollback().await.unwrap();
    until(&mut connection, "select postrider.tend_jobs(8192, 1) = 0 and (select sum(pg_relation_size(c.oid)) = 0 from pg_class c where c.relname in ('jobs_0', 'jobs_1', 'jobs_2'))").await;
    assert!(kinds(&mut connection, 10).await.is_empty());
}

/// Transactions that end are waited for: a queue that always has one open is tended all the same.
#[tokio::test(flavor = "multi_thread")]
async fn beside_short_transactions_the_ring_turns() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "select postrider.enqueue('a', '{}') from generate_series(1, 100)").await;
    work_off(&mut connection).await;
    run(&mut connection, "select setval('postrider.job_slot', 1)").await;
    let mut readers = tokio::task::JoinSet::new();
    // So many that one of them always holds it.
    for _ in 0..8 {
        let mut reader = database.connect().await.unwrap();
        readers.spawn(async move {
            loop {
                run(
                    &mut reader,
                    "begin; lock table postrider.jobs in access share mode; select pg_sleep(0.01); commit",
                )
                .await;
            }
        });
    }
    until(&mut connection, "select postrider.tend_jobs() >= 0 and pg_relation_size('postrider.jobs_0') = 0")
        .await;
    readers.abort_all();
}

/// Whoever tends until there is nothing more to do comes to an end, and nothing is kept, however a job ends.
#[tokio::test]
async fn where_no_results_are_kept_tending_comes_to_an_end() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(
        &mut connection,
        "select postrider.set_queue('default', keep_results => '0');
         select postrider.enqueue('done', '{}'), postrider.enqueue('cancelled', '{}', run_at => now() + interval '1 hour')",
    )
    .await;
    assert_eq!(work_off(&mut connection).await, ["done"]);
    assert_eq!(one::<String>(&mut connection, "select postrider.cancel_job(2)").await, "cancelled");
    assert_eq!(one::<i64>(&mut connection, "select count(*) from postrider.job_results").await, 0);
    let mut emptied = 0;
    while one::<i32>(&mut connection, "select postrider.tend_jobs()").await > 0 {
        emptied += 1;
        assert!(emptied < 16, "it never ends");
    }
    // What is there from before goes.
    run(
        &mut connection,
        "insert into postrider.job_results (slot, id, queue, kind, state, attempt, created_at) values (3, 7, 'default', 'old', 'done', 1, now())",
    )
    .await;
    until(&mut connection, "select postrider.tend_jobs() = 0").await;
    assert_eq!(one::<i64>(&mut connection, "select count(*) from postrider.job_results").await, 0);
}

#[tokio::test]
async fn a_running_job_is_shown_whole_when_its_slot_was_emptied() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, r#"select postrider.enqueue('long', '{"to": 7}', max_attempts => 3)"#).await;
    assert_eq!(kinds(&mut connection, 10).await, ["long"]);
    assert_eq!(one::<i32>(&mut connection, "select postrider.tend_jobs(1, 1)").await, 1);
    assert_eq!(one::<i64>(&mut connection, "select count(*) from postrider.jobs").await, 0);
    let shown = admin::show(&mut connection, 1).await.unwrap().unwrap();
    assert_eq!((shown.listed.state.as_str(), shown.max_attempts), ("running", Some(3)));
    assert_eq!(shown.payload.as_deref(), Some(r#"{"to": 7}"#));
}
