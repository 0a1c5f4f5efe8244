//! A schema-only dump, as every CI database is made from: no row and no sequence that was ever called.

use postrider_testkit::{Database, Version, postgres};
use sqlx::AssertSqlSafe;

use super::fails;
use crate::dump::{dump, restored};
use crate::support::{database, emit, open, read_types, reading, run};

/// The source has been in use: its sequences stand somewhere, its ring has rows.
async fn schema_only() -> Database {
    let source = database().await;
    let mut connection = source.connect().await.unwrap();
    emit(&mut connection, "left behind", "k").await;
    open(&source, reading("test")).await.close().await.unwrap();
    run(&mut connection, "select setval('postrider.slot', 5)").await;
    let server = postgres(Version::default()).await.unwrap();
    restored(&server, dump(&source, &["--schema-only"]).await).await
}

#[tokio::test]
async fn a_schema_only_restore_works_at_once() {
    let copy = schema_only().await;
    let mut connection = copy.connect().await.unwrap();
    let (never_called, called): (i64, i64) = sqlx::query_as(
        "select count(*) filter (where pg_sequence_last_value(seqrelid) is null), count(pg_sequence_last_value(seqrelid))
         from pg_sequence where seqrelid::regclass::text like 'postrider.%'",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert!(never_called >= 9 && called == 0, "{never_called} were never called, {called} were");
    let rows: i64 = sqlx::query_scalar(
        "select (select count(*) from postrider.identity) + (select count(*) from postrider.ring)",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert_eq!(rows, 0);

    emit(&mut connection, "first", "k").await;
    run(
        &mut connection,
        "select postrider.emit_many('[{\"type\": \"second\", \"payload\": 1, \"key\": \"k\"}]')",
    )
    .await;
    let mut reader = open(&copy, reading("test")).await;
    assert_eq!(read_types(&mut reader, 2).await, ["first", "second"]);
    emit(&mut connection, "third", "k").await;
    assert_eq!(read_types(&mut reader, 1).await, ["third"]);
    reader.close().await.unwrap();

    run(&mut connection, "select postrider.enqueue('mail', '{}')").await;
    let claimed: i64 = sqlx::query_scalar("select count(*) from postrider.claim_jobs('default', 10)")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(claimed, 1);
}

/// Why `coalesce` is there: a sequence that was never called answers null, and the user's INSERT fails.
#[tokio::test]
async fn without_coalesce_a_schema_only_restore_fails_to_emit() {
    let copy = schema_only().await;
    let mut connection = copy.connect().await.unwrap();
    let emit: String = sqlx::query_scalar(
        "select pg_get_functiondef('postrider.emit(text, text, text, text, text, text)'::regprocedure)",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    let rule = "coalesce(pg_sequence_last_value('postrider.slot'), 0)";
    assert!(emit.contains(rule), "the rule to be taken out is not there:\n{emit}");
    let mutant = emit.replace(rule, "pg_sequence_last_value('postrider.slot')");
    sqlx::raw_sql(AssertSqlSafe(mutant)).execute(&mut connection).await.unwrap();
    let complaint = fails(&mut connection, "select postrider.emit('t', '{}')").await;
    // No partition for null, and no null in the column: which of the two complains first is the server's business.
    assert!(["23502", "23514"].contains(&complaint.code.as_str()), "{}", complaint.message);
    sqlx::raw_sql(AssertSqlSafe(emit)).execute(&mut connection).await.unwrap();
    run(&mut connection, "select postrider.emit('t', '{}')").await;
}
