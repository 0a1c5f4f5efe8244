//! The minute's look at the triggers: what is missing, switched off or outdated, and partitions that come and go, by a role that
//! has no right to the tables.

use postrider::capture::{self, Alarm, Error, Parent, State, Table};
use postrider_testkit::Version;
use sqlx::PgConnection;

use super::{captured, captured_on, events, execute, types};

fn orders() -> Table {
    Table::new("public.orders", "order")
}

/// As the relay's role sees it.
async fn swept(connection: &mut PgConnection, tables: &[Table]) -> Vec<Alarm> {
    execute(connection, "set role postrider_relay").await;
    let alarms = capture::sweep(connection, tables).await.unwrap();
    execute(connection, "reset role").await;
    alarms
}

async fn states(connection: &mut PgConnection, tables: &[Table]) -> Vec<State> {
    swept(connection, tables).await.into_iter().map(|alarm| alarm.state).collect()
}

#[tokio::test]
async fn fault_37_a_trigger_that_is_missing_or_switched_off_is_an_alarm() {
    for version in Version::ALL {
        let child = Table {
            parent: Some(Parent {
                table: "hidden.parents".to_owned(),
                column: "id".to_owned(),
                on: "parent_id".to_owned(),
            }),
            // Of a table that the relay may not read.
            extra: [("n".to_owned(), "(select count(*) from hidden.parents)".to_owned())].into(),
            ..Table::new("hidden.children", "child")
        };
        let declared = [orders(), child];
        let (_database, mut connection) = captured_on(
            version,
            "create table public.orders (id int primary key, note text); create schema hidden;
             create table hidden.parents (id int primary key);
             create table hidden.children (id int primary key, parent_id int references hidden.parents)",
            &declared,
        )
        .await;
        let connection = &mut connection;
        assert_eq!(swept(connection, &declared).await, [], "{version}");
        for (broken, state) in [
            ("alter table orders disable trigger user", State::Disabled),
            ("alter table orders disable trigger all", State::Disabled),
            ("alter table hidden.parents disable trigger \"00_postrider_departed\"", State::Disabled),
            ("drop trigger \"00_postrider\" on hidden.children", State::Missing),
            ("drop function postrider_capture.capture_public_orders cascade", State::Missing),
            ("alter table orders add column total int", State::Outdated),
        ] {
            execute(connection, broken).await;
            assert_eq!(states(connection, &declared).await, [state], "{version}: {broken}");
            capture::apply(connection, &declared, false).await.unwrap();
            assert_eq!(swept(connection, &declared).await, [], "{version}: {broken}");
        }
        execute(connection, "drop table orders").await;
        assert_eq!(states(connection, &declared).await, [State::Missing], "{version}");
    }
}

#[tokio::test]
async fn fault_56_partitions_that_come_or_go_with_their_rows_are_an_alarm() {
    for version in Version::ALL {
        let declared = [orders()];
        let (_database, mut connection) = captured_on(
            version,
            "create table public.orders (id int primary key, note text) partition by range (id);
             create table public.orders_1 partition of orders for values from (0) to (10)",
            &declared,
        )
        .await;
        let connection = &mut connection;
        assert_eq!(swept(connection, &declared).await, [], "{version}");
        // Made as a partition it was empty: no news. It is missed when it goes.
        execute(
            connection,
            "create table public.orders_2 partition of orders for values from (10) to (20); insert into orders values (11)",
        )
        .await;
        assert_eq!(types(connection).await, ["order.created"], "{version}");
        assert_eq!(swept(connection, &declared).await, [], "{version}");
        execute(
            connection,
            "create table public.orders_3 (like orders including all); insert into orders_3 values (21)",
        )
        .await;
        for (change, said) in [
            (
                "alter table orders attach partition orders_3 for values from (20) to (30)",
                "orders_3 was attached",
            ),
            ("alter table orders detach partition orders_1", "orders_1 was detached or dropped"),
            ("drop table orders_2", "orders_2 was detached or dropped"),
        ] {
            execute(connection, change).await;
            assert_eq!(events(connection).await, [], "{version}: {change}");
            let alarms = swept(connection, &declared).await;
            assert_eq!(alarms.len(), 1, "{version}: {change}");
            assert!(alarms[0].reason.contains(said), "{version}: {}", alarms[0].reason);
            // It stays until somebody has taken note.
            assert_eq!(swept(connection, &declared).await, alarms, "{version}: {change}");
            capture::apply(connection, &declared, false).await.unwrap();
            assert_eq!(swept(connection, &declared).await, [], "{version}: {change}");
        }
    }
}

/// Also one that is made, filled and attached in one transaction, and one that goes and comes back; not one that is only given away.
#[tokio::test]
async fn fault_56_rows_that_come_with_a_partition_are_told_of_however_it_came() {
    for version in Version::ALL {
        let declared = [orders()];
        let (_database, mut connection) = captured_on(
            version,
            "create table public.orders (id int primary key, note text default 'x') partition by range (id);
             create table public.orders_1 partition of orders for values from (0) to (10)",
            &declared,
        )
        .await;
        let connection = &mut connection;
        // Before a sweep has learned of it, and behind it.
        execute(connection, "create table public.orders_2 partition of orders for values from (10) to (20); alter table orders_2 owner to postrider_relay")
            .await;
        execute(connection, "create table public.orders_3 partition of orders (note default 'y') for values from (20) to (30)").await;
        for _ in 0..2 {
            assert_eq!(swept(connection, &declared).await, [], "{version}");
        }
        execute(connection, "alter table orders_3 owner to postrider_relay; alter table orders_1 rename to first; alter table first rename to orders_1")
            .await;
        assert_eq!(swept(connection, &declared).await, [], "{version}");
        for (change, said) in [
            (
                "begin; create table public.orders_4 (like orders including all); insert into orders_4 values (31);
                 alter table orders attach partition orders_4 for values from (30) to (40); commit",
                "orders_4 was attached",
            ),
            (
                "alter table orders detach partition orders_1; insert into orders_1 values (1);
                 alter table orders attach partition orders_1 for values from (0) to (10)",
                "orders_1 was attached",
            ),
            (
                "drop table orders_1; create table public.orders_1 partition of orders for values from (0) to (10)",
                "orders_1 was detached or dropped",
            ),
        ] {
            execute(connection, change).await;
            let alarms = swept(connection, &declared).await;
            assert_eq!(alarms.len(), 1, "{version}: {change}");
            assert!(alarms[0].reason.contains(said), "{version}: {}", alarms[0].reason);
            assert_eq!(swept(connection, &declared).await, alarms, "{version}: {change}");
            capture::apply(connection, &declared, false).await.unwrap();
            assert_eq!(swept(connection, &declared).await, [], "{version}: {change}");
        }
        // As after a restore: the same tables have other numbers.
        execute(connection, "update postrider.partitions set origin = '7/1/2/3'").await;
        assert_eq!(swept(connection, &declared).await, [], "{version}");
        execute(connection, "reassign owned by postrider_relay to postgres").await;
    }
}

#[tokio::test]
async fn a_partition_and_its_table_are_not_both_captured() {
    let (_database, mut connection) = captured(
        "create table public.orders (id int primary key) partition by range (id);
         create table public.few partition of orders for values from (0) to (10) partition by range (id);
         create table public.fewer partition of few for values from (0) to (5)",
        &[Table::new("public.fewer", "few")],
    )
    .await;
    let both = [orders(), Table::new("public.fewer", "few")];
    let refused = capture::plan(&mut connection, &both).await.unwrap_err();
    assert!(
        matches!(&refused, Error::Overlap { table, partition } if table == "public.orders" && partition == "public.fewer"),
        "{refused}"
    );
    // The old trigger of the partition is in the way until it is removed.
    let refused = capture::apply(&mut connection, &[orders()], false).await.unwrap_err();
    assert!(matches!(refused, Error::Overlap { .. }), "{refused}");
    capture::apply(&mut connection, &[orders()], true).await.unwrap();
    assert!(capture::plan(&mut connection, &[orders()]).await.unwrap().is_done());
    execute(&mut connection, "insert into orders values (1)").await;
    assert_eq!(types(&mut connection).await, ["order.created"]);
}

/// Whoever applies and whoever looks may have different search paths.
#[tokio::test]
async fn types_of_the_user_are_found_by_the_trigger_and_compared_by_everybody() {
    let declared = [Table { tenant: Some("mood::text".to_owned()), ..orders() }];
    let (_database, mut connection) = captured(
        "create type public.mood as enum ('sad', 'glad'); create table public.orders (id int primary key, mood public.mood)",
        &declared,
    )
    .await;
    execute(&mut connection, "insert into orders values (1, 'glad')").await;
    assert_eq!(types(&mut connection).await, ["order.created"]);
    execute(&mut connection, "set search_path = ''").await;
    assert!(capture::plan(&mut connection, &declared).await.unwrap().is_done());
    assert_eq!(capture::sweep(&mut connection, &declared).await.unwrap(), []);
}
