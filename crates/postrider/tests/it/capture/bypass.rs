//! Ways of changing a row that a trigger can miss, by the numbers of the list, on every version.

use postrider::capture::{self, Error, State, Table, Truncate};
use postrider_testkit::Version;
use serde_json::json;

use super::{captured_on, events, execute, types};
use crate::support::database_of;

const ORDERS: &str = "create table public.orders (id int primary key, note text)";

fn orders() -> Table {
    Table::new("public.orders", "order")
}

#[tokio::test]
async fn fault_51_every_way_of_writing_a_row_is_captured() {
    for version in Version::ALL {
        let lines = Table { key: Some("order_id".to_owned()), ..Table::new("public.lines", "line") };
        let (_database, mut connection) = captured_on(
            version,
            "create table public.orders (id int primary key, note text);
             create view public.visible_orders as select * from orders where note is null;
             create table public.lines (id int, order_id int references orders on delete cascade) partition by list (id);
             create table public.lines_1 partition of lines for values in (1)",
            &[orders(), lines],
        )
        .await;
        let connection = &mut connection;
        let mut copy = connection.copy_in_raw("copy public.orders (id) from stdin").await.unwrap();
        copy.send(&b"1\n2\n"[..]).await.unwrap();
        copy.finish().await.unwrap();
        assert_eq!(types(connection).await, ["order.created", "order.created"], "{version}: COPY");
        execute(
            connection,
            "insert into orders values (1), (3) on conflict (id) do update set note = 'again'",
        )
        .await;
        assert_eq!(types(connection).await, ["order.updated", "order.created"], "{version}: ON CONFLICT");
        if version >= Version::V15 {
            execute(
                connection,
                "merge into orders o using (values (3), (4)) v (id) on o.id = v.id
                 when matched then delete when not matched then insert values (v.id)",
            )
            .await;
            let mut found = types(connection).await;
            found.sort();
            assert_eq!(found, ["order.created", "order.deleted"], "{version}: MERGE");
        }
        execute(
            connection,
            "insert into visible_orders values (5); update visible_orders set note = 'x' where id = 5",
        )
        .await;
        assert_eq!(
            types(connection).await,
            ["order.created", "order.updated"],
            "{version}: an updatable view"
        );
        execute(
            connection,
            "insert into lines_1 values (1, 5); create table lines_2 partition of lines for values in (2)",
        )
        .await;
        execute(connection, "insert into lines values (2, 5)").await;
        assert_eq!(
            types(connection).await,
            ["line.created", "line.created"],
            "{version}: a partition, and a later one"
        );
        execute(connection, "update lines set id = 2 where id = 1").await;
        assert_eq!(types(connection).await, ["line.deleted", "line.created"], "{version}: a row that moves");
        execute(connection, "delete from orders where id = 5").await;
        assert_eq!(
            types(connection).await,
            ["order.deleted", "line.deleted", "line.deleted"],
            "{version}: a cascade"
        );
    }
}

#[tokio::test]
async fn fault_52_a_truncate_is_one_event_or_refused() {
    for version in Version::ALL {
        let refusing = Table { truncate: Truncate::Refuse, ..Table::new("public.lines", "line") };
        let (_database, mut connection) = captured_on(
            version,
            "create table public.orders (id int primary key, note text); create table public.lines (id int primary key)",
            &[orders(), refusing],
        )
        .await;
        execute(&mut connection, "insert into orders values (1), (2); insert into lines values (1)").await;
        assert_eq!(types(&mut connection).await.len(), 3);
        execute(&mut connection, "truncate orders cascade").await;
        let found = events(&mut connection).await;
        assert_eq!(
            found,
            [("order.truncated".to_owned(), String::new(), json!(null), json!({}))],
            "{version}"
        );
        let refused = sqlx::raw_sql("truncate lines").execute(&mut connection).await.unwrap_err();
        assert!(
            refused.to_string().contains("lines is captured and cannot be truncated"),
            "{version}: {refused}"
        );
    }
}

#[tokio::test]
async fn fault_53_a_replica_session_is_captured_too() {
    for version in Version::ALL {
        let (_database, mut connection) = captured_on(version, ORDERS, &[orders()]).await;
        execute(&mut connection, "set session_replication_role = replica; insert into orders values (1)")
            .await;
        assert_eq!(types(&mut connection).await, ["order.created"], "{version}");
    }
}

#[tokio::test]
async fn fault_54_a_trigger_that_is_switched_off_is_found_out() {
    for version in Version::ALL {
        let (_database, mut connection) = captured_on(version, ORDERS, &[orders()]).await;
        for off in [
            "alter table orders disable trigger \"00_postrider\"",
            "alter table orders disable trigger user",
            "alter table orders disable trigger all",
            "alter table orders enable trigger \"00_postrider\"",
        ] {
            execute(&mut connection, off).await;
            let plan = capture::plan(&mut connection, &[orders()]).await.unwrap();
            assert_eq!(plan.tables[0].state, State::Disabled, "{version}: {off}");
            capture::apply(&mut connection, &[orders()], false).await.unwrap();
            assert!(capture::plan(&mut connection, &[orders()]).await.unwrap().is_done());
        }
        execute(&mut connection, "drop trigger \"00_postrider\" on orders").await;
        let plan = capture::plan(&mut connection, &[orders()]).await.unwrap();
        assert_eq!(plan.tables[0].state, State::Missing, "{version}");
    }
}

#[tokio::test]
async fn fault_58_inheriting_tables_are_refused_by_name() {
    for version in Version::ALL {
        let database = database_of(version).await;
        let mut connection = database.connect().await.unwrap();
        execute(
            &mut connection,
            "create table public.orders (id int primary key); create table public.big () inherits (orders)",
        )
        .await;
        let refused = capture::plan(&mut connection, &[orders()]).await.unwrap_err();
        assert!(
            matches!(&refused, Error::Inherited { children, .. } if children == "public.big"),
            "{version}: {refused}"
        );
    }
}

#[tokio::test]
async fn fault_60_what_a_before_trigger_changes_is_captured() {
    for version in Version::ALL {
        let (_database, mut connection) = captured_on(
            version,
            "create table public.orders (id int primary key, note text, touched int default 0);
             create function touch() returns trigger language plpgsql as 'begin new.touched := old.touched + 1; return new; end';
             create trigger touch before update of note on orders for each row execute function touch()",
            &[orders()],
        )
        .await;
        execute(&mut connection, "insert into orders values (1); update orders set note = 'x'").await;
        let found = events(&mut connection).await;
        assert_eq!(found[1].3, json!({"note": null, "touched": 0}), "{version}");
    }
}

#[tokio::test]
async fn fault_61_a_write_straight_to_a_partition_is_captured_wherever_its_columns_are() {
    for version in Version::ALL {
        let (_database, mut connection) = captured_on(
            version,
            "create table public.orders (id int, note text, primary key (id)) partition by range (id);
             create table public.old_orders (dropped int, note text, id int not null);
             alter table old_orders drop column dropped;
             alter table orders attach partition old_orders for values from (0) to (100)",
            &[orders()],
        )
        .await;
        execute(
            &mut connection,
            "insert into old_orders (id, note) values (1, 'a'); update orders set note = 'b'",
        )
        .await;
        let found = events(&mut connection).await;
        assert_eq!(found[0].2, json!({"id": 1, "note": "a"}), "{version}");
        assert_eq!(
            (&found[1].2, &found[1].3),
            (&json!({"id": 1, "note": "b"}), &json!({"note": "a"})),
            "{version}"
        );
    }
}

#[tokio::test]
async fn fault_62_an_update_that_changes_nothing_is_no_event() {
    for version in Version::ALL {
        let (_database, mut connection) = captured_on(version, ORDERS, &[orders()]).await;
        execute(&mut connection, "insert into orders values (1, 'x'); update orders set note = 'x', id = id")
            .await;
        assert_eq!(types(&mut connection).await, ["order.created"], "{version}");
    }
}

#[tokio::test]
async fn fault_63_what_is_rolled_back_is_no_event() {
    for version in Version::ALL {
        let (_database, mut connection) = captured_on(
            version,
            "create table public.orders (id int primary key, note text unique deferrable initially deferred)",
            &[orders()],
        )
        .await;
        execute(
            &mut connection,
            "begin; insert into orders values (1); savepoint s; insert into orders values (2); rollback to s; commit",
        )
        .await;
        let refused = sqlx::raw_sql(
            "begin; insert into orders values (3, 'same'); insert into orders values (4, 'same'); commit",
        )
        .execute(&mut connection)
        .await;
        assert!(refused.is_err());
        assert_eq!(events(&mut connection).await.len(), 1, "{version}");
    }
}

#[tokio::test]
async fn fault_64_any_name_is_quoted() {
    let long = "n".repeat(63);
    let names = [
        "a\"b",
        "a'b",
        "a;drop table x",
        "$$",
        "$postrider$",
        "ünïcode 雪",
        "select",
        "old",
        "capture",
        "data",
        "NEW",
        "100 %s",
        &long,
    ];
    let quoted = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    let tables = names.map(|name| {
        format!(
            "create table public.{0} (id int primary key, {0} text) partition by range (id);",
            quoted(name)
        )
    });
    let partitions = names.iter().enumerate().map(|(number, name)| {
        format!(
            "create table public.{} partition of public.{} default;",
            quoted(&format!("{number} '%s$$\"")),
            quoted(name)
        )
    });
    let tables = tables.concat() + &partitions.collect::<String>();
    let declared = names.map(|name| Table {
        soft_delete: Some(name.to_owned()),
        ..Table::new(format!("public.{}", quoted(name)), name)
    });
    for version in Version::ALL {
        let (_database, mut connection) = captured_on(version, &tables, &declared).await;
        for (number, name) in names.iter().enumerate() {
            let (table, partition) = (quoted(name), quoted(&format!("{number} '%s$$\"")));
            execute(
                &mut connection,
                &format!("insert into public.{table} values (1); update public.{table} set {table} = 'x'; truncate public.{partition}"),
            )
            .await;
            let found = events(&mut connection).await;
            let kinds: Vec<&str> = found.iter().map(|(kind, ..)| kind.as_str()).collect();
            let verbs = ["created", "deleted", "partition.truncated"];
            assert_eq!(kinds, verbs.map(|verb| format!("{name}.{verb}")), "{version}");
            assert_eq!(found[1].2, json!({"id": 1, *name: "x"}), "{version}");
            assert_eq!(found[2].2, json!({"partition": format!("public.{partition}")}), "{version}");
        }
    }
}
