//! What is said of jobs when they are finished: what is not understood is refused, and so is what was said before.

use std::time::Duration;

use sqlx::Connection as _;

use super::{claim, finish, one};
use crate::support::{PATIENCE, database, run};

#[tokio::test]
async fn outcomes_that_are_not_understood_are_refused() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "select postrider.enqueue('a', '{}') from generate_series(1, 3)").await;
    claim(&mut connection, 10).await;
    for (call, said) in [
        (r#"finish_jobs(1, '[{"id": 1, "eror": "boom"}]')"#, r#"has the word "eror""#),
        (r#"finish_jobs(1, '[{"id": 1, "state": "failed"}]')"#, r#"has the word "state""#),
        (r#"finish_jobs(1, '[{"id": 1, "dead": true}]')"#, "belong to an"),
        (r#"finish_jobs(1, '[{"id": 1, "retry_in": 5}]')"#, "belong to an"),
        (r#"finish_jobs(1, '[{"id": 1, "error": null}]')"#, r#"a JSON null for "error""#),
        (r#"finish_jobs(1, '[{"id": 1, "snooze": "1 hour"}]')"#, r#"a JSON string for "snooze""#),
        (r#"finish_jobs(1, '[{"id": 1, "error": "a", "snooze": 1}]')"#, "more than one of"),
        (r#"finish_jobs(1, '[{"id": 1, "error": "a", "error": "b"}]')"#, "something twice"),
        (r#"finish_jobs(1, '[{"error": "boom"}]')"#, "names no job"),
        (r#"finish_jobs(1, '[{"id": null, "error": "boom"}]')"#, "names no job"),
        (r#"finish_jobs(1, '["failed"]')"#, "is not an object"),
        (r#"finish_jobs(1, '{"id": 1, "error": "boom"}')"#, "a JSON object"),
        (r#"finish_jobs(1, '[{"id": 1, "error": "a"}, {"id": 1, "error": "b"}]')"#, "Job 1 is named twice"),
        (r#"finish_jobs(1, '[{"id": 1, "error": "a"}]', done => array[1])"#, "Job 1 is named twice"),
        (r#"finish_jobs(1, '[{"id": 77, "error": "a"}]')"#, "job 77 is not one of claim 1"),
        ("finish_jobs(1, done => array[1, 77])", "job 77 is not one of claim 1"),
        (r#"finish_jobs(1, '[{"id": 1, "error": "a"}]', done => '{null}')"#, r#"A job in "done" is null"#),
        ("finish_jobs(1, done => array[1, null])", r#"A job in "done" is null"#),
        // They would be done, which is not what anybody means by it.
        (r#"finish_jobs(1, '[{"id": 1, "cancelled": false}]')"#, r#"has "cancelled": false"#),
        (r#"finish_jobs(1, '[{"id": 1, "untouched": false}]')"#, r#"has "untouched": false"#),
        // In the year 33715, which few programs can read; beyond the server's times; and beyond its numbers.
        (r#"finish_jobs(1, '[{"id": 1, "snooze": 1e12}]')"#, r#"has a "snooze" beyond 100 years"#),
        (r#"finish_jobs(1, '[{"id": 1, "snooze": -1e12}]')"#, r#"has a "snooze" beyond 100 years"#),
        (r#"finish_jobs(1, '[{"id": 1, "snooze": 1e300}]')"#, r#"has a "snooze" beyond 100 years"#),
        (r#"finish_jobs(1, '[{"id": 1, "snooze": 1E+999999}]')"#, r#"has a "snooze" beyond 100 years"#),
        (
            r#"finish_jobs(1, '[{"id": 1, "error": "a", "retry_in": 1e18}]')"#,
            r#"has a "retry_in" beyond 100 years"#,
        ),
    ] {
        let statement = sqlx::AssertSqlSafe(format!("select postrider.{call}"));
        let error = sqlx::query(statement).execute(&mut connection).await.expect_err(call);
        let said_of = error.as_database_error().unwrap().downcast_ref::<sqlx::postgres::PgDatabaseError>();
        assert_eq!(said_of.code(), "22023", "{call}: {error}");
        let words = format!("{} {}", said_of.message(), said_of.detail().unwrap_or_default());
        assert!(words.contains(said), "{call}: {words}");
        assert!(said_of.hint().is_some(), "{call}");
    }
    assert_eq!(
        one::<i64>(&mut connection, "select count(*) from postrider.list_running_jobs()").await,
        3,
        "nothing was finished"
    );
    // The longest pause that a worker says.
    run(&mut connection, r#"select postrider.finish_jobs(1, '[{"id": 1, "snooze": 3153600000.0}]')"#).await;
}

/// Of two that finish parts of a claim which overlap, the second waits for the first, and is refused with all it did, if that commits.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_that_finish_the_same_job_one_is_refused() {
    for commits in [true, false] {
        let database = database().await;
        let (mut first, mut second) = (database.connect().await.unwrap(), database.connect().await.unwrap());
        run(&mut first, "select postrider.enqueue('a', '{}') from generate_series(1, 3)").await;
        claim(&mut first, 10).await;
        let mut tx = first.begin().await.unwrap();
        run(&mut tx, "select postrider.finish_jobs(1, done => array[1, 2])").await;
        let other = tokio::spawn(async move {
            let call = r#"select postrider.finish_jobs(1, '[{"id": 3, "error": "boom"}]', done => array[2])"#;
            let said = sqlx::query(call).execute(&mut second).await;
            (second, said)
        });
        let waiting = "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')";
        let waits = async {
            while !one::<bool>(&mut tx, waiting).await && !other.is_finished() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waits).await.expect("it neither waits nor ends");
        if commits {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        let (mut second, said) = other.await.unwrap();
        let ends: Vec<i64> = sqlx::query_scalar("select id from postrider.job_results order by id")
            .fetch_all(&mut second)
            .await
            .unwrap();
        if commits {
            let refused = said.expect_err("both succeeded");
            assert!(refused.to_string().contains("is finished already"), "{refused}");
            assert_eq!(ends, [1, 2]);
            assert_eq!(
                one::<i64>(&mut second, "select count(*) from postrider.job_waiting").await,
                0,
                "nothing of it is left"
            );
        } else {
            said.unwrap();
            assert_eq!(ends, [2]);
        }
        finish(&mut second, 1).await.unwrap();
        assert_eq!(
            one::<i64>(&mut second, "select count(*) - count(distinct id) from postrider.job_results").await,
            0
        );
    }
}

/// Whatever the first pause is: doubled thirty times, it may be more than the server's intervals hold.
#[tokio::test]
async fn the_longest_pause_is_never_exceeded_by_doubling() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    for question in [
        "select postrider.job_backoff(31, '3 days', '30 days') between interval '24 days' and interval '36 days'",
        "select postrider.job_backoff(1000, '100 years', '100 years') between interval '700000 hours' and interval '1060000 hours'",
        "select postrider.job_backoff(3, '1 second', '1 hour') between interval '3.2 seconds' and interval '4.8 seconds'",
    ] {
        assert!(one::<bool>(&mut connection, question).await, "{question}");
    }
}

/// What went wrong before a person retried a dead job is told with what goes wrong next.
#[tokio::test]
async fn a_retried_job_keeps_its_history() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    for statement in [
        "select postrider.enqueue('a', '{}', max_attempts => 1)",
        "select count(*) from postrider.claim_jobs()",
        r#"select postrider.finish_jobs(1, '[{"id": 1, "error": "first"}]')"#,
        "select postrider.retry_job(1)",
        "select count(*) from postrider.claim_jobs()",
        "select count(*) from postrider.claim_jobs()",
        r#"select postrider.finish_jobs(2, '[{"id": 1, "error": "second"}]')"#,
    ] {
        run(&mut connection, statement).await;
    }
    let said: Vec<String> = one(
        &mut connection,
        "select array(select h ->> 'error' from jsonb_array_elements(history) h) from postrider.job_waiting where state = 'dead'",
    )
    .await;
    assert_eq!(said, ["first", "second"]);
}

/// More than a value of the server may hold, in one claim: it is handed out in parts.
#[tokio::test]
async fn a_claim_is_bounded_by_bytes() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    // Incompressible ones of 1 MB, and one that is larger than the bound by itself.
    run(
        &mut connection,
        "create function random_text(kilobytes integer) returns json language sql volatile as
             $$ select to_json(string_agg(md5(random()::text || n), '')) from generate_series(1, kilobytes * 32) n $$;
         select postrider.enqueue('large', random_text(1024)) from generate_series(1, 40);
         select postrider.enqueue('huge', random_text(20000), priority => -1); select postrider.enqueue('small', '{}', priority => -1)",
    )
    .await;
    let mut sizes = Vec::new();
    loop {
        let (jobs, bytes, claims): (i64, i64, Vec<i64>) = sqlx::query_as(
            "select count(*), coalesce(sum(octet_length(payload::text)), 0), coalesce(array_agg(distinct claim), '{}') from postrider.claim_jobs(most => 1000)",
        )
        .fetch_one(&mut connection)
        .await
        .unwrap();
        if jobs == 0 {
            break;
        }
        for number in claims {
            finish(&mut connection, number).await.unwrap();
        }
        sizes.push((jobs, bytes));
    }
    assert_eq!(sizes.iter().map(|(jobs, _)| jobs).sum::<i64>(), 42, "{sizes:?}");
    assert!(sizes.iter().all(|(_, bytes)| *bytes < 38_000_000), "{sizes:?}");
    assert!(sizes.len() >= 4, "{sizes:?}");
}
