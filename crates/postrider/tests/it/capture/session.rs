//! What the writing session has set decides neither over a write nor over its event.

use postrider::capture::{self, Backfill, OnFailure, Parent, State, Table, Which};
use postrider_testkit::Version;
use serde_json::json;
use sqlx::PgConnection;

use super::owners::{Stage, drop_role};
use super::{captured, events, execute, types};

fn orders() -> Table {
    Table::new("public.orders", "order")
}

async fn kept(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar("select count(*) from postrider.capture_failures").fetch_one(connection).await.unwrap()
}

/// What is remembered and what is kept stands behind row security, of which a session may want to hear instead.
#[tokio::test]
async fn without_row_security_the_write_survives() {
    let Stage { database: _database, mut admin, role, mut owner } = Stage::set(Version::default()).await;
    execute(
        &mut owner,
        "create table app.cases (id int primary key, kind text);
         create table app.items (id int primary key, case_id int references app.cases on delete cascade, note text)",
    )
    .await;
    let declared = Table {
        r#type: Some("parent.kind".to_owned()),
        parent: Some(Parent {
            table: "app.cases".to_owned(),
            column: "id".to_owned(),
            on: "case_id".to_owned(),
        }),
        ..Table::new("app.items", "item")
    };
    capture::apply(&mut admin, &[declared], false).await.unwrap();
    execute(&mut owner, "set row_security = off").await;
    execute(&mut owner, "insert into app.cases values (1, 'epic'); insert into app.items values (1, 1)")
        .await;
    execute(&mut owner, "delete from app.cases").await;
    assert_eq!(types(&mut admin).await, ["epic.created", "epic.deleted"]);
    execute(&mut owner, "alter table app.items rename note to remark").await;
    execute(&mut owner, "insert into app.items values (2, null)").await;
    assert_eq!(kept(&mut admin).await, 1);
    drop_role(&mut admin, owner, &role).await;
}

/// Its own snapshot shows such a transaction nothing of what was kept since it began.
#[tokio::test]
async fn a_transaction_that_sees_the_past_overtakes_nothing_that_is_kept() {
    for (write, verb) in [("insert into orders values (1, 7)", "created"), ("truncate orders", "truncated")] {
        let broken =
            Table { tenant: Some("(1 / n)::text".to_owned()), on_failure: OnFailure::Record, ..orders() };
        let (database, mut connection) = captured(
            "create table public.orders (id int primary key, n int); insert into public.orders values (1, 2)",
            std::slice::from_ref(&broken),
        )
        .await;
        let mut past = database.connect().await.unwrap();
        execute(&mut past, "begin isolation level repeatable read; select count(*) from postrider.lanes()")
            .await;
        execute(&mut connection, "update orders set n = 0; delete from orders").await;
        execute(&mut past, write).await;
        execute(&mut past, "commit").await;
        assert_eq!(kept(&mut connection).await, 3, "{write}");
        let mended = Table { tenant: None, ..broken };
        capture::apply(&mut connection, &[mended], false).await.unwrap();
        let last = format!("order.{verb}");
        assert_eq!(types(&mut connection).await, ["order.updated", "order.deleted", last.as_str()]);
        execute(&mut past, "begin isolation level serializable; insert into orders values (2, 1); commit")
            .await;
        assert_eq!(types(&mut connection).await, ["order.created"], "nothing is kept, nothing waits");
    }
}

/// A session may take a backslash for an escape.
#[tokio::test]
async fn an_expression_with_a_backslash_means_the_same_in_every_session() {
    let declared =
        Table { r#type: Some(r"case when n ~ '^\d+$' then 'number' else 'word' end".to_owned()), ..orders() };
    let (_database, mut connection) =
        captured("create table public.orders (id int primary key, n text)", std::slice::from_ref(&declared))
            .await;
    execute(&mut connection, "set standard_conforming_strings = off; set escape_string_warning = off").await;
    execute(&mut connection, "insert into orders values (1, '12')").await;
    assert_eq!(types(&mut connection).await, ["number.created"]);
    let (backfill, _) = Backfill::open(&mut connection, &declared, None).await.unwrap();
    assert!(backfill.page(&mut connection, 10).await.unwrap().is_done);
    assert_eq!(types(&mut connection).await, ["number.snapshot"]);
    execute(
        &mut connection,
        "alter function postrider_capture.capture_public_orders() reset standard_conforming_strings",
    )
    .await;
    let plan = capture::plan(&mut connection, &[declared]).await.unwrap();
    assert_eq!(plan.tables[0].state, State::Outdated);
}

/// Checks of PL/pgSQL for those who write it by hand.
#[tokio::test]
async fn a_server_that_is_strict_about_names_takes_columns_that_are_called_as_our_variables() {
    let declared = Table { tenant: Some("key".to_owned()), ..orders() };
    let (_database, mut connection) = captured(
        "create table public.orders (id int primary key, key text, note text); set plpgsql.extra_errors = 'all'",
        std::slice::from_ref(&declared),
    )
    .await;
    execute(&mut connection, "insert into orders values (1, 'a')").await;
    let (backfill, _) = Backfill::open(&mut connection, &declared, None).await.unwrap();
    assert!(backfill.page(&mut connection, 10).await.unwrap().is_done);
    execute(&mut connection, "alter table orders rename note to remark").await;
    execute(&mut connection, "update orders set remark = 'b'").await;
    capture::apply(&mut connection, &[declared], false).await.unwrap();
    assert_eq!(types(&mut connection).await, ["order.created", "order.snapshot", "order.updated"]);
}

/// What is kept is found by its table's name, however the session writes names.
#[tokio::test]
async fn a_session_that_quotes_every_name_keeps_events_under_the_same_one() {
    let (_database, mut connection) =
        captured("create table public.orders (id int primary key, note text)", &[orders()]).await;
    execute(&mut connection, "alter table orders rename note to remark").await;
    execute(&mut connection, "set quote_all_identifiers = on").await;
    execute(&mut connection, "insert into orders values (1)").await;
    let of_table = Which::Relation("public.orders".to_owned());
    assert_eq!(capture::kept(&mut connection, &of_table).await.unwrap().0, 1);
    execute(&mut connection, "alter table orders rename remark to note").await;
    let plan = capture::plan(&mut connection, &[orders()]).await.unwrap();
    assert_eq!(plan.tables[0].state, State::Installed, "{plan:?}");
}

/// Nor does an event have them otherwise, be it of a column that has come since.
#[tokio::test]
async fn a_session_that_quotes_every_name_writes_those_in_events_as_others_do() {
    let declared = Table { tenant: Some("quote_ident('plain')".to_owned()), ..orders() };
    for declared in [orders(), declared] {
        let (_database, mut connection) =
            captured("create table public.orders (id int primary key, about regclass)", &[declared]).await;
        execute(&mut connection, "set quote_all_identifiers = on").await;
        execute(&mut connection, "insert into orders values (1, 'public.orders')").await;
        execute(&mut connection, "alter table orders add kind regtype").await;
        execute(&mut connection, "insert into orders values (2, 'public.orders', 'public.orders')").await;
        let quotes: String =
            sqlx::query_scalar("show quote_all_identifiers").fetch_one(&mut connection).await.unwrap();
        assert_eq!(quotes, "on", "a session keeps its settings");
        let strange: i64 =
            sqlx::query_scalar("select count(*) from postrider.events where tenant <> 'plain'")
                .fetch_one(&mut connection)
                .await
                .unwrap();
        assert_eq!(strange, 0);
        let found: Vec<_> = events(&mut connection).await.into_iter().map(|event| event.2).collect();
        assert_eq!(
            found,
            [
                json!({"id": 1, "about": "public.orders"}),
                json!({"id": 2, "about": "public.orders", "kind": "public.orders"})
            ]
        );
    }
}
