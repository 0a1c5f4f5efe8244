//! What cannot be captured is refused by name, and what can is installed without standing in anybody's way.

use std::time::{Duration, Instant};

use postrider::capture::{self, Error, Table};
use serde_json::Value;

use super::{captured, events, execute, types};
use crate::support::database;

fn orders() -> Table {
    Table::new("public.orders", "order")
}

#[tokio::test]
async fn what_cannot_be_captured_is_refused_by_name() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    execute(
        &mut connection,
        "create table public.orders (id int, note text); create view public.seen as select * from orders;
         create materialized view public.stored as select * from orders; create sequence public.numbers",
    )
    .await;
    for (table, said) in [
        ("public.orders", "public.orders has no primary key: say with tables.public.orders.key"),
        (
            "public.seen",
            "public.seen is a view: only tables can be captured; declare the tables it is made of",
        ),
        ("public.stored", "public.stored is a materialized view"),
        ("public.numbers", "public.numbers is no table"),
        ("public.nothing", "there is no table public.nothing"),
        ("orders", "there is no table orders: name it with its schema"),
    ] {
        let refused = capture::plan(&mut connection, &[Table::new(table, "order")]).await.unwrap_err();
        assert!(refused.to_string().starts_with(said), "{refused}");
    }
    let keyed = Table { key: Some("id".to_owned()), ..orders() };
    capture::apply(&mut connection, std::slice::from_ref(&keyed), false).await.unwrap();
    execute(&mut connection, "insert into orders values (7)").await;
    assert_eq!(events(&mut connection).await[0].1, "7");
    let again = Table { name: "\"public\".orders".to_owned(), ..keyed.clone() };
    let refused = capture::plan(&mut connection, &[keyed, again]).await.unwrap_err();
    assert!(matches!(refused, Error::Twice { .. }), "{refused}");
}

/// A row that has a value there counts as deleted: its DELETE would be none.
#[tokio::test]
async fn a_column_that_is_never_null_cannot_tell_of_a_soft_deletion() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    execute(
        &mut connection,
        "create domain public.flag as boolean not null;
         create table public.orders (id int primary key, is_deleted boolean not null, is_gone public.flag, deleted_at timestamptz)",
    )
    .await;
    let softly = |column: &str| [Table { soft_delete: Some(column.to_owned()), ..orders() }];
    for column in ["is_deleted", "is_gone"] {
        let refused = capture::plan(&mut connection, &softly(column)).await.unwrap_err();
        assert!(matches!(refused, Error::NeverNull { .. }), "{refused}");
    }
    capture::plan(&mut connection, &softly("deleted_at")).await.unwrap();
}

/// A lock that is waited for holds up everybody behind it: so it is not waited for for long, but asked for again.
#[tokio::test]
async fn apply_does_not_hold_up_writers_behind_a_long_transaction() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    execute(&mut connection, "create table public.orders (id int primary key)").await;
    let mut long = database.connect().await.unwrap();
    execute(&mut long, "begin; insert into orders values (1)").await;
    let applied = tokio::spawn(async move {
        capture::apply(&mut connection, &[orders()], false).await.unwrap();
        connection
    });
    let mut writer = database.connect().await.unwrap();
    let waits = "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')";
    let begun = Instant::now();
    while !sqlx::query_scalar::<_, bool>(waits).fetch_one(&mut writer).await.unwrap() {
        assert!(begun.elapsed() < Duration::from_mins(2), "it does not wait");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let written =
        tokio::time::timeout(Duration::from_mins(1), execute(&mut writer, "insert into orders values (2)"));
    assert!(written.await.is_ok(), "a writer waits for somebody else's transaction");
    execute(&mut long, "commit").await;
    let mut connection = applied.await.unwrap();
    execute(&mut connection, "insert into orders values (3)").await;
    assert_eq!(types(&mut connection).await, ["order.created"]);
}

/// The limit of a payload is for whoever emits; a row is as large as it is.
#[tokio::test]
async fn a_row_is_recorded_whole_whatever_its_size() {
    let (_database, mut connection) =
        captured("create table public.orders (id int primary key, note text)", &[orders()]).await;
    execute(
        &mut connection,
        "insert into orders values (1, repeat('x', (postrider.max_payload() + 1)::int))",
    )
    .await;
    let limit: i64 =
        sqlx::query_scalar("select postrider.max_payload()").fetch_one(&mut connection).await.unwrap();
    let found = events(&mut connection).await;
    let Value::String(note) = &found[0].2["note"] else { panic!("no text") };
    assert_eq!(i64::try_from(note.len()).unwrap(), limit + 1);
}

/// As when each instance of a deployment runs it.
#[tokio::test]
async fn those_who_apply_at_once_wait_for_each_other() {
    let (database, mut connection) =
        captured("create table public.orders (id int primary key)", &[orders()]).await;
    let mut others = [database.connect().await.unwrap(), database.connect().await.unwrap()];
    let [second, third] = &mut others;
    for round in 0..8 {
        let tables = [Table { tenant: Some(format!("'{round}'")), ..orders() }];
        let done = tokio::join!(
            capture::apply(&mut connection, &tables, false),
            capture::apply(second, &tables, false),
            capture::apply(third, &tables, false)
        );
        let plans = [done.0.unwrap(), done.1.unwrap(), done.2.unwrap()];
        assert_eq!(plans.iter().filter(|plan| !plan.is_done()).count(), 1, "one had something to do");
    }
}

/// JSON would have the field twice.
#[tokio::test]
async fn an_extra_field_is_not_called_as_a_column_is() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    execute(&mut connection, "create table public.orders (id int primary key, note text)").await;
    let extra = Table { extra: [("note".to_owned(), "upper(note)".to_owned())].into(), ..orders() };
    let refused = capture::plan(&mut connection, std::slice::from_ref(&extra)).await.unwrap_err().to_string();
    assert_eq!(
        refused,
        "tables.public.orders.extra.note: the row has a column of that name; call the field otherwise, or leave the column out with `omit`"
    );
    let instead = Table { omit: vec!["note".to_owned()], ..extra };
    capture::apply(&mut connection, &[instead], false).await.unwrap();
    execute(&mut connection, "insert into orders values (1, 'a')").await;
    assert_eq!(events(&mut connection).await[0].2, serde_json::json!({"id": 1, "note": "A"}));
}
