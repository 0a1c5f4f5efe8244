//! Claims at the level of SQL: scripted interleavings, and the same scripts with the rule taken out.

use sqlx::{Connection as _, PgConnection};

use super::{claim, finish, kinds, one, until, work_off};
use crate::support::{database, run};

async fn enqueue(connection: &mut PgConnection, kind: &str) -> i64 {
    sqlx::query_scalar("select postrider.enqueue($1, '{}')").bind(kind).fetch_one(connection).await.unwrap()
}

/// A transaction that enqueued first and commits last is found then, and nobody has waited for it.
#[tokio::test]
async fn a_slow_transaction_delays_only_its_own_job() {
    let database = database().await;
    let (mut slow, mut fast, mut worker) = (
        database.connect().await.unwrap(),
        database.connect().await.unwrap(),
        database.connect().await.unwrap(),
    );
    let mut open = slow.begin().await.unwrap();
    enqueue(&mut open, "slow").await;
    enqueue(&mut fast, "one").await;
    assert_eq!(kinds(&mut worker, 10).await, ["one"]);
    enqueue(&mut fast, "two").await;
    assert_eq!(kinds(&mut worker, 10).await, ["two"]);
    assert_eq!(kinds(&mut worker, 10).await, Vec::<String>::new());
    enqueue(&mut open, "slow too").await;
    open.commit().await.unwrap();
    assert_eq!(kinds(&mut worker, 1).await, ["slow"]);
    enqueue(&mut fast, "three").await;
    assert_eq!(kinds(&mut worker, 10).await, ["slow too"]);
    assert_eq!(kinds(&mut worker, 10).await, ["three"]);
}

/// Whoever claims and enqueues in one transaction has an xid that no snapshot lists.
#[tokio::test]
async fn a_job_enqueued_after_claiming_in_the_same_transaction_is_found() {
    async fn brought(takes_itself_out: bool) -> Vec<String> {
        let database = database().await;
        let (mut connection, mut other) =
            (database.connect().await.unwrap(), database.connect().await.unwrap());
        if !takes_itself_out {
            run(
                &mut connection,
                "create or replace function postrider.job_horizon() returns pg_snapshot language sql as 'select pg_current_snapshot()'",
            )
            .await;
        }
        enqueue(&mut connection, "first").await;
        let mut tx = connection.begin().await.unwrap();
        run(&mut tx, "select pg_current_xact_id()").await;
        // A younger transaction ends meanwhile, so ours is below the snapshot's end.
        enqueue(&mut other, "between").await;
        assert_eq!(kinds(&mut tx, 10).await, ["first", "between"]);
        enqueue(&mut tx, "follow-up").await;
        tx.commit().await.unwrap();
        kinds(&mut other, 10).await
    }
    assert_eq!(brought(true).await, ["follow-up"]);
    assert_eq!(brought(false).await, Vec::<String>::new(), "without the rule it should be lost");
}

/// The fencing token: of the late worker and the one who took over, only one is heard.
#[tokio::test]
async fn a_late_result_is_refused_and_its_effect_rolled_back() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "create table effects (job bigint)").await;
    let id = enqueue(&mut connection, "slow").await;
    let late = claim(&mut connection, 1).await[0].0;
    run(&mut connection, "update postrider.job_claims set expires_at = now() - interval '1 second'").await;
    assert_eq!(one::<i32>(&mut connection, "select postrider.reap_jobs()").await, 1);

    let mut tx = connection.begin().await.unwrap();
    sqlx::query("insert into effects values ($1)").bind(id).execute(&mut *tx).await.unwrap();
    let refused = finish(&mut tx, late).await.unwrap_err();
    assert!(refused.to_string().contains("is not held any more"), "{refused}");
    tx.rollback().await.unwrap();

    claim(&mut connection, 1).await;
    let again = claim(&mut connection, 1).await;
    assert_eq!(again[0].1, id);
    let mut tx = connection.begin().await.unwrap();
    sqlx::query("insert into effects values ($1)").bind(id).execute(&mut *tx).await.unwrap();
    finish(&mut tx, again[0].0).await.unwrap();
    tx.commit().await.unwrap();
    assert!(finish(&mut connection, again[0].0).await.is_err(), "a second time");
    assert_eq!(one::<i64>(&mut connection, "select count(*) from effects").await, 1);
}

/// While a worker's transaction finishes a job, nobody takes it over; if that is rolled back, somebody does.
#[tokio::test]
async fn a_job_that_is_being_finished_is_not_taken_over() {
    let database = database().await;
    let (mut worker, mut reaper) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    let id = enqueue(&mut worker, "a").await;
    let number = claim(&mut worker, 1).await[0].0;
    run(&mut worker, "update postrider.job_claims set expires_at = now() - interval '1 second'").await;
    for commits in [false, true] {
        let mut tx = worker.begin().await.unwrap();
        sqlx::query("select postrider.finish_jobs($1, done => array[$2])")
            .bind(number)
            .bind(id)
            .execute(&mut *tx)
            .await
            .unwrap();
        assert_eq!(one::<i32>(&mut reaper, "select postrider.reap_jobs()").await, 0);
        if commits { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
    }
    // It is all done, so there is nothing to take over, and the claim is closed.
    assert_eq!(one::<i32>(&mut reaper, "select postrider.reap_jobs()").await, 0);
    assert!(one::<bool>(&mut reaper, "select bool_or(job = 0) from postrider.job_settled").await);
    assert_eq!(one::<i64>(&mut reaper, "select count(*) from postrider.job_waiting").await, 0);
}

/// Jobs of a key, one at a time, in order; of different keys side by side.
#[tokio::test]
async fn jobs_of_a_key_wait_for_each_other() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "select postrider.enqueue(k || n, '{}', key => k) from generate_series(1, 2) n, unnest(array['a', 'b']) k order by n, k").await;
    kinds(&mut connection, 10).await;
    let first = claim(&mut connection, 10).await;
    let names: Vec<&str> = first.iter().map(|job| job.2.as_str()).collect();
    assert_eq!(names, ["a1", "b1"]);
    // A failure keeps its place: the second one waits for the next attempt too.
    let outcome = format!("[{{\"id\": {}, \"error\": \"boom\", \"retry_in\": 0}}]", first[0].1);
    sqlx::query("select postrider.finish_jobs($1, $2::text::json)")
        .bind(first[0].0)
        .bind(outcome)
        .execute(&mut connection)
        .await
        .unwrap();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.extend(work_off(&mut connection).await);
    }
    let place = |name| seen.iter().position(|kind| kind == name).unwrap();
    assert!(place("a1") < place("a2") && seen.contains(&"b2".to_owned()), "{seen:?}");
}

/// A claim that comes upon a job which is just being cancelled neither waits for that nor takes its key, which nobody would give back.
#[tokio::test]
async fn a_key_stays_free_while_its_next_job_is_being_cancelled() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(
        &mut connection,
        "set lock_timeout = '10s';
         select postrider.enqueue('first', '{}', key => 'k'), postrider.enqueue('second', '{}', key => 'k')",
    )
    .await;
    let mut canceller = database.connect().await.unwrap();
    run(&mut canceller, "begin; select postrider.cancel_job(1)").await;
    assert!(kinds(&mut connection, 10).await.is_empty());
    run(&mut canceller, "commit").await;
    until(&mut connection, "select exists (select from postrider.claim_jobs() where kind = 'second')").await;
}

/// Nobody hears of such a claim, so nobody would ever close it.
#[tokio::test]
async fn a_claim_of_nothing_but_cancelled_jobs_is_closed() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "select postrider.enqueue('one', '{}'), postrider.enqueue('two', '{}')").await;
    run(&mut connection, "select postrider.cancel_job(1), postrider.cancel_job(2)").await;
    assert!(kinds(&mut connection, 10).await.is_empty());
    assert_eq!(
        one::<i64>(
            &mut connection,
            "select count(*) from postrider.job_claims c
             where not exists (select from postrider.job_settled s where s.claim = c.claim and s.job = 0)"
        )
        .await,
        0
    );
    assert_eq!(
        one::<i64>(&mut connection, "select count(*) from postrider.job_results where state = 'cancelled'")
            .await,
        2
    );
}

#[tokio::test]
async fn what_waits_can_be_cancelled_and_what_is_dead_retried() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "select postrider.enqueue('later', '{}', run_at => now() + interval '1 hour'), postrider.enqueue('ready', '{}'), postrider.enqueue('dies', '{}', max_attempts => 1)").await;
    assert_eq!(
        one::<Option<String>>(&mut connection, "select postrider.cancel_job(1)").await.as_deref(),
        Some("cancelled")
    );
    assert_eq!(
        one::<Option<String>>(&mut connection, "select postrider.cancel_job(2)").await.as_deref(),
        Some("told")
    );
    assert_eq!(one::<Option<String>>(&mut connection, "select postrider.cancel_job(99)").await, None);
    let claimed = claim(&mut connection, 10).await;
    assert_eq!(claimed.len(), 1, "the cancelled one is not handed out: {claimed:?}");
    sqlx::query("select postrider.finish_jobs($1, '[{\"id\": 3, \"error\": \"boom\"}]')")
        .bind(claimed[0].0)
        .execute(&mut connection)
        .await
        .unwrap();
    assert_eq!(
        one::<String>(&mut connection, "select state from postrider.job_waiting where id = 3").await,
        "dead"
    );
    assert_eq!(
        one::<Option<String>>(&mut connection, "select postrider.retry_job(3)").await.as_deref(),
        Some("dead")
    );
    claim(&mut connection, 10).await;
    let again = claim(&mut connection, 10).await;
    assert_eq!(again.len(), 1);
    finish(&mut connection, again[0].0).await.unwrap();
    let states: Vec<(i64, String)> =
        sqlx::query_as("select id, state from postrider.job_results order by id")
            .fetch_all(&mut connection)
            .await
            .unwrap();
    assert_eq!(states, [(1, "cancelled".to_owned()), (2, "cancelled".to_owned()), (3, "done".to_owned())]);
}

/// With a snapshot of before, a job that another worker has ended could be ended again, and a slot be emptied in which a new one stands.
#[tokio::test]
async fn only_read_committed_transactions_change_jobs() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    enqueue(&mut connection, "a").await;
    claim(&mut connection, 10).await;
    for level in ["repeatable read", "serializable"] {
        for call in
            ["claim_jobs()", "finish_jobs(1)", "finish_jobs(1, done => '{1}')", "reap_jobs()", "tend_jobs()"]
        {
            let begin = sqlx::AssertSqlSafe(format!("begin isolation level {level}"));
            sqlx::raw_sql(begin).execute(&mut connection).await.unwrap();
            let statement = sqlx::AssertSqlSafe(format!("select postrider.{call}"));
            let error = sqlx::query(statement).execute(&mut connection).await.unwrap_err();
            let said = error.as_database_error().unwrap();
            assert_eq!(said.code().as_deref(), Some("25000"), "{call}: {said}");
            assert!(said.message().contains(level), "{call}: {said}");
            run(&mut connection, "rollback").await;
        }
    }
    finish(&mut connection, 1).await.unwrap();
}

/// However long it waits for its turn.
#[tokio::test]
async fn what_was_cancelled_is_not_begun_a_day_later() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    enqueue(&mut connection, "a").await;
    run(
        &mut connection,
        "select postrider.pause_queue('default'), postrider.cancel_job(1);
         update postrider.job_cancelled set cancelled_at = now() - interval '25 hours';
         select postrider.tend_jobs(); select postrider.pause_queue('default', false)",
    )
    .await;
    assert_eq!(claim(&mut connection, 10).await, []);
    run(
        &mut connection,
        "insert into postrider.job_cancelled values (77, now() - interval '25 hours'); select postrider.tend_jobs()",
    )
    .await;
    assert_eq!(
        one::<i64>(&mut connection, "select count(*) from postrider.job_cancelled").await,
        0,
        "of nobody"
    );
}

#[tokio::test]
async fn a_paused_queue_gives_nothing_and_goes_on_afterwards() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    enqueue(&mut connection, "a").await;
    assert!(one::<bool>(&mut connection, "select postrider.pause_queue('default')").await);
    assert!(
        !one::<bool>(&mut connection, "select postrider.pause_queue('default')").await,
        "it is paused already"
    );
    assert_eq!(claim(&mut connection, 10).await, []);
    run(
        &mut connection,
        "insert into postrider.job_waiting (id, queue, priority, kind, max_attempts, payload, state, run_at)
         values (99, 'default', 0, 'due', 1, '{}', 'scheduled', now() - interval '1 second')",
    )
    .await;
    let due = "select postrider.next_job_at(array['default'])";
    assert_eq!(one::<Option<f64>>(&mut connection, due).await, None, "a worker would look over and over");
    run(&mut connection, "delete from postrider.job_waiting").await;
    assert!(one::<bool>(&mut connection, "select postrider.pause_queue('default', false)").await);
    assert_eq!(claim(&mut connection, 10).await.len(), 1);
}

/// After a dump into a younger cluster the cursors are beyond every transaction: claiming refuses, and mending loses nothing.
#[tokio::test]
async fn fault_restored_into_a_younger_cluster_is_refused_and_mended() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "select postrider.enqueue('job ' || n, '{}') from generate_series(1, 9) n").await;
    let done = claim(&mut connection, 3).await;
    finish(&mut connection, done[0].0).await.unwrap();
    claim(&mut connection, 3).await;
    // As if everything had been written a million transactions later.
    run(
        &mut connection,
        "update postrider.jobs set xid = (xid::text::bigint + 1000000)::text::xid8;
         update postrider.job_claims set target = format('%1$s:%1$s:', pg_snapshot_xmax(target)::text::bigint + 1000000)::pg_snapshot,
             upto_xid = (upto_xid::text::bigint + 1000000)::text::xid8,
             after_xid = case when after_id > 0 then (after_xid::text::bigint + 1000000)::text::xid8 else after_xid end",
    )
    .await;
    let refused = sqlx::query("select postrider.claim_jobs()").execute(&mut connection).await.unwrap_err();
    assert!(refused.to_string().contains("restored into another cluster"), "{refused}");
    assert_eq!(one::<i64>(&mut connection, "select postrider.rebase_jobs()").await, 6, "three were done");
    claim(&mut connection, 10).await;
    assert_eq!(claim(&mut connection, 10).await.len(), 6);
}

/// The same for a queue of which nothing was ever claimed: it has no cursor, and its jobs would only be invisible. What is enqueued afterwards must not
/// make it look well.
#[tokio::test]
async fn fault_restored_before_anything_was_claimed_is_refused_and_mended() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(
        &mut connection,
        "select postrider.enqueue('old ' || n, '{}') from generate_series(1, 5) n;
         update postrider.jobs set xid = (xid::text::bigint + 1000000)::text::xid8",
    )
    .await;
    enqueue(&mut connection, "new").await;
    let refused = sqlx::query("select postrider.claim_jobs()").execute(&mut connection).await.unwrap_err();
    assert!(refused.to_string().contains("restored into another cluster"), "{refused}");
    assert_eq!(one::<i64>(&mut connection, "select postrider.rebase_jobs()").await, 6);
    claim(&mut connection, 10).await;
    assert_eq!(claim(&mut connection, 10).await.len(), 6);
    // What a transaction has enqueued itself is beyond its snapshot, too, and is no such sign.
    let mut tx = connection.begin().await.unwrap();
    enqueue(&mut tx, "own").await;
    claim(&mut tx, 10).await;
    tx.commit().await.unwrap();
    assert_eq!(kinds(&mut connection, 10).await, ["own"]);
}

/// Slots are emptied only when every job in them has been claimed; jobs of open claims are kept.
#[tokio::test]
async fn the_rings_turn_and_nothing_is_lost_by_it() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let mut open = Vec::new();
    for round in 0..40 {
        run(&mut connection, "select postrider.enqueue('a', '{}') from generate_series(1, 20)").await;
        let claimed = claim(&mut connection, 15).await;
        if round % 3 == 0 {
            open.push(claimed[0].0);
        } else {
            finish(&mut connection, claimed[0].0).await.unwrap();
        }
        run(&mut connection, "select postrider.tend_jobs(8192, 8192)").await;
    }
    loop {
        let claimed = claim(&mut connection, 100).await;
        if claimed.is_empty() {
            break;
        }
        finish(&mut connection, claimed[0].0).await.unwrap();
        run(&mut connection, "select postrider.tend_jobs(8192, 8192)").await;
    }
    for number in open {
        finish(&mut connection, number).await.unwrap();
    }
    let (jobs, different): (i64, i64) =
        sqlx::query_as("select count(*), count(distinct id) from postrider.job_results")
            .fetch_one(&mut connection)
            .await
            .unwrap();
    assert_eq!((jobs, different), (800, 800));
    until(&mut connection, "select postrider.tend_jobs(1, 1) = 0").await;
    assert!(
        one::<i64>(&mut connection, "select count(*) from postrider.job_claims").await <= 1,
        "no more than the newest cursor is carried along"
    );
}
