//! The reader as its users see it.

use std::time::Duration;

use postrider::log::{Error, ReaderOptions, Start, sink};
use sqlx::PgConnection;

use crate::faults::notify::ASLEEP;
use crate::faults::until;
use crate::support::{PATIENCE, database, emit, next, open, read_types, reading, run};

#[tokio::test]
async fn reads_what_was_committed_and_nothing_else() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    run(&mut writer, "begin").await;
    emit(&mut writer, "taken.back", "k").await;
    run(&mut writer, "rollback").await;
    emit(&mut writer, "first", "k").await;
    emit(&mut writer, "second", "k").await;

    let mut reader = open(&database, reading("test")).await;
    assert_eq!(read_types(&mut reader, 2).await, ["first", "second"]);
    reader.close().await.unwrap();

    emit(&mut writer, "third", "k").await;
    let mut reader = open(&database, reading("test")).await;
    assert_eq!(read_types(&mut reader, 1).await, ["third"]);
}

#[tokio::test]
async fn a_sleeping_reader_is_woken() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let mut reader = open(&database, reading("test")).await;
    assert_eq!(reader.silence(), None);
    // Asleep once the ticket can be seen; only then is the event emitted.
    let (batch, ()) = tokio::join!(next(&mut reader), async {
        while sqlx::query_scalar::<_, bool>(
            "select coalesce(pg_sequence_last_value('postrider.armed'), 0) = 0",
        )
        .fetch_one(&mut writer)
        .await
        .unwrap()
        {}
        emit(&mut writer, "wake.up", "k").await;
    });
    assert_eq!(batch.len(), 1);
}

async fn end_connections(connection: &mut PgConnection) {
    run(
        connection,
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity
         where datname = current_database() and application_name like 'postrider%' and pid <> pg_backend_pid()",
    )
    .await;
}

/// On a machine that did not let it run, the server has ended its session in the middle of a transaction. Nobody's fault: it connects again.
#[tokio::test]
async fn a_session_that_was_idle_for_too_long_is_a_lost_connection() {
    let database = database().await;
    let (mut idle, mut other) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    run(
        &mut idle,
        "set application_name = 'idle'; begin; set local idle_in_transaction_session_timeout = '10ms'",
    )
    .await;
    let gone = "select not exists (select from pg_stat_activity where application_name = 'idle' and datname = current_database())";
    until(&mut other, gone).await;
    let error = Error::from(sqlx::query("select 1").execute(&mut idle).await.unwrap_err());
    assert!(error.is_transient() && error.is_disconnect(), "{error}");
}

/// It was handed over and not taken when its connection ended, and somebody else may have delivered it meanwhile: it is read again.
#[tokio::test]
async fn a_batch_of_a_connection_that_is_gone_is_not_handed_out() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    emit(&mut writer, "one", "k").await;
    let lease = Duration::from_mins(1);
    let mut reader = open(&database, ReaderOptions { lease, ..reading("test") }).await;
    // It does not sleep before it has handed over what there was.
    until(&mut writer, ASLEEP).await;
    let before = reader.connection();
    end_connections(&mut writer).await;
    let connects_again = async {
        while reader.connection().is_none_or(|now| Some(now) == before) {
            reader.changed().await;
        }
    };
    tokio::time::timeout(PATIENCE, connects_again).await.expect("it does not connect again");
    let batch = next(&mut reader).await;
    assert_eq!(batch.len(), 1);
    reader.settle(&batch).await.expect("it is of a connection that is gone");
    emit(&mut writer, "two", "k").await;
    assert_eq!(read_types(&mut reader, 1).await, ["two"]);
}

/// What it would read is another sink's, whose beginning and whose parked events are its own.
#[tokio::test]
async fn a_sink_that_was_forgotten_and_made_anew_is_another_one() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let mut reader = open(&database, reading("test")).await;
    assert!(sink::forget(&mut admin, "test").await.unwrap());
    sink::open(&mut admin, "test", Start::Earliest).await.unwrap();
    // With nothing to read: the old connection could still read it, as before any loss of lanes that is not noticed yet.
    end_connections(&mut admin).await;
    let ended = tokio::time::timeout(PATIENCE, reader.next()).await.expect("it waits for nothing");
    let error = ended.expect_err("it reads what is not its own");
    assert!(matches!(error, Error::SinkForgotten { .. }), "{error}");
}
