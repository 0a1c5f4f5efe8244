//! Changes that do not come from a session of a user: logical replication, and rewrites of a whole table.

use std::time::Duration;

use postrider::capture::{self, Replicated, State, Table};
use postrider::outbox::{self, Outbox, Preset};
use postrider_testkit::{PostgresServer, Settings, Version};
use serde_json::json;
use sqlx::PgConnection;

use super::{captured_on, events, execute, types};
use crate::outbox::tables::table;
use crate::support::database_on;

const TABLES: &str = "create table public.orders (id int primary key, note text); create table public.copies (id int primary key)";

/// Waits for rows that replication brings.
async fn until(connection: &mut PgConnection, question: &'static str) {
    let begin = std::time::Instant::now();
    while !sqlx::query_scalar::<_, bool>(question).fetch_one(&mut *connection).await.unwrap() {
        assert!(begin.elapsed() < Duration::from_mins(3), "never: {question}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The initial copy too. Where both sides capture, one of them says `ignore`, or every change would be told twice.
#[tokio::test]
async fn fault_55_what_logical_replication_brings_is_captured_or_ignored_as_declared() {
    for version in Version::ALL {
        // A server of its own: making a slot waits for every transaction of the cluster.
        let server = PostgresServer::private(version, Settings::for_tests()).await.unwrap();
        let (source, target) = (database_on(&server).await, database_on(&server).await);
        let mut from = source.connect().await.unwrap();
        let mut to = target.connect().await.unwrap();
        for connection in [&mut from, &mut to] {
            execute(connection, TABLES).await;
            execute(connection, table(Preset::OutboxTopic)).await;
        }
        let ignoring = Table { replicated: Replicated::Ignore, ..Table::new("public.copies", "copy") };
        let declared = [Table::new("public.orders", "order"), ignoring];
        capture::apply(&mut to, &declared, false).await.unwrap();
        assert!(capture::plan(&mut to, &declared).await.unwrap().is_done(), "{version}");
        outbox::apply(&mut to, &[Outbox::new("public.outbox", Preset::OutboxTopic)], false).await.unwrap();
        execute(
            &mut from,
            "insert into orders values (1, 'copied'); insert into copies values (1); create publication p for table orders, copies, outbox",
        )
        .await;
        execute(&mut from, "select pg_create_logical_replication_slot('s', 'pgoutput')").await;
        let url = source.url();
        execute(
            &mut to,
            &format!("create subscription s connection '{url}' publication p with (create_slot = false)"),
        )
        .await;
        until(&mut to, "select bool_and(srsubstate = 'r') from pg_subscription_rel").await;
        execute(
            &mut from,
            "insert into orders values (2, 'applied'); insert into copies values (2); update orders set note = 'x' where id = 2;
             insert into outbox (topic, key, payload) values ('adopted', 'k', '{}')",
        )
        .await;
        until(&mut to, "select (select count(*) from orders where note = 'x') + (select count(*) from copies where id = 2) + (select count(*) from outbox) = 3")
            .await;
        assert_eq!(
            types(&mut to).await,
            ["order.created", "order.created", "order.updated", "adopted"],
            "{version}"
        );
        // A user's own writes are captured in either case.
        execute(&mut to, "insert into copies values (3)").await;
        assert_eq!(types(&mut to).await, ["copy.created"], "{version}");
        execute(
            &mut to,
            "alter subscription s disable; alter subscription s set (slot_name = none); drop subscription s",
        )
        .await;
    }
}

/// No row trigger hears of these: the rows are the same rows, or another table's. They break nothing, and what changed is in the
/// next event of a row; `docs/capture.md` says so.
#[tokio::test]
async fn fault_59_a_rewrite_makes_no_events_and_breaks_none() {
    for version in Version::ALL {
        let declared = [Table::new("public.orders", "order")];
        let (_database, mut connection) = captured_on(version, TABLES, &declared).await;
        execute(&mut connection, "insert into orders values (1, '7')").await;
        assert_eq!(types(&mut connection).await, ["order.created"], "{version}");
        execute(
            &mut connection,
            "alter table orders add column total int default 5;
             alter table orders alter note type int using note::int + 1;
             create table public.others as select * from orders",
        )
        .await;
        assert_eq!(events(&mut connection).await, [], "{version}");
        // A session that was open before has plans for the old type: its write succeeds, and its event is kept for `apply`.
        execute(&mut connection, "update orders set id = 2").await;
        assert_eq!(events(&mut connection).await, [], "{version}");
        let plan = capture::plan(&mut connection, &declared).await.unwrap();
        assert_eq!(plan.tables[0].state, State::Outdated, "{version}");
        capture::apply(&mut connection, &declared, false).await.unwrap();
        execute(&mut connection, "update orders set id = 3").await;
        let found = events(&mut connection).await;
        assert_eq!(found.len(), 2, "{version}");
        assert_eq!(found[0].2, json!({"id": 2, "note": 8, "total": 5}), "{version}");
        assert_eq!((&found[1].2["id"], &found[1].3), (&json!(3), &json!({"id": 2})), "{version}");
        let left = capture::missing(&mut connection).await.unwrap();
        assert!(left.is_empty(), "{version}: {left:?}");
    }
}
