//! Rows that were there before: each has its event, and none that is older than what was said of the row since.

use std::time::{Duration, Instant};

use postrider::capture::{self, Backfill, Error, Table};
use postrider_testkit::Database;
use serde_json::{Value, json};
use sqlx::PgConnection;

use super::{captured, events, execute};

const TABLE: &str = "create table public.things (a int, b text, n int, gone timestamptz, primary key (a, b));
    insert into things select i % 10, 'b' || i, i, null from generate_series(1, 95) i;
    insert into things values (1, 'soft', 0, now())";

fn declared() -> Table {
    Table { soft_delete: Some("gone".to_owned()), ..Table::new("public.things", "thing") }
}

async fn all_pages(connection: &mut PgConnection, backfill: &Backfill, rows: u32) -> u64 {
    loop {
        let reached = backfill.page(connection, rows).await.unwrap();
        if reached.is_done {
            return reached.emitted;
        }
    }
}

#[tokio::test]
async fn every_row_that_counts_has_one_snapshot() {
    let (_database, mut connection) = captured(TABLE, &[declared()]).await;
    let (backfill, begun) = Backfill::open(&mut connection, &declared(), None).await.unwrap();
    assert_eq!((begun.emitted, begun.is_done), (0, false));
    assert_eq!(all_pages(&mut connection, &backfill, 7).await, 95);
    let found = events(&mut connection).await;
    assert_eq!(found.len(), 95, "not the row that is deleted softly");
    assert!(found.iter().all(|(r#type, ..)| r#type == "thing.snapshot"));
    let (_, key, data, previous) = &found[0];
    assert_eq!(
        (key.as_str(), data, previous),
        ("0:b10", &json!({"a": 0, "b": "b10", "n": 10, "gone": null}), &json!({}))
    );
    let mut keys: Vec<&String> = found.iter().map(|(_, key, ..)| key).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), 95);
    // A walk that is done begins anew.
    let (backfill, begun) = Backfill::open(&mut connection, &declared(), Some("a = 3")).await.unwrap();
    assert_eq!(begun.emitted, 0);
    assert_eq!(all_pages(&mut connection, &backfill, 1000).await, 10);
}

/// How far a walk has come is of that table, and of no other that is made under its name.
#[tokio::test]
async fn a_table_that_is_made_anew_is_walked_from_its_beginning() {
    let (_database, mut connection) = captured(TABLE, &[declared()]).await;
    let (backfill, _) = Backfill::open(&mut connection, &declared(), None).await.unwrap();
    assert_eq!(backfill.page(&mut connection, 50).await.unwrap().emitted, 50);
    let (_, begun) = Backfill::open(&mut connection, &declared(), None).await.unwrap();
    assert_eq!(begun.emitted, 50, "in the same table it goes on");
    execute(&mut connection, &format!("discard temp; drop table things; {TABLE}")).await;
    capture::apply(&mut connection, &[declared()], false).await.unwrap();
    let (backfill, begun) = Backfill::open(&mut connection, &declared(), None).await.unwrap();
    assert_eq!(begun.emitted, 0);
    assert_eq!(all_pages(&mut connection, &backfill, 1000).await, 95);
}

#[tokio::test]
async fn what_is_not_ready_for_it_is_refused_by_name() {
    let (_database, mut connection) = captured(
        "create table public.things (a int primary key); create table public.keyless (a int); create table public.other (a int primary key)",
        &[
            Table::new("public.things", "thing"),
            Table { key: Some("a".to_owned()), ..Table::new("public.keyless", "keyless") },
        ],
    )
    .await;
    let refused = Backfill::open(&mut connection, &Table::new("public.other", "other"), None).await;
    assert!(matches!(refused, Err(Error::NotCaptured { .. })), "{refused:?}");
    let keyless = Table { key: Some("a".to_owned()), ..Table::new("public.keyless", "keyless") };
    let refused = Backfill::open(&mut connection, &keyless, None).await;
    assert!(matches!(refused, Err(Error::NoPrimaryKey { .. })), "{refused:?}");
    let mut silent = Table::new("public.things", "thing");
    silent.verbs.snapshot = None;
    let refused = Backfill::open(&mut connection, &silent, None).await;
    assert!(matches!(refused, Err(Error::NoSnapshot { .. })), "{refused:?}");
    let things = Table::new("public.things", "thing");
    let refused =
        Backfill::open(&mut connection, &things, Some("nonsense > 1")).await.unwrap_err().to_string();
    assert_eq!(refused, "the condition `nonsense > 1` is not taken: column \"nonsense\" does not exist");
}

/// Waits until somebody waits for a lock.
async fn until_blocked(database: &Database) {
    let mut watcher = database.connect().await.unwrap();
    let waits = "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')";
    let begun = Instant::now();
    while !sqlx::query_scalar::<_, bool>(waits).fetch_one(&mut watcher).await.unwrap() {
        assert!(begun.elapsed() < Duration::from_mins(2), "nobody waits");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Somebody has changed rows and not committed when their page comes: the snapshot waits, and is of what they leave behind.
#[tokio::test]
async fn a_snapshot_never_overtakes_a_change() {
    let (database, mut connection) = captured(TABLE, &[declared()]).await;
    let mut writer = database.connect().await.unwrap();
    execute(
        &mut writer,
        "begin; update things set n = 1000 where b = 'b1'; update things set gone = now() where b = 'b2';
         delete from things where b = 'b3'; update things set b = 'zz' where b = 'b11'",
    )
    .await;
    let walk = tokio::spawn(async move {
        let (backfill, _) = Backfill::open(&mut connection, &declared(), None).await.unwrap();
        all_pages(&mut connection, &backfill, 1000).await
    });
    until_blocked(&database).await;
    execute(&mut writer, "commit").await;
    walk.await.unwrap();
    execute(&mut writer, "update things set n = 2000 where b = 'b1'").await;
    let found = events(&mut writer).await;
    let of = |key: &str| -> Vec<(String, Value)> {
        found
            .iter()
            .filter(|(_, found, ..)| found == key)
            .map(|(r#type, _, data, _)| (r#type.clone(), data["n"].clone()))
            .collect()
    };
    let event = |verb: &str, n: i32| (format!("thing.{verb}"), json!(n));
    assert_eq!(of("1:b1"), [event("updated", 1000), event("snapshot", 1000), event("updated", 2000)]);
    assert_eq!(of("2:b2"), [event("deleted", 2)], "deleted softly before its turn");
    assert_eq!(of("3:b3"), [event("deleted", 3)]);
    assert_eq!(of("1:b11"), [], "under its old key it is no more");
    assert_eq!(of("1:zz"), [event("updated", 11), event("snapshot", 11)]);
    assert_eq!(found.iter().filter(|(r#type, ..)| r#type == "thing.snapshot").count(), 93);
}

/// The row that is waited for is looked at again when it is free.
#[tokio::test]
async fn a_row_that_is_deleted_softly_while_it_is_waited_for_has_no_snapshot() {
    let (database, mut connection) = captured(TABLE, &[declared()]).await;
    let mut writer = database.connect().await.unwrap();
    execute(&mut writer, "begin; update things set gone = now() where b = 'b2'").await;
    let walk = tokio::spawn(async move {
        let (backfill, _) = Backfill::open(&mut connection, &declared(), None).await.unwrap();
        all_pages(&mut connection, &backfill, 1000).await
    });
    until_blocked(&database).await;
    execute(&mut writer, "commit").await;
    assert_eq!(walk.await.unwrap(), 94);
    let found = events(&mut writer).await;
    let of_row: Vec<&str> =
        found.iter().filter(|(_, key, ..)| key == "2:b2").map(|(r#type, ..)| r#type.as_str()).collect();
    assert_eq!(of_row, ["thing.deleted"]);
}

/// Somebody locks rows in another order: it is not he who is told of a deadlock, and the walk goes on behind him.
#[tokio::test]
async fn a_writer_that_locks_in_another_order_is_never_the_victim() {
    let (database, mut connection) = captured(TABLE, &[declared()]).await;
    let mut writer = database.connect().await.unwrap();
    // It finds out at once, where it would be found out at all.
    execute(&mut writer, "set deadlock_timeout = '1ms'; begin; update things set n = 1000 where b = 'b8'")
        .await;
    let walk = tokio::spawn(async move {
        let (backfill, _) = Backfill::open(&mut connection, &declared(), None).await.unwrap();
        all_pages(&mut connection, &backfill, 1000).await
    });
    until_blocked(&database).await;
    for earlier in ["b7", "b6", "b5", "b4", "b3", "b2", "b1"] {
        execute(&mut writer, &format!("update things set n = 1000 where b = '{earlier}'")).await;
    }
    execute(&mut writer, "commit").await;
    walk.await.unwrap();
    let found = events(&mut writer).await;
    assert_eq!(found.iter().filter(|(r#type, ..)| r#type == "thing.snapshot").count(), 95);
}

/// The operators of a key's type may be where no search path looks; those of another type would take their place.
#[tokio::test]
async fn a_key_is_walked_along_in_the_order_of_its_own_type() {
    for key in ["(k)", "(k, n)", "(n, k)", "(k) include (o)"] {
        let things = Table::new("public.things", "thing");
        let (_database, mut connection) = captured(
            &format!(
                "create schema ext; create extension citext schema ext; create domain ext.name as ext.citext;
                 create table public.things (o int, k ext.name, n int, primary key {key});
                 insert into things (k, n) select case when g <= 10 then 'a' else 'B' end || lpad(g::text, 3, '0'), g % 4 from generate_series(1, 30) g"
            ),
            std::slice::from_ref(&things),
        )
        .await;
        let (backfill, _) = Backfill::open(&mut connection, &things, None).await.unwrap();
        assert_eq!(all_pages(&mut connection, &backfill, 7).await, 30, "{key}");
        let mut keys: Vec<String> = events(&mut connection).await.into_iter().map(|event| event.1).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 30, "{key}");
    }
}

/// What closes a bracket that it has not opened would change what a page is.
#[tokio::test]
async fn a_condition_is_one_expression() {
    let things = Table::new("public.things", "thing");
    let (_database, mut connection) = captured(
        "create table public.things (a int primary key, \"odd)\" text); insert into things select i, ')' from generate_series(1, 20) i",
        std::slice::from_ref(&things),
    )
    .await;
    for condition in [
        "a < 10) or (true",
        "a < 10 then 1 end, case when true",
        "true; select 1",
        "a",
        "a < 10 /*",
        "a < 10 --)",
        "a < 10) --",
    ] {
        let refused = Backfill::open(&mut connection, &things, Some(condition)).await;
        let is_fine = condition == "a < 10 --)";
        assert_eq!(matches!(refused, Err(Error::Condition { .. })), !is_fine, "{condition}: {refused:?}");
    }
    let condition = "\"odd)\" = ')' and (a < 3 or a in (4, 5)) -- )";
    let (backfill, _) = Backfill::open(&mut connection, &things, Some(condition)).await.unwrap();
    assert_eq!(all_pages(&mut connection, &backfill, 2).await, 4);
}
