//! A rebase among writers that go on, one that is cut off, and one that a reader does not expect.

use std::time::Duration;

use postrider::log::Error;
use postrider::log::rebase::{self, Alive, Applied};
use postrider_testkit::Database;
use sqlx::PgConnection;
use tokio::task::JoinHandle;

use super::{Past, assert_refused, past, read_all};
use crate::faults::until;
use crate::support::{PATIENCE, database, emit, next, open, reading, run};

/// Begins a rebase in a session of its own.
async fn begin(database: &Database) -> JoinHandle<Result<Applied, Error>> {
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "set application_name = 'rebase'").await;
    tokio::spawn(async move { rebase::apply(&mut connection, Alive::Refuse).await })
}

/// The sequence is moved early on, before anything else.
async fn sequence_has_moved(connection: &mut PgConnection) {
    until(connection, "select pg_sequence_last_value('postrider.seq') > 1000").await;
}

/// A log whose sequence was reset, with a transaction that has written since and is still open.
async fn with_an_open_writer() -> (Database, Past, PgConnection) {
    let database = database().await;
    let past = past(&database).await;
    let mut writer = database.connect().await.unwrap();
    run(&mut writer, "alter sequence postrider.seq restart").await;
    run(&mut writer, "begin").await;
    emit(&mut writer, "open", "key 1").await;
    (database, past, writer)
}

#[tokio::test]
async fn waits_for_open_writers_and_blocks_nobody() {
    let (database, past, mut writer) = with_an_open_writer().await;
    let mut other = database.connect().await.unwrap();
    let rebase = begin(&database).await;
    sequence_has_moved(&mut other).await;
    run(&mut other, "set lock_timeout = '5s'").await;
    emit(&mut other, "meanwhile", "key 1").await;
    assert!(!rebase.is_finished());
    emit(&mut writer, "open.2", "key 1").await;
    run(&mut writer, "commit").await;
    rebase.await.unwrap().unwrap();

    let found = read_all(&database, "idle").await;
    assert_eq!(found.len(), past.emitted.len() + 3);
    assert!(found.values().all(|times| *times == 1));
    let found = read_all(&database, "test").await;
    for event in ["open", "open.2", "meanwhile"] {
        assert_eq!(found.get(event), Some(&1), "{event}");
    }
}

/// A transaction that does not end is named, and nothing is decided over its head.
#[tokio::test]
async fn gives_up_on_a_writer_that_does_not_end() {
    let (database, past, mut writer) = with_an_open_writer().await;
    let mut other = database.connect().await.unwrap();
    let pid: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut writer).await.unwrap();
    let patience = Duration::from_millis(50);
    let error = rebase::apply_within(&mut other, Alive::Refuse, patience).await.unwrap_err();
    assert!(matches!(error, Error::WritersOpen { .. }), "{error}");
    assert!(error.to_string().contains(&format!("(process {pid})")), "{error}");
    assert_refused(&database, "a rebase was begun and has not ended").await;

    run(&mut writer, "commit").await;
    rebase::apply_within(&mut other, Alive::Refuse, PATIENCE).await.unwrap();
    assert_eq!(read_all(&database, "test").await.get("open"), Some(&1));
    let found = read_all(&database, "idle").await;
    assert_eq!(found.len(), past.emitted.len() + 1);
    assert!(found.values().all(|times| *times == 1));
}

#[tokio::test]
async fn can_be_run_again_after_it_was_cut_off() {
    let (database, past, mut writer) = with_an_open_writer().await;
    let mut other = database.connect().await.unwrap();
    let rebase = begin(&database).await;
    sequence_has_moved(&mut other).await;
    run(&mut other, "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = 'rebase' and datname = current_database()").await;
    rebase.await.unwrap().unwrap_err();
    run(&mut writer, "commit").await;
    // The sequence is where it should be, and nothing else is: without a mark the reader would start, and lose `open`.
    assert_refused(&database, "a rebase was begun and has not ended").await;
    let plan = rebase::plan(&mut other).await.unwrap();
    assert!(plan.reason.unwrap().contains("has not ended"));

    rebase::apply(&mut other, Alive::Refuse).await.unwrap();
    assert_eq!(read_all(&database, "test").await.get("open"), Some(&1));
    let found = read_all(&database, "idle").await;
    assert_eq!(found.len(), past.emitted.len() + 1);
    assert!(found.values().all(|times| *times == 1));
}

/// Forced under a reader that is alive: it loses its lanes, and goes on with the new cursors.
#[tokio::test]
async fn overrules_a_reader_that_is_alive() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    for number in 0..20 {
        emit(&mut connection, &format!("before.{number}"), "k").await;
    }
    let mut reader = open(&database, reading("test")).await;
    let batch = next(&mut reader).await;
    run(&mut connection, "update postrider.identity set system_identifier = 7").await;
    rebase::apply(&mut connection, Alive::Overrule).await.unwrap();
    emit(&mut connection, "after", "k").await;
    reader.settle(&batch).await.unwrap_err();
    let mut found = Vec::new();
    while !found.iter().any(|event| event == "after") {
        let batch = next(&mut reader).await;
        // What was read with the old cursors, ahead of us, cannot be settled and comes again.
        if reader.settle(&batch).await.is_ok() {
            found.extend(batch.records().map(|record| record.r#type.clone()));
        }
    }
    assert_eq!(found.len(), 21, "{found:?}");
}
