//! Somebody changed the log's tables or sequences.

use std::time::Duration;

use postrider::log::{Error, Reader, ReaderOptions, rebase};
use postrider_testkit::{Database, Version};
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgConnectOptions;

use crate::support::{PATIENCE, database, database_of, emit, open, options, read_types, reading, run};

async fn remedy_of_refusal(database: &Database, words: &str) -> String {
    let error = Reader::open(options(database).into(), reading("test")).await.err().expect("opened");
    assert!(error.to_string().contains(words), "{error}");
    assert!(!error.is_transient());
    match error {
        Error::Unsafe { remedy, .. } => remedy,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn fault_19_a_sequence_that_would_break_the_order_is_refused() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    emit(&mut connection, "first", "k").await;
    for (change, words) in [
        ("cache 20", "cache 20"),
        ("cycle", "cycles"),
        ("increment 2", "increment 2"),
        ("increment -1 minvalue -100", "increment -1"),
    ] {
        sqlx::raw_sql(AssertSqlSafe(format!("alter sequence postrider.seq {change}")))
            .execute(&mut connection)
            .await
            .unwrap();
        let remedy = remedy_of_refusal(&database, words).await;
        sqlx::raw_sql(AssertSqlSafe(remedy)).execute(&mut connection).await.unwrap();
        open(&database, reading("test")).await.close().await.unwrap();
    }
}

#[tokio::test]
async fn fault_37_an_unlogged_table_is_refused() {
    for version in [Version::V14, Version::V18] {
        let database = database_of(version).await;
        let mut connection = database.connect().await.unwrap();
        for table in ["events_3", "progress_1", "leases"] {
            sqlx::raw_sql(AssertSqlSafe(format!("alter table postrider.{table} set unlogged")))
                .execute(&mut connection)
                .await
                .unwrap();
            let remedy = remedy_of_refusal(&database, &format!("postrider.{table} is not logged")).await;
            sqlx::raw_sql(AssertSqlSafe(remedy)).execute(&mut connection).await.unwrap();
        }
        open(&database, reading("test")).await.close().await.unwrap();
    }
}

#[tokio::test]
async fn fault_37_a_table_that_becomes_unlogged_is_found_by_the_sweep() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let mut reader = open(&database, ReaderOptions { sweep: Duration::ZERO, ..reading("test") }).await;
    emit(&mut connection, "first", "k").await;
    assert_eq!(read_types(&mut reader, 1).await, ["first"]);
    run(&mut connection, "alter table postrider.events_3 set unlogged").await;
    let error = tokio::time::timeout(PATIENCE, reader.next()).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Unsafe { .. }), "{error}");
    assert!(error.to_string().contains("alter table postrider.events_3 set logged"), "{error}");
}

#[tokio::test]
async fn fault_19_a_sequence_that_is_reset_under_a_reader_is_found_by_its_next_round() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let mut reader = open(&database, reading("test")).await;
    emit(&mut connection, "first", "k").await;
    emit(&mut connection, "second", "k").await;
    read_types(&mut reader, 2).await;
    run(&mut connection, "alter sequence postrider.seq restart").await;
    emit(&mut connection, "hidden", "k").await;
    let error = tokio::time::timeout(PATIENCE, reader.next()).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Rebase { .. }), "{error}");
}

/// Nobody looked while the sequence was below the cursors, and now it is past them again.
#[tokio::test]
async fn fault_19_a_sequence_that_was_reset_and_has_caught_up_is_refused_and_mended() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let mut reader = open(&database, reading("test")).await;
    for _ in 0..20 {
        emit(&mut connection, "before", "k").await;
    }
    read_types(&mut reader, 20).await;
    reader.close().await.unwrap();
    run(&mut connection, "alter sequence postrider.seq restart").await;
    for _ in 0..30 {
        emit(&mut connection, "since", "k").await;
    }
    let error = Reader::open(options(&database).into(), reading("test")).await.err().expect("opened");
    assert!(matches!(error, Error::Rebase { .. }), "{error}");
    assert!(error.to_string().contains("two events have seq"), "{error}");
    rebase::apply(&mut connection, rebase::Alive::Refuse).await.unwrap();
    let mut reader = open(&database, reading("test")).await;
    let mut since = 0;
    while since < 30 {
        since += read_types(&mut reader, 1).await.iter().filter(|found| *found == "since").count();
    }
}

#[tokio::test]
async fn fault_37_an_unlogged_sequence_is_refused() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "alter sequence postrider.seq set unlogged").await;
    let remedy = remedy_of_refusal(&database, "sequence postrider.seq is not logged").await;
    sqlx::raw_sql(AssertSqlSafe(remedy)).execute(&mut connection).await.unwrap();
    open(&database, reading("test")).await.close().await.unwrap();
}

/// Rows that a policy hides would be passed by for good.
#[tokio::test]
async fn fault_37_row_security_on_the_log_is_an_error_and_loses_nothing() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let role = format!("{}_relay", database.name());
    sqlx::raw_sql(AssertSqlSafe(format!("create role {role} login in role postrider_relay")))
        .execute(&mut connection)
        .await
        .unwrap();
    let options: PgConnectOptions = database.url_as(&role).parse().unwrap();
    let mut reader = Reader::open(options.clone().into(), reading("test")).await.unwrap();
    emit(&mut connection, "first", "k").await;
    assert_eq!(read_types(&mut reader, 1).await, ["first"]);
    run(&mut connection, "alter table postrider.events enable row level security").await;
    emit(&mut connection, "hidden", "k").await;
    let error = tokio::time::timeout(PATIENCE, reader.next()).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("row-level security"), "{error}");
    drop(reader);
    run(&mut connection, "alter table postrider.events disable row level security").await;
    let mut reader = Reader::open(options.into(), reading("test")).await.unwrap();
    let mut seen = Vec::new();
    while !seen.contains(&"hidden".to_owned()) {
        seen.extend(read_types(&mut reader, 1).await);
    }
    reader.close().await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(format!("drop owned by {role}; drop role {role}")))
        .execute(&mut connection)
        .await
        .unwrap();
}

/// Nobody has read yet, so no cursor tells. New events would come before old ones of their key, under numbers that are taken.
#[tokio::test]
async fn fault_19_a_sequence_below_an_event_that_nobody_has_read_is_refused() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    for _ in 0..3 {
        emit(&mut connection, "unread", "k").await;
    }
    run(&mut connection, "select setval('postrider.seq', 2)").await;
    let error = Reader::open(options(&database).into(), reading("test")).await.err().expect("opened");
    assert!(matches!(error, Error::Rebase { .. }), "{error}");
    assert!(error.to_string().contains("an event has seq 3"), "{error}");
}
