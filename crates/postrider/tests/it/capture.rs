//! Captured tables: every committed change of a row becomes a precise event.

mod backfill;
mod bypass;
mod called;
mod columns;
mod departing;
mod fences;
mod forging;
mod kept;
mod kept_parents;
mod names;
mod own_json;
mod owners;
mod parents;
mod paths;
mod planning;
mod record;
mod replication;
mod rights;
mod session;
mod shadow;
mod shapes;
mod sweep;
mod tampered;
mod tracker;
mod truncate;

use postrider::capture::{self, OnFailure, Table};
use postrider_testkit::{Database, Version};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::support::database_of;

/// A database with these tables, captured as declared.
pub async fn captured(tables: &str, declared: &[Table]) -> (Database, PgConnection) {
    captured_on(Version::default(), tables, declared).await
}

/// The same on another version.
pub async fn captured_on(version: Version, tables: &str, declared: &[Table]) -> (Database, PgConnection) {
    let database = database_of(version).await;
    let mut connection = database.connect().await.unwrap();
    execute(&mut connection, tables).await;
    capture::apply(&mut connection, declared, false).await.unwrap();
    let again = capture::plan(&mut connection, declared).await.unwrap();
    assert!(again.is_done(), "{again:?}");
    (database, connection)
}

pub async fn execute(connection: &mut PgConnection, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(connection).await.unwrap();
}

/// The events since the last call, as (type, key, data, `previous_attributes`), in the order of writing.
pub async fn events(connection: &mut PgConnection) -> Vec<(String, String, Value, Value)> {
    let rows = sqlx::query("select type, key, payload::text from postrider.events order by seq")
        .fetch_all(&mut *connection)
        .await
        .unwrap();
    execute(connection, "truncate postrider.events").await;
    rows.iter()
        .map(|row| {
            let mut payload: Value = serde_json::from_str(row.get("payload")).unwrap();
            let key: Option<String> = row.get("key");
            (
                row.get("type"),
                key.unwrap_or_default(),
                payload["data"].take(),
                payload["previous_attributes"].take(),
            )
        })
        .collect()
}

/// Types alone.
pub async fn types(connection: &mut PgConnection) -> Vec<String> {
    events(connection).await.into_iter().map(|(kind, ..)| kind).collect()
}

#[tokio::test]
async fn a_row_that_comes_changes_and_goes() {
    let (_database, mut connection) = captured(
        "create table public.orders (id int primary key, total numeric, note text, seen timestamptz)",
        &[Table::new("public.orders", "order")],
    )
    .await;
    execute(&mut connection, "insert into orders values (1, 1.10, null, '2024-01-15T10:30:00Z')").await;
    execute(&mut connection, "update orders set total = 1.100, note = 'x' where id = 1").await;
    execute(&mut connection, "update orders set note = 'x' where id = 1").await;
    execute(&mut connection, "delete from orders").await;
    let seen = "2024-01-15T10:30:00+00:00";
    assert_eq!(
        events(&mut connection).await,
        [
            (
                "order.created".to_owned(),
                "1".to_owned(),
                json!({"id": 1, "total": 1.10, "note": null, "seen": seen}),
                json!({})
            ),
            (
                "order.updated".to_owned(),
                "1".to_owned(),
                json!({"id": 1, "total": 1.100, "note": "x", "seen": seen}),
                json!({"total": 1.10, "note": null})
            ),
            (
                "order.deleted".to_owned(),
                "1".to_owned(),
                json!({"id": 1, "total": 1.100, "note": "x", "seen": seen}),
                json!({})
            ),
        ]
    );
}

/// Columns that come are captured at once; columns that go make the trigger outdated, and no write fails.
#[tokio::test]
async fn a_table_that_changes_under_its_trigger_breaks_no_write() {
    let declared = [Table::new("public.orders", "order")];
    let (_database, mut connection) =
        captured("create table public.orders (id int primary key, note text)", &declared).await;
    execute(&mut connection, "insert into orders values (1, 'a')").await;
    execute(&mut connection, "alter table orders add column total int").await;
    execute(&mut connection, "update orders set total = 7").await;
    let found = events(&mut connection).await;
    assert_eq!(found[1].2, json!({"id": 1, "note": "a", "total": 7}));
    assert_eq!(found[1].3, json!({"total": null}));
    assert_eq!(
        capture::plan(&mut connection, &declared).await.unwrap().tables[0].state,
        capture::State::Outdated
    );

    execute(&mut connection, "alter table orders rename column note to remark").await;
    execute(&mut connection, "update orders set remark = 'b'").await;
    assert_eq!(types(&mut connection).await, [""; 0]);
    let kept: i64 =
        sqlx::query_scalar("select count(*) from postrider.capture_failures where sqlstate = '42703'")
            .fetch_one(&mut connection)
            .await
            .unwrap();
    assert_eq!(kept, 1, "what is missing is kept");
    capture::apply(&mut connection, &declared, false).await.unwrap();
    let found = events(&mut connection).await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].2, json!({"id": 1, "remark": "b", "total": 7}));
    assert_eq!(found[0].3, json!({"remark": "a"}));
}

/// With `on_failure: record` the write commits whatever happens to its event, and nothing of the event is lost.
#[tokio::test]
async fn a_failure_is_recorded_and_captured_again() {
    let declared = Table {
        tenant: Some("(100 / divisor)::text".to_owned()),
        context: vec!["app.initiator_id".to_owned()],
        on_failure: OnFailure::Record,
        ..Table::new("public.orders", "order")
    };
    let (_database, mut connection) = captured(
        "create table public.orders (id int primary key, divisor int)",
        std::slice::from_ref(&declared),
    )
    .await;
    execute(
        &mut connection,
        "begin; set local app.initiator_id = 'u7'; insert into orders values (1, 0); commit",
    )
    .await;
    execute(&mut connection, "update orders set divisor = 5 where id = 1").await;
    execute(&mut connection, "insert into orders values (2, 5)").await;
    let found = events(&mut connection).await;
    assert_eq!(found.len(), 1, "what comes behind it waits, another key does not: {found:?}");
    assert_eq!((found[0].0.as_str(), found[0].1.as_str()), ("order.created", "2"));
    let mended = Table { tenant: Some("coalesce(100 / nullif(divisor, 0), 0)::text".to_owned()), ..declared };
    assert_eq!(capture::recapture(&mut connection, &mended).await.unwrap().writes, 2);
    let headers: String =
        sqlx::query_scalar("select headers::text from postrider.events order by seq limit 1")
            .fetch_one(&mut connection)
            .await
            .unwrap();
    assert_eq!(serde_json::from_str::<Value>(&headers).unwrap(), json!({"initiator_id": "u7"}));
    let found = events(&mut connection).await;
    assert_eq!(
        found,
        [
            ("order.created".to_owned(), "1".to_owned(), json!({"id": 1, "divisor": 0}), json!({})),
            (
                "order.updated".to_owned(),
                "1".to_owned(),
                json!({"id": 1, "divisor": 5}),
                json!({"divisor": 0})
            )
        ]
    );
    assert_eq!(capture::recapture(&mut connection, &mended).await.unwrap().writes, 0);
}
