//! A TRUNCATE of a partitioned table, and of a single partition of it.

use postrider::capture::{self, State, Table, Truncate};
use postrider_testkit::Version;
use serde_json::{Value, json};
use sqlx::PgConnection;

use super::{captured, captured_on, events, execute, types};

const TABLES: &str = "create table public.orders (id int primary key) partition by range (id);
    create table public.orders_1 partition of orders for values from (0) to (10);
    create table public.orders_2 partition of orders for values from (10) to (20) partition by range (id);
    create table public.orders_2a partition of orders_2 for values from (10) to (15)";

fn orders() -> Table {
    Table::new("public.orders", "order")
}

/// What the relay's role finds, and mends.
async fn swept(connection: &mut PgConnection) -> Vec<(State, String)> {
    execute(connection, "set role postrider_relay").await;
    let alarms = capture::sweep(connection, &[orders()]).await.unwrap();
    execute(connection, "reset role").await;
    alarms.into_iter().map(|alarm| (alarm.state, alarm.reason)).collect()
}

/// Each event as the last part of its type, and the partition.
async fn told(connection: &mut PgConnection) -> Vec<String> {
    let word = |(kind, _, data, _): (String, String, Value, Value)| match data["partition"].as_str() {
        Some(partition) => format!("{kind} {partition}"),
        None => kind,
    };
    events(connection).await.into_iter().map(word).collect()
}

#[tokio::test]
async fn fault_52_a_truncate_of_a_partition_is_one_event_that_names_it() {
    for version in Version::ALL {
        let (_database, mut connection) = captured_on(version, TABLES, &[orders()]).await;
        let connection = &mut connection;
        execute(connection, "truncate orders_1").await;
        let found = events(connection).await;
        let wanted = (
            "order.partition.truncated".to_owned(),
            String::new(),
            json!({"partition": "public.orders_1"}),
            json!({}),
        );
        assert_eq!(found, [wanted], "{version}");
        for (write, expected) in [
            ("truncate orders", vec!["order.truncated"]),
            ("truncate orders_2", vec!["order.partition.truncated public.orders_2"]),
            (
                "begin; truncate orders; insert into orders values (1); truncate orders_1; truncate orders_2a; commit",
                vec![
                    "order.truncated",
                    "order.created",
                    "order.partition.truncated public.orders_1",
                    "order.partition.truncated public.orders_2a",
                ],
            ),
            // A mark that is left over hides nothing.
            (
                "begin; truncate orders_1, orders; insert into orders values (1); truncate orders_1; commit",
                vec![
                    "order.partition.truncated public.orders_1",
                    "order.truncated",
                    "order.created",
                    "order.partition.truncated public.orders_1",
                ],
            ),
            (
                "begin; savepoint s; truncate orders; rollback to s; truncate orders_1; commit",
                vec!["order.partition.truncated public.orders_1"],
            ),
        ] {
            execute(connection, write).await;
            assert_eq!(told(connection).await, expected, "{version}: {write}");
        }
    }
}

/// Row triggers come to a new partition by themselves; this one is brought by the sweep.
#[tokio::test]
async fn fault_52_a_partition_that_comes_later_is_watched_and_one_that_is_not_is_an_alarm() {
    for version in Version::ALL {
        let (_database, mut connection) = captured_on(version, TABLES, &[orders()]).await;
        let connection = &mut connection;
        execute(connection, "create table public.orders_3 partition of orders for values from (20) to (30)")
            .await;
        let unwatched = capture::alarms(connection, &[orders()]).await.unwrap();
        assert!(
            unwatched[0].reason.contains("orders_3 has no trigger for TRUNCATE"),
            "{version}: {unwatched:?}"
        );
        assert_eq!(swept(connection).await, [], "{version}");
        execute(connection, "truncate orders_3").await;
        assert_eq!(told(connection).await, ["order.partition.truncated public.orders_3"], "{version}");
        for (broken, state) in [
            ("drop trigger \"00_postrider_truncate\" on orders_3", State::Outdated),
            ("alter table orders_2a disable trigger \"00_postrider_truncate\"", State::Disabled),
            ("alter table orders_2a disable trigger \"00_postrider\"", State::Disabled),
            ("drop function postrider_capture.watch_public_orders", State::Outdated),
        ] {
            execute(connection, broken).await;
            for _ in 0..2 {
                let alarms = swept(connection).await;
                assert_eq!((alarms.len(), alarms[0].0), (1, state), "{version}: {broken}: {alarms:?}");
            }
            capture::apply(connection, &[orders()], false).await.unwrap();
            assert_eq!(swept(connection).await, [], "{version}: {broken}");
            execute(connection, "truncate orders").await;
            assert_eq!(told(connection).await, ["order.truncated"], "{version}: {broken}");
        }
        // One that went has nothing to do with the table any more.
        execute(connection, "alter table orders detach partition orders_1; truncate orders_1").await;
        assert_eq!(told(connection).await, [""; 0], "{version}");
        assert_eq!(swept(connection).await.len(), 1, "{version}");
        capture::apply(connection, &[orders()], false).await.unwrap();
        assert!(capture::plan(connection, &[orders()]).await.unwrap().is_done(), "{version}");
        // Nothing of ours is left behind.
        capture::apply(connection, &[], true).await.unwrap();
        let left: i64 = sqlx::query_scalar(
            "select (select count(*) from pg_trigger where not tgisinternal) + (select count(*) from pg_proc where proname like '%public\\_orders')",
        )
        .fetch_one(&mut *connection)
        .await
        .unwrap();
        assert_eq!(left, 0, "{version}");
    }
}

#[tokio::test]
async fn fault_52_a_truncate_of_a_partition_is_refused_if_so_declared() {
    let refusing = Table { truncate: Truncate::Refuse, ..orders() };
    let (_database, mut connection) = captured(TABLES, &[refusing]).await;
    for truncate in ["truncate orders_1", "truncate orders_2a", "truncate orders"] {
        let refused = sqlx::raw_sql(truncate).execute(&mut connection).await.unwrap_err();
        assert!(refused.to_string().contains("is captured and cannot be truncated"), "{truncate}: {refused}");
    }
    // A table that was a partition is its owner's again.
    execute(&mut connection, "alter table orders detach partition orders_1; truncate orders_1").await;
}

/// It waits behind the writes of the partition that wait, and is told as what it was.
#[tokio::test]
async fn a_truncate_of_a_partition_that_waits_is_recaptured_as_one() {
    let declared = [Table { tenant: Some("name".to_owned()), ..orders() }];
    let (_database, mut connection) = captured(
        "create table public.orders (id int primary key, name text) partition by range (id);
         create table public.orders_1 partition of orders for values from (0) to (10)",
        &declared,
    )
    .await;
    execute(&mut connection, "alter table orders rename column name to title; insert into orders values (1)")
        .await;
    execute(&mut connection, "set timezone = 'Asia/Tokyo'; truncate orders_1").await;
    assert_eq!(types(&mut connection).await, [""; 0]);
    let declared = [Table { tenant: Some("title".to_owned()), ..orders() }];
    capture::apply(&mut connection, &declared, false).await.unwrap();
    assert_eq!(told(&mut connection).await, ["order.created", "order.partition.truncated public.orders_1"]);
}
