//! Columns that get another type, values that look different by session, columns that are computed when they are read.

use postrider::capture::{self, Change, OnFailure, Parent, State, Table};
use postrider_testkit::Version;
use serde_json::{Value, json};
use sqlx::PgConnection;

use super::{captured, captured_on, events, execute};

async fn kept(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar("select count(*) from postrider.capture_failures").fetch_one(connection).await.unwrap()
}

/// What is altered, what is written then, and the data of its event once the trigger was renewed.
fn changes() -> Vec<(&'static str, &'static str, &'static str, Value)> {
    vec![
        ("id int primary key", "alter id type bigint", "3000000000", json!({"id": 3_000_000_000_u64})),
        ("id int primary key, v int", "alter v type text", "1, 'abc'", json!({"id": 1, "v": "abc"})),
        ("id int primary key, v int", "alter v type text", "1, '7'", json!({"id": 1, "v": "7"})),
        (
            "id int primary key, v uuid",
            "alter v type text",
            "1, 'x\",\"admin\":\"yes'",
            json!({"id": 1, "v": "x\",\"admin\":\"yes"}),
        ),
        (
            "id int primary key, v bytea",
            "alter v type text using encode(v, 'hex')",
            "1, 'abc'",
            json!({"id": 1, "v": "abc"}),
        ),
        (
            "id int primary key, v int",
            "alter v type json using to_json(v)",
            "1, '{\"a\": 1}'",
            json!({"id": 1, "v": {"a": 1}}),
        ),
    ]
}

/// In the session that wrote before, with its plans, and in a new one.
#[tokio::test]
async fn a_column_that_gets_another_type_breaks_no_write_and_forges_nothing() {
    for (columns, altered, row, data) in changes() {
        let declared = [Table::new("public.orders", "order")];
        let (database, mut connection) =
            captured(&format!("create table public.orders ({columns})"), &declared).await;
        execute(
            &mut connection,
            "insert into orders values (0); update orders set id = 1; delete from orders",
        )
        .await;
        events(&mut connection).await;
        let mut fresh = database.connect().await.unwrap();
        execute(&mut fresh, &format!("alter table orders {altered}")).await;
        for session in [&mut fresh, &mut connection] {
            execute(
                session,
                &format!("insert into orders values ({row}); update orders set id = id; delete from orders"),
            )
            .await;
            assert_eq!(events(session).await, [], "{altered}: what was made for another type writes nothing");
            assert_eq!(kept(session).await, 3, "{altered}");
            execute(session, "delete from postrider.capture_failures").await;
        }
        assert_eq!(capture::plan(&mut fresh, &declared).await.unwrap().tables[0].state, State::Outdated);
        execute(&mut fresh, &format!("insert into orders values ({row})")).await;
        capture::apply(&mut fresh, &declared, false).await.unwrap();
        let found = events(&mut fresh).await;
        assert_eq!(found.len(), 1, "{altered}");
        assert_eq!(found[0].2, data, "{altered}");
    }
}

/// A collation that takes different texts for equal is no other type: what changes under it is told all the same.
#[tokio::test]
async fn a_column_that_gets_a_loose_collation_loses_no_change() {
    for state in ["varchar(9)", "name"] {
        let change = Change { verb: "state.changed".to_owned(), beside: false };
        let table =
            Table { changes: [("state".to_owned(), change)].into(), ..Table::new("public.orders", "order") };
        let (database, mut connection) = captured(
            &format!(
                "create collation public.loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
                 create table public.orders (id int primary key, note text, state {state})"
            ),
            &[table],
        )
        .await;
        execute(&mut connection, "insert into orders values (1, 'abc', 'x')").await;
        let altered = format!(
            "alter table orders alter note type text collate loose, alter state type {state} collate loose"
        );
        execute(&mut connection, &altered).await;
        events(&mut connection).await;
        let mut fresh = database.connect().await.unwrap();
        for (session, note, value) in [(&mut connection, "ABC", "X"), (&mut fresh, "Abc", "x")] {
            execute(session, &format!("update orders set note = '{note}', state = '{value}'")).await;
            execute(session, "update orders set note = note, state = state").await;
            let found: Vec<(String, Value)> =
                events(session).await.into_iter().map(|(kind, _, data, _)| (kind, data)).collect();
            let data = json!({"id": 1, "note": note, "state": value});
            assert_eq!(
                found,
                [("order.updated".to_owned(), data.clone()), ("order.state.changed".to_owned(), data)],
                "{state}"
            );
        }
        assert_eq!(kept(&mut fresh).await, 0, "{state}");
    }
}

/// No length is part of what a trigger was made for.
#[tokio::test]
async fn a_column_that_is_widened_is_captured_at_once() {
    let table = Table {
        key: Some("code".to_owned()),
        tenant: Some("amount::text".to_owned()),
        headers: [("code".to_owned(), "upper(code)".to_owned())].into(),
        ..Table::new("public.orders", "order")
    };
    let (database, mut connection) = captured(
        "create table public.orders (id int primary key, code varchar(5), amount numeric(4,1), padded char(3))",
        std::slice::from_ref(&table),
    )
    .await;
    execute(&mut connection, "insert into orders values (1, 'abc', 1.5, 'x')").await;
    events(&mut connection).await;
    execute(
        &mut connection,
        "alter table orders alter code type varchar(50), alter amount type numeric(12,4), alter padded type char(9)",
    )
    .await;
    let mut fresh = database.connect().await.unwrap();
    for session in [&mut connection, &mut fresh] {
        execute(
            session,
            "insert into orders values (2, 'abcdefghij', 1234567.1234, 'x'); delete from orders where id = 2",
        )
        .await;
        let tenant: String =
            sqlx::query_scalar("select tenant || ' ' || (headers ->> 'code') from postrider.events limit 1")
                .fetch_one(&mut *session)
                .await
                .unwrap();
        assert_eq!(tenant, "1234567.1234 ABCDEFGHIJ");
        assert_eq!(events(session).await[0].1, "abcdefghij");
    }
    assert!(capture::plan(&mut connection, &[table]).await.unwrap().is_done(), "and is as it should be");
}

/// An expression over a column of another type, and what is wrong with a value, which is no change of the table.
#[tokio::test]
async fn an_expression_over_a_column_of_another_type_waits_for_apply() {
    let table = Table {
        r#type: Some("case when kind_id > 5 then 'epic' else 'workitem' end".to_owned()),
        extra: [("share".to_owned(), "100 / kind_id".to_owned())].into(),
        ..Table::new("public.orders", "order")
    };
    let (_database, mut connection) =
        captured("create table public.orders (id int primary key, kind_id int)", &[table]).await;
    let refused =
        sqlx::raw_sql("insert into orders values (1, 0)").execute(&mut connection).await.unwrap_err();
    assert!(refused.to_string().contains("division by zero"), "{refused}");
    execute(
        &mut connection,
        "alter table orders alter kind_id type text; insert into orders values (1, 'abc')",
    )
    .await;
    assert_eq!(kept(&mut connection).await, 1);
}

/// The parent may be renamed, or a column of it, or get another type: no write of a child fails for it.
#[tokio::test]
async fn a_parent_that_changes_breaks_no_write_of_its_children() {
    for on_failure in [OnFailure::Refuse, OnFailure::Record] {
        for changed in [
            "alter table issues rename id to iid",
            "alter table issues rename to epics",
            "alter table issues alter kind type int using 1",
            "alter table issues rename kind to sort",
        ] {
            let table = Table {
                r#type: Some("parent.kind || 'x'".to_owned()),
                parent: Some(Parent {
                    table: "public.issues".to_owned(),
                    column: "id".to_owned(),
                    on: "issue_id".to_owned(),
                }),
                on_failure,
                ..Table::new("public.comments", "comment")
            };
            let (database, mut connection) = captured(
                "create table public.issues (id int primary key, kind text); create table public.comments (id int primary key, issue_id int);
                 insert into issues values (1, 'epic')",
                &[table],
            )
            .await;
            execute(&mut connection, "insert into comments values (1, 1)").await;
            assert_eq!(events(&mut connection).await[0].0, "epicx.created");
            execute(&mut connection, changed).await;
            let mut fresh = database.connect().await.unwrap();
            // Each by itself: behind one that is kept every event would be kept.
            for session in [&mut fresh, &mut connection] {
                execute(session, "insert into comments values (2, 1); delete from comments where id = 2")
                    .await;
                assert_eq!(kept(session).await, 2, "{changed}");
                assert_eq!(events(session).await, [], "{changed}");
                execute(session, "delete from postrider.capture_failures").await;
            }
        }
    }
}

/// One row has one key, whatever the session that writes it has set, and so one order.
#[tokio::test]
async fn keys_headers_and_extras_do_not_depend_on_the_session() {
    let table = Table {
        tenant: Some("b".to_owned()),
        extra: [
            ("seen".to_owned(), "(select max(o.ts) from public.orders o)::text".to_owned()),
            ("part".to_owned(), "sqrt(id + 0.1)::float8::text".to_owned()),
        ]
        .into(),
        headers: [
            ("on".to_owned(), "'on ' || d".to_owned()),
            ("took".to_owned(), "(ts - ts + interval '1 day')::text".to_owned()),
        ]
        .into(),
        ..Table::new("public.orders", "order")
    };
    let (_database, mut connection) = captured(
        "create table public.orders (id int, ts timestamptz, d date, b bytea, primary key (id, ts, d));
         insert into orders values (1, '2026-01-05 00:00Z', '2026-01-05', 'abc')",
        &[table],
    )
    .await;
    for settings in [
        "set datestyle = 'ISO, MDY'",
        "set datestyle = 'SQL, DMY'",
        "set datestyle = 'German'; set bytea_output = 'escape'",
        "set timezone = 'Asia/Tokyo'; set intervalstyle = 'postgres_verbose'; set extra_float_digits = -3",
    ] {
        execute(&mut connection, settings).await;
        execute(&mut connection, "update orders set b = b || 'x'; update orders set b = 'abc'").await;
    }
    let all: Vec<String> = sqlx::query_scalar(
        "select distinct e.key || ' ' || e.tenant || ' ' || e.headers::text || ' ' || (e.payload -> 'data')::text || e.lane
         from postrider.events e where e.payload -> 'data' ->> 'b' = 'YWJj'",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    assert_eq!(all.len(), 1, "{all:#?}");
    assert!(all[0].starts_with("1:2026-01-05 00:00:00+00:2026-01-05 \\x616263"), "{all:?}");
}

/// What is computed when it is read is null in a trigger: events have the value all the same, as a backfill has.
#[tokio::test]
async fn virtual_columns_have_their_values() {
    let table = Table {
        headers: [("total".to_owned(), "total".to_owned())].into(),
        tenant: Some("(total + 1)::text".to_owned()),
        ..Table::new("public.orders", "order")
    };
    let (_database, mut connection) = captured_on(
        Version::V18,
        "create table public.orders (id int primary key, price int, \"by\" int, total int generated always as (price * \"by\") virtual)",
        std::slice::from_ref(&table),
    )
    .await;
    execute(
        &mut connection,
        "insert into orders values (1, 6, 7); update orders set price = 7; delete from orders",
    )
    .await;
    let headers: Vec<String> =
        sqlx::query_scalar("select headers ->> 'total' || ' ' || tenant from postrider.events order by seq")
            .fetch_all(&mut connection)
            .await
            .unwrap();
    assert_eq!(headers, ["42 43", "49 50", "49 50"]);
    let found = events(&mut connection).await;
    assert_eq!(found[0].2, json!({"id": 1, "price": 6, "by": 7, "total": 42}));
    assert_eq!(found[1].3, json!({"price": 6, "total": 42}));
    assert_eq!(found[2].2["total"], json!(49));

    // One that comes is not known how to compute: its events wait.
    execute(&mut connection, "alter table orders add column half int generated always as (price / 2)").await;
    execute(&mut connection, "insert into orders values (1, 6, 7)").await;
    assert_eq!(events(&mut connection).await, []);
    capture::apply(&mut connection, &[table], false).await.unwrap();
    assert_eq!(
        events(&mut connection).await[0].2,
        json!({"id": 1, "price": 6, "by": 7, "total": 42, "half": 3})
    );
}

/// What types an expression's columns have is looked for where a handler is at work, not when the function is compiled.
#[tokio::test]
async fn a_type_that_is_renamed_moved_or_dropped_breaks_no_write() {
    for on_failure in [OnFailure::Refuse, OnFailure::Record] {
        for changed in [
            "alter table orders alter m type text; drop type kinds.mood",
            "alter type kinds.mood rename to feeling",
            "alter schema kinds rename to sorts",
            "alter table orders drop m; drop type kinds.mood",
        ] {
            let table = Table {
                r#type: Some(
                    "case when m = 'sad' then 'sad' when orders.m > 'sad' then 'ok' else '?' end".to_owned(),
                ),
                extra: [("mood".to_owned(), "upper(m::text)".to_owned())].into(),
                headers: [("m".to_owned(), "m".to_owned())].into(),
                on_failure,
                ..Table::new("public.orders", "order")
            };
            let (database, mut connection) = captured(
                "create schema kinds; create type kinds.mood as enum ('sad', 'ok'); create table public.orders (id int primary key, m kinds.mood)",
                std::slice::from_ref(&table),
            )
            .await;
            execute(&mut connection, "insert into orders values (1, 'sad'), (2, 'ok')").await;
            let found = events(&mut connection).await;
            assert_eq!((found[0].0.as_str(), found[1].0.as_str()), ("sad.created", "ok.created"));
            assert_eq!(found[1].2, json!({"id": 2, "m": "ok", "mood": "OK"}));
            execute(&mut connection, changed).await;
            let mut fresh = database.connect().await.unwrap();
            execute(&mut fresh, "insert into orders (id) values (3); delete from orders where id = 3").await;
            assert_eq!(kept(&mut fresh).await, 2, "{changed}");
            if !changed.contains("drop m;") {
                capture::apply(&mut fresh, &[table], false).await.unwrap();
                assert_eq!(events(&mut fresh).await.len(), 2, "{changed}");
            }
        }
    }
}

/// The same of the type that a parent is known by.
#[tokio::test]
async fn a_type_of_a_parents_key_that_is_renamed_breaks_no_write() {
    let table = Table {
        r#type: Some("parent.kind".to_owned()),
        parent: Some(Parent {
            table: "public.issues".to_owned(),
            column: "id".to_owned(),
            on: "issue_id".to_owned(),
        }),
        ..Table::new("public.comments", "comment")
    };
    let (database, mut connection) = captured(
        "create domain public.place as int; create table public.issues (id place primary key, kind text);
         create table public.comments (id int primary key, issue_id place references issues on delete cascade);
         insert into issues values (1, 'epic'), (2, 'task')",
        std::slice::from_ref(&table),
    )
    .await;
    execute(&mut connection, "insert into comments values (1, 1); delete from issues where id = 1").await;
    let found: Vec<String> = events(&mut connection).await.into_iter().map(|event| event.0).collect();
    assert_eq!(found, ["epic.created", "epic.deleted"]);
    execute(&mut connection, "alter domain place rename to spot").await;
    let mut fresh = database.connect().await.unwrap();
    execute(&mut fresh, "insert into comments values (2, 2)").await;
    assert_eq!(kept(&mut fresh).await, 1);
    capture::apply(&mut fresh, &[table], false).await.unwrap();
    assert_eq!(events(&mut fresh).await[0].0, "task.created");
}

/// Under however many domains.
#[tokio::test]
async fn bytes_in_a_column_that_comes_are_base64() {
    let declared = [Table::new("public.orders", "order")];
    let (_database, mut connection) = captured(
        "create table public.orders (id int primary key); create domain public.one as bytea; create domain public.two as one",
        &declared,
    )
    .await;
    execute(&mut connection, "alter table orders add b bytea, add one one, add two two").await;
    execute(&mut connection, r"insert into orders values (1, '\xbeef', '\xbeef', '\xbeef')").await;
    let data = json!({"id": 1, "b": "vu8=", "one": "vu8=", "two": "vu8="});
    assert_eq!(events(&mut connection).await[0].2, data);
    capture::apply(&mut connection, &declared, false).await.unwrap();
    execute(&mut connection, r"insert into orders values (2, '\xbeef', '\xbeef', '\xbeef')").await;
    assert_eq!(events(&mut connection).await[0].2["two"], data["two"]);
}

/// Each that came and went has left its number behind.
#[tokio::test]
async fn a_column_that_comes_after_many_came_and_went_is_captured_at_once() {
    for version in [Version::V14, Version::default(), Version::V18] {
        let (_database, mut connection) = captured_on(
            version,
            "create table public.orders (id int primary key)",
            &[Table::new("public.orders", "order")],
        )
        .await;
        execute(&mut connection, "insert into orders values (1)").await;
        for _ in 0..9 {
            execute(&mut connection, "alter table orders add c int; alter table orders drop c").await;
        }
        execute(&mut connection, "update orders set id = 2").await;
        execute(&mut connection, "alter table orders add name text; update orders set name = 'x'").await;
        let found = events(&mut connection).await;
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!((&found[1].2, &found[1].3), (&json!({"id": 2}), &json!({"id": 1})));
        assert_eq!((&found[2].2, &found[2].3), (&json!({"id": 2, "name": "x"}), &json!({"name": null})));
    }
}
