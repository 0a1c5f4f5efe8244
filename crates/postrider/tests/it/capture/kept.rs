//! Events that are kept: in order, each once, none lost, and none that holds up another table.

use postrider::capture::{self, Backfill, Error, OnFailure, Table, Which};
use serde_json::{Value, json};
use sqlx::PgConnection;

use super::{captured, events, execute, types};

fn orders() -> Table {
    Table::new("public.orders", "order")
}

/// Type and data of each event since the last call.
async fn told(connection: &mut PgConnection) -> Vec<(String, Value)> {
    events(connection).await.into_iter().map(|(kind, _, data, _)| (kind, data)).collect()
}

async fn kept(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar("select count(*) from postrider.capture_failures").fetch_one(connection).await.unwrap()
}

/// A session with the plans of before keeps its event; what another session writes to the row later does not overtake it.
#[tokio::test]
async fn a_later_event_of_a_key_waits_behind_one_that_is_kept() {
    let declared = [orders()];
    let (database, mut connection) =
        captured("create table public.orders (id int primary key, n int)", &declared).await;
    let mut old = database.connect().await.unwrap();
    execute(&mut old, "insert into orders values (1, 1); update orders set n = 2").await;
    execute(&mut connection, "alter table orders alter n type bigint").await;
    execute(&mut old, "update orders set n = 3").await;
    assert_eq!(kept(&mut connection).await, 1);
    // As its trigger knows it again: nothing but what is kept keeps this from being recorded.
    execute(
        &mut connection,
        "alter table orders alter n type int; update orders set n = 4; insert into orders values (2, 1)",
    )
    .await;
    assert_eq!(kept(&mut connection).await, 3);
    capture::apply(&mut connection, &declared, false).await.unwrap();
    let of_first: Vec<Value> = told(&mut connection)
        .await
        .into_iter()
        .map(|(_, data)| data)
        .filter(|data| data["id"] == 1)
        .collect();
    assert_eq!(of_first, [1, 2, 3, 4].map(|n| json!({"id": 1, "n": n})));
    assert_eq!(kept(&mut connection).await, 0);
    execute(&mut connection, "update orders set n = 5 where id = 1").await;
    assert_eq!(told(&mut connection).await.len(), 1, "nothing is kept, nothing waits");
}

/// Triggers look no further once nothing is kept; what somebody has kept and not committed counts.
#[tokio::test]
async fn an_event_that_is_about_to_be_kept_is_not_overlooked() {
    let (database, mut connection) =
        captured("create table public.orders (id int primary key, note text)", &[orders()]).await;
    let mut slow = database.connect().await.unwrap();
    execute(&mut connection, "alter table orders rename note to remark").await;
    execute(&mut slow, "begin; insert into orders values (1)").await;
    assert_eq!(capture::recapture(&mut connection, &orders()).await.unwrap().writes, 0);
    execute(&mut slow, "commit").await;
    execute(&mut connection, "alter table orders rename remark to note; update orders set note = 'x'").await;
    assert_eq!((types(&mut connection).await.len(), kept(&mut connection).await), (0, 2));
}

/// The same where the trigger is renewed by a migration, which records nothing.
#[tokio::test]
async fn a_trigger_that_is_renewed_by_hand_lets_nothing_overtake() {
    let declared = [orders()];
    let (_database, mut connection) =
        captured("create table public.orders (id int primary key, note text)", &declared).await;
    execute(&mut connection, "insert into orders values (1, 'a'); alter table orders rename note to remark")
        .await;
    execute(&mut connection, "update orders set remark = 'b'").await;
    for statement in &capture::plan(&mut connection, &declared).await.unwrap().tables[0].statements {
        execute(&mut connection, statement).await;
    }
    execute(&mut connection, "update orders set remark = 'c'; delete from orders").await;
    assert_eq!(types(&mut connection).await, ["order.created"]);
    assert_eq!(capture::recapture(&mut connection, &declared[0]).await.unwrap().writes, 3);
    let remark = |kind: &str, remark: &str| (format!("order.{kind}"), json!({"id": 1, "remark": remark}));
    assert_eq!(
        told(&mut connection).await,
        [remark("updated", "b"), remark("updated", "c"), remark("deleted", "c")]
    );
}

/// Columns are known by what they are, not by what they were called.
#[tokio::test]
async fn a_kept_row_survives_its_columns_being_renamed_again() {
    let declared = [orders()];
    let (_database, mut connection) =
        captured("create table public.orders (id int primary key, name text, gone int)", &declared).await;
    execute(
        &mut connection,
        "alter table orders rename name to title; insert into orders values (2, 'two', 7); update orders set title = 'two!';
         alter table orders rename title to subject; alter table orders add title text; alter table orders drop gone",
    )
    .await;
    assert_eq!(kept(&mut connection).await, 2);
    capture::apply(&mut connection, &declared, false).await.unwrap();
    let found = events(&mut connection).await;
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(found[0].2, json!({"id": 2, "subject": "two"}));
    assert_eq!((&found[1].2["subject"], &found[1].3), (&json!("two!"), &json!({"subject": "two"})));
}

/// An event of that time has none of it: nobody knows what the row would have had there.
#[tokio::test]
async fn a_column_that_came_later_is_not_in_a_kept_event() {
    let table = Table {
        omit: vec!["gone".to_owned()],
        extra: [("gone".to_owned(), "upper(coalesce(gone, 'x'))".to_owned())].into(),
        ..orders()
    };
    let (_database, mut connection) =
        captured("create table public.orders (id int primary key, name text)", &[orders()]).await;
    execute(
        &mut connection,
        "insert into orders values (1, 'one'); alter table orders rename name to title; update orders set title = 'uno'; insert into orders values (2, 'two');
         alter table orders add n int default 5, add gone text; update orders set n = 6 where id = 2",
    )
    .await;
    events(&mut connection).await;
    capture::apply(&mut connection, &[table], false).await.unwrap();
    let found = events(&mut connection).await;
    assert_eq!(found.len(), 3, "{found:?}");
    assert_eq!(
        (&found[0].2, &found[0].3),
        (&json!({"id": 1, "title": "uno", "gone": "X"}), &json!({"title": "one"}))
    );
    assert_eq!(found[1].2, json!({"id": 2, "title": "two", "gone": "X"}));
    assert_eq!((&found[2].2["n"], &found[2].3), (&json!(6), &json!({"n": 5})));
}

/// A row of a table that was restored since, whose columns have other numbers: what nobody can place is not guessed.
#[tokio::test]
async fn a_kept_row_that_no_column_fits_stays() {
    let declared = [orders()];
    let (_database, mut connection) =
        captured("create table public.orders (id int primary key, name text)", &declared).await;
    execute(
        &mut connection,
        "alter table orders rename name to title; insert into orders values (2, 'two');
         alter table orders rename title to subject; update postrider.capture_failures set relid = 1",
    )
    .await;
    let plan = capture::apply(&mut connection, &declared, false).await.unwrap();
    assert!(plan.kept[0].message.contains("has a column title"), "{plan:?}");
    assert_eq!((types(&mut connection).await.len(), kept(&mut connection).await), (0, 1));
}

/// One after the other: the second has nothing to do.
#[tokio::test]
async fn two_recaptures_at_once_record_each_event_once() {
    let declared =
        [Table { tenant: Some("(1 / n)::text".to_owned()), on_failure: OnFailure::Record, ..orders() }];
    let (database, mut connection) =
        captured("create table public.orders (id int primary key, n int)", &declared).await;
    execute(&mut connection, "insert into orders select i, 0 from generate_series(1, 2000) i").await;
    let mended = Table { tenant: None, ..declared[0].clone() };
    let mut tasks = Vec::new();
    for _ in 0..3 {
        let (mut other, mended) = (database.connect().await.unwrap(), mended.clone());
        tasks
            .push(tokio::spawn(async move { capture::recapture(&mut other, &mended).await.unwrap().writes }));
    }
    capture::apply(&mut connection, std::slice::from_ref(&mended), false).await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(types(&mut connection).await.len(), 2000);
    assert_eq!(kept(&mut connection).await, 0);
}

/// It is told of by its number, and its key waits; other keys and other tables do not.
#[tokio::test]
async fn one_that_cannot_be_recorded_holds_up_its_key_alone() {
    let broken = Table {
        extra: [("x".to_owned(), "100 / n".to_owned())].into(),
        on_failure: OnFailure::Record,
        ..orders()
    };
    let (_database, mut connection) = captured(
        "create table public.orders (id int primary key, n int); create table public.others (id int primary key)",
        std::slice::from_ref(&broken),
    )
    .await;
    execute(
        &mut connection,
        "insert into orders values (1, 0), (2, 0), (3, 5); update orders set n = 7 where id = 1; update orders set n = 8 where id = 2",
    )
    .await;
    assert_eq!(types(&mut connection).await, ["order.created"], "of the third");
    let tables = [broken.clone(), Table::new("public.others", "other")];
    let plan = capture::apply(&mut connection, &tables, false).await.unwrap();
    assert_eq!((plan.kept.len(), plan.kept[0].key.as_deref()), (1, Some("1")), "{plan:?}");
    assert!(plan.kept[0].message.contains("division by zero"), "{plan:?}");
    execute(&mut connection, "insert into others values (1)").await;
    assert_eq!(types(&mut connection).await, ["other.created"]);

    let (backfill, _) = Backfill::open(&mut connection, &broken, None).await.unwrap();
    let refused = backfill.page(&mut connection, 10).await.unwrap_err();
    assert!(matches!(refused, Error::Kept { .. }), "a snapshot must not overtake what is kept: {refused}");

    // What can never be recorded is given up, by number, and what waited behind it comes.
    let first = plan.kept[0].failure;
    assert_eq!(capture::discard(&mut connection, &Which::Failure(first)).await.unwrap(), 1);
    let done = capture::recapture(&mut connection, &broken).await.unwrap();
    assert_eq!((done.writes, done.refused.unwrap().key.as_deref()), (1, Some("2")));
    assert_eq!(
        told(&mut connection).await,
        [("order.updated".to_owned(), json!({"id": 1, "n": 7, "x": 14}))]
    );
    // Of a table that is gone there is nothing else to be done.
    execute(&mut connection, "drop table orders cascade").await;
    let all = Which::Relation("public.orders".to_owned());
    assert_eq!(capture::kept(&mut connection, &all).await.unwrap().0, 2);
    assert_eq!(capture::discard(&mut connection, &all).await.unwrap(), 2);
    assert_eq!(capture::missing(&mut connection).await.unwrap(), []);
}

/// A table that is renamed is the same table, and one that takes its name is another.
#[tokio::test]
async fn what_is_kept_of_a_table_is_not_overtaken_when_it_is_renamed() {
    let (_database, mut connection) =
        captured("create table public.orders (id int primary key, a text, n int)", &[orders()]).await;
    execute(
        &mut connection,
        "insert into orders values (1, 'x', 1); alter table orders rename a to a2; update orders set n = 2;
         alter table orders rename to bills; update bills set n = 3; truncate bills; insert into bills values (1, 'y', 4);
         create table public.orders (id int primary key)",
    )
    .await;
    assert_eq!(kept(&mut connection).await, 4);
    let declared = [Table::new("public.bills", "bill"), orders()];
    capture::apply(&mut connection, &declared, false).await.unwrap();
    execute(&mut connection, "insert into orders values (1); update bills set n = 5").await;
    let found: Vec<(String, Value)> =
        told(&mut connection).await.into_iter().map(|(kind, data)| (kind, data["n"].clone())).collect();
    let event = |kind: &str, n: Value| (kind.to_owned(), n);
    assert_eq!(
        found,
        [
            event("order.created", json!(1)),
            event("bill.updated", json!(2)),
            event("bill.updated", json!(3)),
            event("bill.truncated", Value::Null),
            event("bill.created", json!(4)),
            event("order.created", Value::Null),
            event("bill.updated", json!(5)),
        ]
    );
}

/// In another database the number of a table is that of another one.
#[tokio::test]
async fn what_is_kept_elsewhere_is_known_by_its_name() {
    let declared = [orders(), Table::new("public.others", "other")];
    let (_database, mut connection) = captured(
        "create table public.orders (id int primary key, a text); create table public.others (id int primary key)",
        &declared,
    )
    .await;
    execute(
        &mut connection,
        "alter table orders rename a to b; insert into orders values (1, 'x'); alter table orders rename b to a;
         update postrider.capture_failures set relid = 'public.others'::regclass, origin = 'elsewhere', new_row = '{\"id\": 1, \"a\": \"x\"}';
         insert into others values (1)",
    )
    .await;
    assert_eq!(types(&mut connection).await, ["other.created"]);
    assert_eq!(capture::recapture(&mut connection, &declared[1]).await.unwrap().writes, 0);
    assert_eq!(capture::recapture(&mut connection, &declared[0]).await.unwrap().writes, 1);
    assert_eq!(types(&mut connection).await, ["order.created"]);
}

/// What was kept of a partition that has left its table is recorded when its line names the table, as `postrider recapture` advises.
#[tokio::test]
async fn what_is_kept_of_a_partition_that_has_left_is_recorded_under_its_table() {
    let declared = [orders()];
    let (_database, mut connection) = captured(
        "create table public.orders (id int primary key, note text) partition by range (id);
         create table public.orders_1 partition of orders for values from (0) to (10);
         create table public.orders_2 partition of orders for values from (10) to (20)",
        &declared,
    )
    .await;
    let connection = &mut connection;
    execute(
        connection,
        "alter table orders rename note to remark; insert into orders values (1, 'a'), (11, 'b');
         alter table orders detach partition orders_1; drop table orders_2",
    )
    .await;
    assert_eq!(kept(connection).await, 2);
    capture::apply(connection, &declared, false).await.unwrap();
    assert_eq!(kept(connection).await, 2, "nobody has said whose they are");
    execute(connection, "update postrider.capture_failures set relation = 'public.orders', relid = null where relation = 'public.orders_1'").await;
    execute(
        connection,
        "update postrider.capture_failures set relation = 'public.orders' where relation = 'public.orders_2'",
    )
    .await;
    capture::recapture(connection, &orders()).await.unwrap();
    let data: Vec<Value> = told(connection).await.into_iter().map(|(_, data)| data).collect();
    assert_eq!(data, [json!({"id": 1, "remark": "a"}), json!({"id": 11, "remark": "b"})]);
    assert_eq!(kept(connection).await, 0);
}
