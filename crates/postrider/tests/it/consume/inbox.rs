//! `first_time`: true once, for the transaction that commits.

use std::time::Duration;

use postrider::inbox;
use postrider_testkit::{Database, Version};
use sqlx::{AssertSqlSafe, PgConnection};

use super::{consumer_role, drop_role, refusal};
use crate::support::{PATIENCE, database, database_of, run};

async fn first(connection: &mut PgConnection, id: &str) -> bool {
    inbox::first_time(connection, "c", id).await.unwrap()
}

/// Waits until somebody waits for a lock.
async fn until_blocked(database: &Database) {
    let mut connection = database.connect().await.unwrap();
    crate::faults::until(
        &mut connection,
        "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')",
    )
    .await;
}

#[tokio::test]
async fn a_consumer_has_an_event_once_on_every_version() {
    for version in Version::ALL {
        let database = database_of(version).await;
        let (role, mut app) = consumer_role(&database).await;
        assert!(first(&mut app, "x").await, "{version}");
        assert!(!first(&mut app, "x").await, "{version}");
        assert!(first(&mut app, "y").await, "{version}");
        assert!(inbox::first_time(&mut app, "d", "x").await.unwrap(), "{version}: another consumer");
        let id = "0195F3C2-6B1E-7D1A-9C39-0F2A4B5C6D7E";
        let once = format!(
            "select postrider.first_time('c', '{id}'::uuid) and not postrider.first_time('c', '{id}')"
        );
        let once: bool = sqlx::query_scalar(AssertSqlSafe(once)).fetch_one(&mut app).await.unwrap();
        assert!(once, "{version}: a uuid and its text are one id");
        run(&mut app, "begin").await;
        assert!(first(&mut app, "taken back").await);
        assert!(!first(&mut app, "taken back").await, "{version}: also inside one transaction");
        run(&mut app, "rollback").await;
        assert!(first(&mut app, "taken back").await, "{version}");
        for forbidden in
            ["select from postrider.inbox", "delete from postrider.inbox", "truncate postrider.inbox_0"]
        {
            assert_eq!(refusal(&mut app, forbidden).await[0], "42501", "{version}: {forbidden}");
        }
        drop(app);
        drop_role(&database, &role).await;
    }
}

/// The second waits for the first to end, and then gets the truth.
#[tokio::test]
async fn fault_106_two_at_once_wait_for_each_other() {
    for version in [Version::V14, Version::V18] {
        let database = database_of(version).await;
        for isolation in ["read committed", "repeatable read", "serializable"] {
            for end in ["commit", "rollback"] {
                let mut one = database.connect().await.unwrap();
                let mut two = database.connect().await.unwrap();
                let id = format!("{isolation} {end}");
                run(&mut one, "begin").await;
                assert!(first(&mut one, &id).await);
                let begin = format!("begin isolation level {isolation}; select count(*) from pg_class");
                sqlx::raw_sql(AssertSqlSafe(begin)).execute(&mut two).await.unwrap();
                let asking = tokio::spawn({
                    let id = id.clone();
                    async move { inbox::first_time(&mut two, "c", &id).await }
                });
                until_blocked(&database).await;
                run(&mut one, if end == "commit" { "commit" } else { "rollback" }).await;
                let answer = tokio::time::timeout(PATIENCE, asking).await.unwrap().unwrap();
                match (answer, end, isolation) {
                    (Ok(answer), "rollback", _) => assert!(answer, "{version}: {id}"),
                    (Ok(answer), _, "read committed") => assert!(!answer, "{version}: {id}"),
                    // Its snapshot is older than the other's commit: it has to begin again, like everything that comes too late there.
                    (Err(error), "commit", _) => assert!(error.is_transient(), "{version}: {id}: {error}"),
                    (answer, ..) => panic!("{version}: {id}: {answer:?}"),
                }
            }
        }
    }
}

/// Turns the ring as far as it goes by one step.
async fn turn(connection: &mut PgConnection) -> String {
    inbox::turn(connection, None).await.unwrap()
}

async fn turn_to(connection: &mut PgConnection, wanted: &str) {
    let start = std::time::Instant::now();
    loop {
        let step = turn(connection).await;
        if step == wanted {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "the inbox does not turn: {step}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn keep_nothing(connection: &mut PgConnection) {
    run(connection, "update postrider.inbox_ring set retention = '0'").await;
}

/// The one danger of a ring: a row that is not committed stands in a table that the next one does not write any more.
#[tokio::test]
async fn an_unfinished_row_is_met_across_the_turn_of_the_ring() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    keep_nothing(&mut admin).await;
    let mut one = database.connect().await.unwrap();
    let mut two = database.connect().await.unwrap();
    run(&mut one, "begin").await;
    assert!(first(&mut one, "x").await);
    assert_eq!(turn(&mut admin).await, "emptied");
    // It does not end before the first one does.
    for _ in 0..5 {
        assert_eq!(turn(&mut admin).await, "turning");
    }
    let asking = tokio::spawn(async move { inbox::first_time(&mut two, "c", "x").await });
    until_blocked(&database).await;
    run(&mut one, "commit").await;
    assert!(!tokio::time::timeout(PATIENCE, asking).await.unwrap().unwrap().unwrap(), "true twice");
    turn_to(&mut admin, "turned").await;
    assert!(!first(&mut one, "x").await, "the table before is asked, too");
}

/// Without the two tables of a turning ring the same interleaving gives true twice.
#[tokio::test]
async fn without_writing_both_tables_an_unfinished_row_is_missed() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let source: String =
        sqlx::query_scalar("select pg_get_functiondef('postrider.first_time(text, text)'::regprocedure)")
            .fetch_one(&mut admin)
            .await
            .unwrap();
    let mutant = source.replace("array[phase / 2 & 3, (phase + 1) / 2 & 3]", "array[(phase + 1) / 2 & 3]");
    assert_ne!(mutant, source);
    sqlx::raw_sql(AssertSqlSafe(mutant)).execute(&mut admin).await.unwrap();
    keep_nothing(&mut admin).await;
    let mut one = database.connect().await.unwrap();
    let mut two = database.connect().await.unwrap();
    run(&mut one, "begin").await;
    assert!(first(&mut one, "x").await);
    assert_eq!(turn(&mut admin).await, "emptied");
    assert!(first(&mut two, "x").await, "if not, this rule is not needed any more");
    run(&mut one, "commit").await;
}

/// What an old snapshot cannot see is found by trying to insert.
#[tokio::test]
async fn an_old_snapshot_does_not_get_true_again_behind_a_turned_ring() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let mut one = database.connect().await.unwrap();
    let mut two = database.connect().await.unwrap();
    keep_nothing(&mut admin).await;
    run(&mut two, "begin isolation level repeatable read; select count(*) from pg_class").await;
    assert!(first(&mut one, "x").await);
    turn_to(&mut admin, "turned").await;
    let error = inbox::first_time(&mut two, "c", "x").await.unwrap_err();
    assert!(error.is_transient(), "{error}");
}

/// An id is kept for the retention, and for as long as the log may send the event again.
#[tokio::test]
async fn ids_are_forgotten_with_whole_tables_and_not_too_early() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    assert!(first(&mut connection, "x").await);
    let days = |days: u64| Some(Duration::from_hours(24 * days));
    assert_eq!(inbox::turn(&mut connection, days(30)).await.unwrap(), "young");
    keep_nothing(&mut connection).await;
    run(&mut connection, "update postrider.inbox_slots set opened_at = now() - interval '29 days'").await;
    for _ in 0..4 {
        turn_to(&mut connection, "emptied").await;
        turn_to(&mut connection, "turned").await;
        if inbox::turn(&mut connection, days(30)).await.unwrap() == "young" {
            break;
        }
    }
    assert!(!first(&mut connection, "x").await, "the log keeps 30 days");
    assert_eq!(inbox::turn(&mut connection, Some(Duration::ZERO)).await.unwrap(), "emptied");
    for _ in 0..4 {
        turn_to(&mut connection, "turned").await;
        turn_to(&mut connection, "emptied").await;
    }
    assert!(first(&mut connection, "x").await);
}

/// Readers of all tables must not keep it from turning.
#[tokio::test]
async fn an_open_transaction_that_asked_does_not_hold_the_ring() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let mut open = database.connect().await.unwrap();
    keep_nothing(&mut admin).await;
    run(&mut open, "begin").await;
    assert!(first(&mut open, "x").await);
    assert_eq!(turn(&mut admin).await, "emptied");
}

#[tokio::test]
async fn bad_calls_of_the_inbox_are_refused_in_words() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    for (call, code, message) in [
        ("first_time(null, 'x')", "22004", "the consumer must not be null"),
        ("first_time('', 'x')", "22023", "the consumer must not be empty"),
        ("first_time(repeat('c', 256), 'x')", "54000", "the consumer must not be longer than 255 bytes"),
        ("first_time('c', null::text)", "22004", "the event id must not be null"),
        ("first_time('c', null::uuid)", "22004", "the event id must not be null"),
        ("first_time('c', '')", "22023", "the event id must not be empty"),
        ("first_time('c', repeat('x', 1025))", "54000", "the event id must not be longer than 1024 bytes"),
    ] {
        let [found, said, detail, hint] = refusal(&mut connection, &format!("select postrider.{call}")).await;
        assert_eq!(
            (found.as_str(), said.as_str()),
            (code, format!("postrider: {message}").as_str()),
            "{call}"
        );
        assert!(detail.ends_with("Nothing was written.") && !hint.is_empty(), "{call}: {detail} {hint}");
    }
}

/// Ten thousand ids in one transaction: no lock for each of them.
#[tokio::test]
async fn a_transaction_may_ask_for_many_ids() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "begin").await;
    let new: i64 = sqlx::query_scalar(
        "select count(*) filter (where postrider.first_time('c', 'many ' || i)) from generate_series(1, 10000) i",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert_eq!(new, 10_000);
    let locks: i64 = sqlx::query_scalar("select count(*) from pg_locks where pid = pg_backend_pid()")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert!(locks < 40, "{locks} locks");
    run(&mut connection, "commit").await;
}
