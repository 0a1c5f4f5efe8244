//! `postrider rebase`.

use std::time::Duration;

use postrider::log::{Reader, ReaderOptions, Start};
use postrider_testkit::Database;
use serde_json::json;

use crate::support::{End, empty_database, postrider_on};

/// A log whose three events were delivered to the sink `web`.
async fn delivered() -> Database {
    let database = empty_database().await;
    End::of(&mut postrider_on(&database.url(), &["init"])).expect(0);
    run(&database, "select postrider.emit('order.paid', '{}', key => n::text) from generate_series(1, 3) n")
        .await;
    let mut reader = open(&database).await;
    let mut count = 0;
    while count < 3 {
        let batch = reader.next().await.unwrap();
        count += batch.len();
        reader.settle(&batch).await.unwrap();
    }
    reader.close().await.unwrap();
    database
}

async fn open(database: &Database) -> Reader {
    // Some tests do not poll it while the binary runs: it must count as alive for longer than that takes.
    let lease = Duration::from_mins(5);
    let options = ReaderOptions { start: Start::Earliest, lease, ..ReaderOptions::new("web") };
    Reader::open(database.url().parse().unwrap(), options).await.unwrap()
}

async fn run(database: &Database, statements: &'static str) {
    let mut connection = database.connect().await.unwrap();
    sqlx::raw_sql(statements).execute(&mut connection).await.unwrap();
}

#[tokio::test]
async fn a_log_in_order_needs_none() {
    let database = delivered().await;
    for words in [&["rebase"][..], &["rebase", "--yes"]] {
        let end = End::of(&mut postrider_on(&database.url(), words)).expect(0);
        assert_eq!(end.stderr, "the log can be read as it is: nothing to do\n");
    }
    let end = End::of(&mut postrider_on(&database.url(), &["rebase", "--json"])).expect(0);
    assert_eq!(end.json()["needed"], json!(false));
}

#[tokio::test]
async fn shows_what_it_would_do_and_does_it_only_when_told() {
    let database = delivered().await;
    let url = database.url();
    // As after a switchover to a logical replica, whose sequences were not carried over; then an event of new.
    run(
        &database,
        "select setval('postrider.seq', 1); select postrider.emit('order.paid', '{}', key => 'new')",
    )
    .await;
    for _ in 0..2 {
        let end = End::of(&mut postrider_on(&url, &["rebase"])).expect(2);
        assert!(end.stderr.starts_with("a rebase is needed: "), "{}", end.stderr);
        assert!(end.stderr.contains("postrider rebase --yes"), "{}", end.stderr);
        assert!(end.stdout.starts_with("web: "), "{}", end.stdout);
        assert_eq!(end.stdout.lines().count(), 1, "{}", end.stdout);
    }
    let plan = End::of(&mut postrider_on(&url, &["rebase", "--json"])).expect(2).json();
    assert_eq!((&plan["needed"], &plan["done"]), (&json!(true), &json!(false)));
    assert_eq!(plan["sinks"][0]["sink"], "web");

    let done = End::of(&mut postrider_on(&url, &["rebase", "--yes", "--json"])).expect(0).json();
    assert_eq!(done["done"], json!(true));
    assert_eq!(done["sinks"], plan["sinks"]);
    End::of(&mut postrider_on(&url, &["rebase"])).expect(0);

    let mut reader = open(&database).await;
    let mut keys = Vec::new();
    while !keys.contains(&Some("new".to_owned())) {
        let batch = reader.next().await.unwrap();
        keys.extend(batch.records().map(|record| record.key.clone()));
        reader.settle(&batch).await.unwrap();
    }
    reader.close().await.unwrap();
}

#[tokio::test]
async fn readers_at_work_are_named_and_only_overruled_when_told() {
    let database = delivered().await;
    let url = database.url();
    let _reader = open(&database).await;
    run(&database, "select setval('postrider.seq', 1)").await;
    let name = format!("reader {}", std::process::id());
    let end = End::of(&mut postrider_on(&url, &["rebase"])).expect(2);
    assert!(end.stderr.contains(&name), "{}", end.stderr);
    let end = End::of(&mut postrider_on(&url, &["rebase", "--yes"])).expect(1);
    assert!(end.stderr.contains(&name) && end.stderr.contains("stop them first"), "{}", end.stderr);
    assert!(end.stderr.contains("rebase --yes --overrule-readers"), "{}", end.stderr);
    End::of(&mut postrider_on(&url, &["rebase", "--yes", "--overrule-readers"])).expect(0);
    End::of(&mut postrider_on(&url, &["rebase"])).expect(0);
}

#[tokio::test]
async fn waits_for_open_transactions_as_long_as_told() {
    let database = delivered().await;
    let url = database.url();
    run(&database, "select setval('postrider.seq', 1)").await;
    let mut writer = database.connect().await.unwrap();
    sqlx::raw_sql("begin; select postrider.emit('order.paid', '{}', key => 'open')")
        .execute(&mut writer)
        .await
        .unwrap();
    let end = End::of(&mut postrider_on(&url, &["rebase", "--yes", "--wait", "0"])).expect(1);
    assert!(end.stderr.contains("do not end") && end.stderr.contains("--wait"), "{}", end.stderr);
    sqlx::raw_sql("commit").execute(&mut writer).await.unwrap();
    End::of(&mut postrider_on(&url, &["rebase", "--yes", "--wait", "0"])).expect(0);
}

#[tokio::test]
async fn without_a_schema_the_remedy_is_init() {
    let database = empty_database().await;
    let end = End::of(&mut postrider_on(&database.url(), &["rebase"])).expect(1);
    assert_eq!(
        end.stderr,
        "error: this database has no postrider schema; install it with `postrider init`\n"
    );
}
