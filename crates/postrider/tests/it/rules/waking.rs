//! The rules of tickets that time decides: `wake_model` knows no clock.

use std::time::Duration;

use postrider::log::{ReaderOptions, bell};
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgListener;

use crate::faults::notify::ASLEEP;
use crate::faults::until;
use crate::support::{
    database, database_on, emit, heard, open, read_types, reading, run, undisturbed_server,
};

/// The ticket of a reader that died asleep stays, and without `armed_until` every producer would ring for it for ever.
#[tokio::test]
async fn nobody_rings_for_a_reader_that_died_asleep() {
    const RULE: &str = "and date_part('epoch', clock_timestamp()) < coalesce(pg_sequence_last_value('postrider.armed_until'), 0)";
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let idle = (Duration::from_millis(5), Duration::from_secs(1));
    let reader = open(&database, ReaderOptions { idle, ..reading("test") }).await;
    until(&mut connection, ASLEEP).await;
    // Like a crash: nothing is handed back.
    drop(reader);
    until(
        &mut connection,
        "select date_part('epoch', clock_timestamp()) > pg_sequence_last_value('postrider.armed_until')",
    )
    .await;
    let ticket: i64 = sqlx::query_scalar("select pg_sequence_last_value('postrider.armed')")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    let bell: String = sqlx::query_scalar("select pg_get_functiondef('postrider.ring_bell()'::regprocedure)")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert!(bell.contains(RULE), "{bell}");

    let mut listener = PgListener::connect(&database.url()).await.unwrap();
    listener.listen("postrider").await.unwrap();
    emit(&mut connection, "unheard", "k").await;
    assert_eq!(heard(&mut listener, &mut connection).await, [""; 0]);
    sqlx::raw_sql(AssertSqlSafe(bell.replace(RULE, ""))).execute(&mut connection).await.unwrap();
    for _ in 0..3 {
        emit(&mut connection, "rung for nobody", "k").await;
        assert_eq!(heard(&mut listener, &mut connection).await, [ticket.to_string()]);
    }
}

/// A transaction that stays open keeps a reader watching. If its ticket ran out meanwhile, nobody would wake it, and what is written
/// would wait for the end of a pause that grows and grows.
#[tokio::test]
async fn the_ticket_is_renewed_while_an_older_transaction_is_open() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let mut older = database.connect().await.unwrap();
    run(&mut older, "begin; select pg_current_xact_id()").await;
    let idle = (Duration::from_millis(5), Duration::from_secs(2));
    let mut reader = open(&database, ReaderOptions { idle, ..reading("test") }).await;
    for _ in 0..2 {
        until(&mut connection, ASLEEP).await;
        run(
            &mut connection,
            "drop table if exists first; create temporary table first as select pg_sequence_last_value('postrider.armed_until') as ends",
        )
        .await;
        until(&mut connection, "select date_part('epoch', clock_timestamp()) > ends from first").await;
        until(
            &mut connection,
            "select pg_sequence_last_value('postrider.armed') > coalesce(pg_sequence_last_value('postrider.disarmed'), 0)
                and date_part('epoch', clock_timestamp()) + 0.5 < pg_sequence_last_value('postrider.armed_until')",
        )
        .await;
        emit(&mut connection, "rung", "k").await;
        assert_eq!(read_types(&mut reader, 1).await, ["rung"]);
    }
    run(&mut older, "rollback").await;
    reader.close().await.unwrap();
}

/// A producer looks for tickets after its row has its xid. One that is held up in the middle of its insert, while a reader takes a
/// ticket, must ring for it: that reader does not know the row's transaction, or has looked before it.
#[tokio::test]
async fn a_producer_looks_for_tickets_after_it_has_written() {
    const PRODUCERS: [&str; 4] = [
        "select postrider.emit('late', '{}', key => 'k')",
        "select postrider.emit('late', '{}'::json, key => 'k')",
        "select postrider.emit('late', '{}'::jsonb, key => 'k')",
        r#"select postrider.emit_many('[{"type": "late", "payload": 1}]')"#,
    ];
    let database = database().await;
    let (mut producer, mut gate) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    run(
        &mut gate,
        "create function held_up() returns trigger language plpgsql as 'begin perform pg_advisory_xact_lock_shared(1); return new; end';
         create trigger held_up before insert on postrider.events_0 for each row execute function held_up()",
    )
    .await;
    let mut listener = PgListener::connect(&database.url()).await.unwrap();
    listener.listen("postrider").await.unwrap();
    for statement in PRODUCERS {
        run(&mut gate, "select pg_advisory_lock(1)").await;
        let emitting = tokio::spawn(async move {
            sqlx::raw_sql(statement).execute(&mut producer).await.unwrap();
            producer
        });
        until(&mut gate, "select exists (select from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database()))")
            .await;
        let ticket = bell::take_ticket(&mut gate, Duration::from_mins(1)).await.unwrap();
        run(&mut gate, "select pg_advisory_unlock(1)").await;
        producer = emitting.await.unwrap();
        assert_eq!(heard(&mut listener, &mut gate).await, [ticket.to_string()], "{statement}");
        bell::disarm(&mut gate, ticket).await.unwrap();
    }
}

/// Who hears a ticket answers for it and for older ones. A younger one belongs to a reader that may be asleep already.
#[tokio::test]
async fn a_ticket_is_disarmed_and_no_younger_one() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let minute = Duration::from_mins(1);
    let first = bell::take_ticket(&mut connection, minute).await.unwrap();
    let second = bell::take_ticket(&mut connection, minute).await.unwrap();
    let mut listener = PgListener::connect(&database.url()).await.unwrap();
    listener.listen("postrider").await.unwrap();
    bell::disarm(&mut connection, first).await.unwrap();
    emit(&mut connection, "rings", "k").await;
    assert_eq!(heard(&mut listener, &mut connection).await, [second.to_string()]);
    bell::disarm(&mut connection, second).await.unwrap();
    bell::disarm(&mut connection, first).await.unwrap();
    emit(&mut connection, "silent", "k").await;
    assert_eq!(heard(&mut listener, &mut connection).await, [""; 0], "an older ticket armed the bell again");
}

/// The xid a reader waits for must be younger than that of every producer that has not seen its ticket. The snapshot's own end is not:
/// the youngest running transaction is beyond it.
#[tokio::test]
async fn a_reader_waits_for_the_youngest_producer_too() {
    // A server of our own: somebody else's transaction that ends would put the producer's into the snapshot.
    let server = undisturbed_server().await;
    let database = database_on(&server).await;
    let (mut producer, mut reader) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    run(&mut producer, "begin").await;
    emit(&mut producer, "youngest", "k").await;
    let youngest: String =
        sqlx::query_scalar("select pg_current_xact_id()::text").fetch_one(&mut producer).await.unwrap();
    let waited_for = bell::take_xid(&mut reader).await.unwrap();
    assert!(waited_for > youngest.parse().unwrap(), "{waited_for} is not younger than {youngest}");
}

/// Of two readers one sleeps for long, and the other one's short sleep must not end what producers heed for the first. A clock that was
/// wrong for a while must not make them ring until it is right.
#[tokio::test]
async fn a_ticket_ends_with_the_longest_sleep_that_can_be_meant() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let ends = "select pg_sequence_last_value('postrider.armed_until')";
    bell::take_ticket(&mut connection, Duration::from_secs(50)).await.unwrap();
    let long: i64 = sqlx::query_scalar(ends).fetch_one(&mut connection).await.unwrap();
    bell::take_ticket(&mut connection, Duration::from_secs(1)).await.unwrap();
    let both: i64 = sqlx::query_scalar(ends).fetch_one(&mut connection).await.unwrap();
    assert_eq!(both, long, "nobody rings for the one that sleeps for longer");

    run(
        &mut connection,
        "select setval('postrider.armed_until', (date_part('epoch', clock_timestamp()) + 86400)::bigint)",
    )
    .await;
    bell::take_ticket(&mut connection, Duration::from_secs(1)).await.unwrap();
    let left: f64 = sqlx::query_scalar(
        "select pg_sequence_last_value('postrider.armed_until') - date_part('epoch', clock_timestamp())",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert!(left < 3.0, "everybody rings for {left} s");
}
