//! The rules of tickets that time decides: `wake_model` knows no clock.

use std::time::{Duration, Instant};

use postrider::log::ReaderOptions;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgListener;

use crate::faults::notify::ASLEEP;
use crate::faults::until;
use crate::support::{database, emit, heard, open, read_types, reading, run};

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
    for round in 0..2 {
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
        let emitted = Instant::now();
        emit(&mut connection, "rung", "k").await;
        assert_eq!(read_types(&mut reader, 1).await, ["rung"]);
        assert!(emitted.elapsed() < idle.1 / 4, "round {round}: {:?}", emitted.elapsed());
    }
    run(&mut older, "rollback").await;
    reader.close().await.unwrap();
}
