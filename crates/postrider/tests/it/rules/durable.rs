//! The rules of publishing only what is durable.

use postrider::log::flush;
use postrider_testkit::{Database, PostgresServer};

use super::Hand;
use crate::support::{PATIENCE, emit, lazy_server, next, open, reading, run};

async fn still_there(server: &mut PostgresServer, database: &Database) -> i64 {
    server.crash().await.unwrap();
    server.start().await.unwrap();
    let mut connection = database.connect().await.unwrap();
    sqlx::query_scalar("select count(*) from postrider.events").fetch_one(&mut connection).await.unwrap()
}

#[tokio::test]
async fn what_is_released_survives_a_crash() {
    async fn script(gate: bool) -> i64 {
        let (mut server, database) = lazy_server().await;
        let mut writer = database.connect().await.unwrap();
        let mut reader = Hand::open(&database).await;
        run(&mut writer, "set synchronous_commit = off").await;
        emit(&mut writer, "visible", "a").await;
        let round = reader.peek().await;
        assert_eq!(round.len(), 1);
        assert!(round.facts.flushed < round.facts.inserted, "its commit is not on disk yet");
        if gate {
            flush::until_durable(&mut reader.connection, round.facts.inserted, round.facts.flushed)
                .await
                .unwrap();
        }
        still_there(&mut server, &database).await
    }
    assert_eq!(script(true).await, 1);
    assert_eq!(script(false).await, 0, "without the gate a phantom would have been published");
}

/// The reader that is really used.
#[tokio::test]
async fn what_a_reader_hands_out_survives_a_crash() {
    let (mut server, database) = lazy_server().await;
    let mut writer = database.connect().await.unwrap();
    let mut reader = open(&database, reading("durable")).await;
    run(&mut writer, "set synchronous_commit = off").await;
    emit(&mut writer, "visible", "a").await;
    assert_eq!(next(&mut reader).await.len(), 1);
    assert_eq!(still_there(&mut server, &database).await, 1, "a phantom was handed out");
}

#[tokio::test]
async fn only_something_that_really_writes_flushes() {
    let (_server, database) = lazy_server().await;
    let mut writer = database.connect().await.unwrap();
    let mut reader = Hand::open(&database).await;
    run(&mut writer, "set synchronous_commit = off").await;
    for nothing in ["select pg_current_xact_id()", "update postrider.ring set slot = slot where false"] {
        emit(&mut writer, "visible", "a").await;
        let inserted = reader.peek().await.facts.inserted;
        run(&mut reader.connection, nothing).await;
        assert!(reader.peek().await.facts.flushed < inserted, "{nothing} flushed after all");
    }
    let inserted = reader.peek().await.facts.inserted;
    run(&mut reader.connection, "select pg_logical_emit_message(true, 'postrider', '')").await;
    assert!(reader.peek().await.facts.flushed >= inserted);
}

/// What a writer that stays open has written is in the log's insert position, and nobody has a reason to flush it.
#[tokio::test]
async fn polling_alone_never_ends_beside_an_open_writer() {
    let (_server, database) = lazy_server().await;
    let mut writer = database.connect().await.unwrap();
    let mut reader = Hand::open(&database).await;
    run(&mut writer, "begin").await;
    emit(&mut writer, "open", "a").await;
    let inserted = reader.peek().await.facts.inserted;
    for _ in 0..2_000 {
        assert!(reader.peek().await.facts.flushed < inserted, "somebody flushed it after all");
    }
    let nudged = flush::until_durable(&mut reader.connection, inserted, 0);
    tokio::time::timeout(PATIENCE, nudged).await.expect("nobody flushed").unwrap();
    assert!(reader.peek().await.facts.flushed >= inserted);
    run(&mut writer, "rollback").await;
}
