//! `next_batch` and `finish_batch`: the cursor moves in the transaction of the effect.

use std::time::{Duration, Instant};

use postrider::log::rebase::{self, Alive};
use postrider::log::{Error, Reader};
use postrider_testkit::{Database, Version};
use sqlx::{AssertSqlSafe, Connection as _};

use super::{consumer_role, drain, drop_role, fetch, finish, refusal, subscribe};
use crate::support::{
    PATIENCE, database, database_of, database_with_one_lane, database_with_one_lane_on, emit, options,
    reading, run, undisturbed_server,
};

#[tokio::test]
async fn a_consumer_gets_every_event_once_in_order_on_every_version() {
    for version in Version::ALL {
        let database = database_of(version).await;
        let (role, mut app) = consumer_role(&database).await;
        subscribe(&mut app, "c").await;
        for number in 0..30 {
            emit(&mut app, &format!("{number:02}"), &format!("key {}", number % 3)).await;
        }
        let types = drain(&mut app, "c", 4).await;
        for key in 0..3 {
            let of_key: Vec<&String> =
                types.iter().filter(|number| number.parse::<i32>().unwrap() % 3 == key).collect();
            assert!(of_key.is_sorted() && of_key.len() == 10, "{version}: {of_key:?}");
        }
        assert_eq!(drain(&mut app, "c", 4).await, [""; 0], "{version}");
        drop(app);
        drop_role(&database, &role).await;
    }
}

#[tokio::test]
async fn a_batch_that_is_rolled_back_comes_again() {
    let database = database_with_one_lane().await;
    let mut connection = database.connect().await.unwrap();
    subscribe(&mut connection, "c").await;
    emit(&mut connection, "first", "k").await;
    emit(&mut connection, "second", "k").await;
    run(&mut connection, "begin").await;
    let batch = fetch(&mut connection, "c", 1).await.unwrap();
    finish(&mut connection, "c", &batch).await;
    run(&mut connection, "rollback; begin; savepoint s").await;
    let batch = fetch(&mut connection, "c", 1).await.unwrap();
    finish(&mut connection, "c", &batch).await;
    run(&mut connection, "rollback to s").await;
    let batch = fetch(&mut connection, "c", 1).await.unwrap();
    assert_eq!(batch.types, ["first"]);
    // Fetched and not finished is not done.
    run(&mut connection, "commit").await;
    assert_eq!(drain(&mut connection, "c", 1).await, ["first", "second"]);
}

/// Two that are at work have different lanes, and what one of them leaves behind when it dies is there at once.
#[tokio::test]
async fn fault_106_two_workers_never_have_the_same_events() {
    let database = database().await;
    let mut one = database.connect().await.unwrap();
    let mut two = database.connect().await.unwrap();
    subscribe(&mut one, "c").await;
    for number in 0..64 {
        emit(&mut one, &format!("{number}"), &format!("{number}")).await;
    }
    run(&mut one, "begin").await;
    let mine = fetch(&mut one, "c", 100).await.unwrap();
    let others = drain(&mut two, "c", 100).await;
    assert!(others.iter().all(|event| !mine.types.contains(event)));
    assert_eq!(others.len() + mine.types.len(), 64);
    one.close_hard().await.unwrap();
    let start = Instant::now();
    let mut left = Vec::new();
    while left.is_empty() {
        assert!(start.elapsed() < PATIENCE, "what a dead worker had does not come back");
        left = drain(&mut two, "c", 100).await;
    }
    assert_eq!(left, mine.types);
}

/// The lease: who says nothing for longer is ended by the server, cannot commit any more, and its events go on.
#[tokio::test]
async fn a_frozen_worker_loses_its_batch_and_cannot_commit() {
    let database = database_with_one_lane().await;
    let mut frozen = database.connect().await.unwrap();
    let mut other = database.connect().await.unwrap();
    run(&mut frozen, "create table effects (who text)").await;
    subscribe(&mut frozen, "c").await;
    emit(&mut frozen, "event", "k").await;
    let start = Instant::now();
    run(
        &mut frozen,
        "begin; insert into effects values ('frozen'); select * from postrider.next_batch('c', 10, lease => '1 second')",
    )
    .await;
    while drain(&mut other, "c", 10).await.is_empty() {
        assert!(start.elapsed() < PATIENCE, "the lane of a frozen worker does not come back");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(start.elapsed() > Duration::from_millis(500), "before the lease was over");
    assert!(sqlx::raw_sql("commit").execute(&mut frozen).await.is_err());
    let effects: i64 =
        sqlx::query_scalar("select count(*) from effects").fetch_one(&mut other).await.unwrap();
    assert_eq!(effects, 0);
}

/// The slow writer's transaction is younger than everything that had ended, and than the batch's own.
async fn slow_writer_behind_an_old_xid(database: &Database) -> Vec<String> {
    let mut connection = database.connect().await.unwrap();
    let mut fast = database.connect().await.unwrap();
    let mut slow = database.connect().await.unwrap();
    subscribe(&mut connection, "c").await;
    run(&mut connection, "begin; select pg_current_xact_id()").await;
    run(&mut fast, "begin; select pg_current_xact_id()").await;
    run(&mut slow, "begin").await;
    emit(&mut slow, "slow", "k").await;
    emit(&mut fast, "fast", "k").await;
    run(&mut fast, "commit").await;
    let batch = fetch(&mut connection, "c", 10).await.unwrap();
    assert_eq!(batch.types, ["fast"]);
    finish(&mut connection, "c", &batch).await;
    run(&mut connection, "commit").await;
    run(&mut slow, "commit").await;
    drain(&mut connection, "c", 10).await
}

#[tokio::test]
async fn a_slow_writer_is_not_passed_over_by_a_transaction_that_had_its_xid_before() {
    let server = undisturbed_server().await;
    let database = database_with_one_lane_on(&server).await;
    assert_eq!(slow_writer_behind_an_old_xid(&database).await, ["slow"]);

    let own_xid_as_the_bound = database_with_one_lane_on(&server).await;
    let mut admin = own_xid_as_the_bound.connect().await.unwrap();
    let source: String =
        sqlx::query_scalar("select pg_get_functiondef('postrider.finish_batch(text, text)'::regprocedure)")
            .fetch_one(&mut admin)
            .await
            .unwrap();
    let mutant = source.replace("then postrider.younger_xid()", "then pg_current_xact_id()");
    assert_ne!(mutant, source);
    sqlx::raw_sql(AssertSqlSafe(mutant)).execute(&mut admin).await.unwrap();
    assert_eq!(
        slow_writer_behind_an_old_xid(&own_xid_as_the_bound).await,
        [""; 0],
        "if not, the rule is not needed any more"
    );
}

#[tokio::test]
async fn a_large_late_transaction_comes_page_by_page_and_nothing_overtakes_it() {
    let database = database_with_one_lane().await;
    let mut connection = database.connect().await.unwrap();
    let mut slow = database.connect().await.unwrap();
    subscribe(&mut connection, "c").await;
    run(&mut slow, "begin").await;
    for number in 0..25 {
        emit(&mut slow, &format!("slow {number:02}"), "k").await;
    }
    emit(&mut connection, "fast", "k").await;
    assert_eq!(drain(&mut connection, "c", 10).await, ["fast"]);
    run(&mut slow, "commit").await;
    emit(&mut connection, "new", "k").await;
    let types = drain(&mut connection, "c", 10).await;
    let expected: Vec<String> =
        (0..25).map(|number| format!("slow {number:02}")).chain(["new".to_owned()]).collect();
    assert_eq!(types, expected);
}

/// The ring of the log turns although somebody is always at work.
#[tokio::test]
async fn an_open_batch_holds_no_lock_on_the_log() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    subscribe(&mut connection, "c").await;
    emit(&mut connection, "event", "k").await;
    run(&mut connection, "begin").await;
    fetch(&mut connection, "c", 10).await.unwrap();
    let locks: Vec<String> = sqlx::query_scalar(
        "select l.relation::regclass::text from pg_locks l where l.pid = pg_backend_pid() and l.locktype = 'relation'
         and l.relation::regclass::text ~ '^postrider\\.(events|progress|parked)'",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    assert_eq!(locks, [""; 0]);
}

#[tokio::test]
async fn given_up_events_are_dead_letters_and_come_again_when_retried() {
    let database = database_with_one_lane().await;
    let mut connection = database.connect().await.unwrap();
    subscribe(&mut connection, "c").await;
    emit(&mut connection, "good", "k").await;
    emit(&mut connection, "bad", "k").await;
    run(
        &mut connection,
        "begin;
         select postrider.give_up('c', b.token, b.id, 'no such product') from postrider.next_batch('c', 10) b where b.type = 'bad';
         select postrider.finish_batch('c', current_setting('postrider.batch')::json ->> 'token'); commit",
    )
    .await;
    let dead: Vec<(String, String, String)> =
        sqlx::query_as("select sink, type, reason from postrider.dead_letters")
            .fetch_all(&mut connection)
            .await
            .unwrap();
    assert_eq!(dead, [("c".to_owned(), "bad".to_owned(), "no such product".to_owned())]);
    assert_eq!(drain(&mut connection, "c", 10).await, [""; 0]);
    run(
        &mut connection,
        "update postrider.parked set state = 'waiting', next_attempt_at = clock_timestamp()",
    )
    .await;
    assert_eq!(drain(&mut connection, "c", 10).await, ["bad"]);
    let left: i64 =
        sqlx::query_scalar("select count(*) from postrider.parked").fetch_one(&mut connection).await.unwrap();
    assert_eq!(left, 0);
}

/// A transaction sees what it has written itself. As it may not be there in the end, it comes when it is, and once.
#[tokio::test]
async fn events_of_the_own_transaction_come_when_it_has_committed() {
    let database = database_with_one_lane().await;
    let mut connection = database.connect().await.unwrap();
    subscribe(&mut connection, "c").await;
    emit(&mut connection, "before", "k").await;
    let mut seen = Vec::new();
    for round in 0..6 {
        run(&mut connection, "begin").await;
        if round < 3 {
            emit(&mut connection, &round.to_string(), "k").await;
        }
        let batch: Vec<(String, String)> =
            sqlx::query_as("select type, token from postrider.next_batch('c')")
                .fetch_all(&mut connection)
                .await
                .unwrap();
        assert!(batch.iter().all(|(event, _)| *event != round.to_string()), "{batch:?}");
        if let Some((_, token)) = batch.first() {
            sqlx::query("select postrider.finish_batch('c', $1)")
                .bind(token)
                .execute(&mut connection)
                .await
                .unwrap();
        }
        seen.extend(batch.into_iter().map(|(event, _)| event));
        run(&mut connection, "commit").await;
    }
    assert_eq!(seen, ["before", "0", "1", "2"]);
}

#[tokio::test]
async fn misuse_of_batches_is_refused_in_words() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let mut reader = crate::support::open(&database, reading("relay's")).await;
    subscribe(&mut connection, "c").await;
    emit(&mut connection, "event", "k").await;
    let fetched = "select * from postrider.next_batch('c')";
    for (statement, code, message) in [
        ("select postrider.next_batch('nobody')".to_owned(), "42704", "there is no consumer 'nobody'"),
        ("select postrider.next_batch('relay''s')".to_owned(), "42809", "is a sink that relays deliver to"),
        ("select postrider.subscribe('relay''s')".to_owned(), "42809", "is a sink that relays deliver to"),
        ("select postrider.subscribe('new', 'tomorrow morning')".to_owned(), "22007", "is no place to start"),
        ("select postrider.next_batch(null)".to_owned(), "22004", "must not be null"),
        ("select postrider.next_batch('c', 0)".to_owned(), "22023", "1 to 10000 events"),
        ("select postrider.next_batch('c', lease => '1 ms')".to_owned(), "22023", "too short or too long"),
        (format!("begin isolation level repeatable read; {fetched}"), "25000", "read committed"),
        (format!("begin; {fetched}; {fetched}"), "55000", "a batch that is not finished"),
        (
            format!("begin; {fetched}; select postrider.finish_batch('c', 'other')"),
            "55000",
            "has no batch 'other'",
        ),
        (
            format!(
                "begin; {fetched}; select postrider.finish_batch('d', current_setting('postrider.batch')::json ->> 'token')"
            ),
            "55000",
            "of consumer 'd'",
        ),
        ("begin; select postrider.finish_batch('c', null)".to_owned(), "55000", "has no batch null"),
        (
            format!(
                "begin; {fetched}; select postrider.give_up('c', current_setting('postrider.batch')::json ->> 'token', gen_random_uuid(), 'x')"
            ),
            "22023",
            "is not in this batch",
        ),
    ] {
        let [found, said, detail, hint] = refusal(&mut connection, &statement).await;
        assert_eq!(found, code, "{statement}: {said}");
        assert!(said.starts_with("postrider: ") && said.contains(message), "{statement}: {said}");
        assert!(detail.contains("Nothing was") && !hint.is_empty(), "{statement}: {detail} {hint}");
        run(&mut connection, "rollback").await;
    }
    // A batch does not outlive its transaction, so it cannot be finished without its effect.
    let batch = fetch(&mut connection, "c", 10).await.unwrap();
    let other = format!("select postrider.finish_batch('c', '{}')", batch.token);
    assert_eq!(refusal(&mut connection, &other).await[0], "55000");
    let error =
        Reader::open(options(&database).into(), reading("c")).await.err().expect("a consumer is no sink");
    assert!(matches!(error, Error::IsConsumer { .. }) && !error.is_transient(), "{error}");
    assert_eq!(crate::support::read_types(&mut reader, 1).await, ["event"]);
    run(&mut connection, "update postrider.sinks set paused_at = now() where name = 'c'").await;
    assert_eq!(drain(&mut connection, "c", 10).await, [""; 0], "it is paused");
    reader.close().await.unwrap();
}

/// A rebase puts all lanes under one epoch; each of them still moves alone.
#[tokio::test]
async fn a_consumer_goes_on_after_a_rebase() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    subscribe(&mut connection, "c").await;
    for number in 0..40 {
        emit(&mut connection, "before", &number.to_string()).await;
    }
    assert_eq!(drain(&mut connection, "c", 10).await.len(), 40);
    run(&mut connection, "update postrider.identity set system_identifier = 1").await;
    assert_eq!(refusal(&mut connection, "select postrider.next_batch('c')").await[0], "55000");
    let mut open = database.connect().await.unwrap();
    rebase::apply(&mut connection, Alive::Refuse).await.unwrap();
    // What is not known to be old enough comes again; then each once.
    drain(&mut connection, "c", 10).await;
    for number in 0..40 {
        emit(&mut open, "after", &number.to_string()).await;
    }
    assert_eq!(drain(&mut connection, "c", 3).await.len(), 40);
    assert_eq!(drain(&mut connection, "c", 3).await, [""; 0]);
}

/// The open batch is a setting, and whoever may consume can set it: it reaches nothing that is another sink's.
#[tokio::test]
async fn a_batch_that_somebody_has_made_up_reaches_no_other_sink() {
    let database = database_with_one_lane().await;
    let mut owner = database.connect().await.unwrap();
    run(
        &mut owner,
        "insert into postrider.sinks (name) values ('relay''s');
         insert into postrider.parked (sink, id, lane, seq, type, key, payload, headers, created_at, state, attempts, kind, reason, history, next_attempt_at)
         select sink, gen_random_uuid(), 0, 1, 'theirs', 'k', '{}', '{}', now(), 'waiting', 1, 'rejected', 'not now', '[]', now() from postrider.sinks",
    )
    .await;
    let (role, mut app) = consumer_role(&database).await;
    subscribe(&mut app, "c").await;
    let (sink, epoch, place): (i32, i64, i64) = sqlx::query_as(
        "select s.sink, l.epoch, p.place from postrider.sinks s join postrider.leases l using (sink), postrider.parked p where s.name = 'c'",
    )
    .fetch_one(&mut owner)
    .await
    .unwrap();
    let made_up = format!(
        r#"{{"token": "t", "consumer": "c", "sink": {sink}, "lane": 0, "epoch": {epoch}, "parked": {place}, "tries": 0,
             "ids": ["00000000-0000-0000-0000-000000000001"]}}"#
    );
    for call in ["give_up('c', 't', '00000000-0000-0000-0000-000000000001', 'x')", "finish_batch('c', 't')"] {
        let calls =
            format!("begin; set local postrider.batch = '{made_up}'; select postrider.{call}; commit");
        sqlx::raw_sql(AssertSqlSafe(calls)).execute(&mut app).await.unwrap();
        let state: Option<String> = sqlx::query_scalar("select state || ' ' || reason from postrider.parked")
            .fetch_optional(&mut owner)
            .await
            .unwrap();
        assert_eq!(state.as_deref(), Some("waiting not now"), "{call}");
    }
    drop(app);
    drop_role(&database, &role).await;
}
