//! Tables that hang on another one, also when that has gone before them.

use postrider::capture::{self, Error, Parent, State, Table};
use postrider_testkit::Version;

use super::{captured, captured_on, events, execute, types};

fn child(table: &str, column: &str, on: &str) -> Table {
    Table {
        r#type: Some("parent.kind".to_owned()),
        parent: Some(Parent {
            table: "public.parents".to_owned(),
            column: column.to_owned(),
            on: on.to_owned(),
        }),
        ..Table::new(table, "child")
    }
}

fn children() -> [Table; 2] {
    [child("public.by_id", "id", "parent_id"), child("public.by_code", "Co\"de", "parent_code")]
}

/// What one child's key means to the other is another parent.
#[tokio::test]
async fn children_may_know_their_parent_by_different_columns() {
    for partitioned in [false, true] {
        let (end, part) = if partitioned {
            (
                " partition by range (id)",
                "create table public.parents_1 partition of parents for values from (0) to (100);",
            )
        } else {
            ("", "")
        };
        // A foreign key to a partitioned table needs its key; there the code is unique with the id alone.
        let unique = if partitioned { "unique (\"Co\"\"de\", id)" } else { "unique (\"Co\"\"de\")" };
        let by_code = if partitioned {
            "foreign key (parent_code, parent_id) references parents (\"Co\"\"de\", id) on delete cascade"
        } else {
            "foreign key (parent_code) references parents (\"Co\"\"de\") on delete cascade"
        };
        let (_database, mut connection) = captured(
            &format!(
                "create table public.parents (id int primary key, \"Co\"\"de\" int, kind text, {unique}){end}; {part}
                 create table public.by_id (id int primary key, parent_id int references parents on delete cascade);
                 create table public.by_code (id int primary key, parent_code int, parent_id int, {by_code});
                 insert into parents values (1, 2, 'first'), (2, 1, 'second'), (3, null, 'third')"
            ),
            &children(),
        )
        .await;
        let connection = &mut connection;
        execute(
            connection,
            "insert into by_id values (10, 1), (20, 2); insert into by_code values (100, 2, 1), (200, 1, 2)",
        )
        .await;
        let told = |events: Vec<(String, String, serde_json::Value, serde_json::Value)>| {
            let mut told: Vec<String> =
                events.into_iter().map(|(kind, key, ..)| format!("{kind} {key}")).collect();
            told.sort();
            told
        };
        let all = |verb: &str| {
            ["first", "second"]
                .map(|kind| {
                    [
                        format!("{kind}.{verb} {}0", if kind == "first" { 1 } else { 2 }),
                        format!("{kind}.{verb} {}00", if kind == "first" { 1 } else { 2 }),
                    ]
                })
                .concat()
        };
        assert_eq!(told(events(connection).await), all("created"), "partitioned: {partitioned}");
        // Also one that nobody could know by its code.
        execute(connection, "delete from parents").await;
        assert_eq!(told(events(connection).await), all("deleted"), "partitioned: {partitioned}");
        let again = capture::plan(connection, &children()).await.unwrap();
        assert!(again.is_done(), "{again:?}");
        assert_eq!(capture::sweep(connection, &children()).await.unwrap(), []);
        // With one child less it needs less.
        let one = &children()[..1];
        let plan = capture::plan(connection, one).await.unwrap();
        let parent = plan.tables.iter().find(|table| table.table == "public.parents").unwrap();
        assert_eq!(parent.state, State::Outdated, "partitioned: {partitioned}");
        capture::apply(connection, one, true).await.unwrap();
        assert!(capture::plan(connection, one).await.unwrap().is_done());
    }
}

#[tokio::test]
async fn a_column_that_the_parent_does_not_have_is_refused_by_name() {
    let (_database, mut connection) = captured(
        "create table public.parents (id int primary key, kind text); create table public.by_id (id int primary key, parent_id int)",
        &[],
    )
    .await;
    let refused =
        capture::plan(&mut connection, &[child("public.by_id", "nope", "parent_id")]).await.unwrap_err();
    assert!(
        matches!(&refused, Error::NoColumn { key: "parent.column", column, .. } if column == "nope"),
        "{refused}"
    );
}

/// A schema and a table that read like another schema and table are told apart.
#[tokio::test]
async fn tables_whose_names_read_the_same_have_functions_of_their_own() {
    let long = "雪".repeat(20);
    let declared = [
        Table::new("a.b_c", "one"),
        Table::new("a_b.c", "two"),
        Table::new(format!("a.\"{long}1\""), "three"),
        Table::new(format!("a.\"{long}2\""), "four"),
    ];
    let (_database, mut connection) = captured(
        &format!(
            "create schema a; create schema a_b; create table a.b_c (id int primary key); create table a_b.c (id int primary key);
             create table a.\"{long}1\" (id int primary key); create table a.\"{long}2\" (id int primary key)"
        ),
        &declared,
    )
    .await;
    execute(
        &mut connection,
        &format!("insert into a.b_c values (1); insert into a_b.c values (1); insert into a.\"{long}1\" values (1); insert into a.\"{long}2\" values (1)"),
    )
    .await;
    let kinds: Vec<String> = events(&mut connection).await.into_iter().map(|(kind, ..)| kind).collect();
    assert_eq!(kinds, ["one.created", "two.created", "three.created", "four.created"]);
}

/// When a parent goes by cascade its children know it by the value they have of its key, whatever that looks like as text.
#[tokio::test]
async fn a_cascade_finds_the_parent_by_a_key_of_any_type() {
    for (key, value) in [
        ("char(5)", "'ab'"),
        ("timestamp", "'2026-01-05 12:00'"),
        ("timestamptz", "'2026-01-05 12:00+09'"),
        ("date", "'2026-01-05'"),
        ("interval", "'1 day 2 hours'"),
        ("int[]", "'{1,2}'"),
        ("bytea", "'abc'"),
        ("float8", "0.1::float8 + 0.2"),
        ("numeric", "1.50"),
        ("uuid", "'00000000-0000-0000-0000-000000000001'"),
    ] {
        let (_database, mut connection) = captured(
            &format!(
                "create table public.parents (id {key} primary key, kind text);
                 create table public.by_id (id int primary key, parent_id {key} references parents on delete cascade);
                 insert into parents values ({value}, 'epic')"
            ),
            &[child("public.by_id", "id", "parent_id")],
        )
        .await;
        execute(&mut connection, "set timezone = 'Asia/Tokyo'; set datestyle = 'German'; set bytea_output = 'escape'; set extra_float_digits = -3").await;
        execute(&mut connection, &format!("insert into by_id values (1, {value}); delete from parents"))
            .await;
        let kinds: Vec<String> = events(&mut connection).await.into_iter().map(|(kind, ..)| kind).collect();
        assert_eq!(kinds, ["epic.created", "epic.deleted"], "{key}");
    }
}

/// Whatever the type takes for equal is the same key, as it is to the foreign key.
#[tokio::test]
async fn a_parent_is_found_by_a_key_that_is_equal_and_not_the_same() {
    for (key, of_parent, of_child) in [
        ("numeric", "1.0", "1.00"),
        ("ext.citext", "'Abc'", "'aBC'"),
        ("ext.name", "'Abc'", "'aBC'"),
        ("float8", "0", "'-0'"),
        ("interval", "'1 day'", "'24 hours'"),
    ] {
        for version in [Version::V14, Version::V18] {
            let (_database, mut connection) = captured_on(
                version,
                &format!(
                    "create schema ext; create extension citext schema ext; create domain ext.name as ext.citext;
                     create table public.parents (id {key} primary key, kind text);
                     create table public.by_id (id int primary key, parent_id {key} references parents on delete cascade);
                     insert into parents values ({of_parent}, 'epic'), ('2', 'task')"
                ),
                &[child("public.by_id", "id", "parent_id")],
            )
            .await;
            execute(&mut connection, &format!("insert into by_id values (1, {of_child}), (2, '2')")).await;
            assert_eq!(types(&mut connection).await, ["epic.created", "task.created"], "{key} {version}");
            execute(&mut connection, "delete from parents").await;
            let mut deleted = types(&mut connection).await;
            deleted.sort();
            assert_eq!(deleted, ["epic.deleted", "task.deleted"], "{key} {version}");
        }
    }
}

/// So it is with texts, under a collation that does not tell them apart.
#[tokio::test]
async fn a_parent_is_found_by_a_text_that_its_collation_takes_for_equal() {
    for key in ["text", "varchar(9)"] {
        let (_database, mut connection) = captured(
            &format!(
                "create schema ext; create collation ext.ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
                 create table public.parents (id {key} collate ext.ci primary key, kind text);
                 create table public.by_id (id int primary key, parent_id {key} collate ext.ci references parents on delete cascade);
                 insert into parents values ('Abc', 'epic')"
            ),
            &[child("public.by_id", "id", "parent_id")],
        )
        .await;
        execute(&mut connection, "insert into by_id values (1, 'aBC'); delete from parents").await;
        assert_eq!(types(&mut connection).await, ["epic.created", "epic.deleted"], "{key}");
    }
}

/// Nobody's deletion fails because the column that a parent is known by has another name, and no event is made of a guess.
#[tokio::test]
async fn a_parent_whose_key_is_renamed_can_be_deleted() {
    for key in ["int", "numeric"] {
        let (_database, mut connection) = captured(
            &format!(
                "create table public.parents (id {key} primary key, kind text);
                 create table public.by_id (id int primary key, parent_id {key} references parents on delete cascade);
                 insert into parents values (1, 'epic'); insert into by_id values (1, 1)"
            ),
            &[child("public.by_id", "id", "parent_id")],
        )
        .await;
        execute(&mut connection, "alter table parents rename id to number; delete from parents").await;
        assert_eq!(types(&mut connection).await, [""; 0]);
        let kept: i64 = sqlx::query_scalar("select count(*) from postrider.capture_failures")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert_eq!(kept, 1, "{key}");
    }
}

/// What is computed when it is read is not in the row that a trigger sees.
#[tokio::test]
async fn a_parent_that_has_gone_has_its_virtual_columns() {
    let table = Table {
        extra: [("parent".to_owned(), "to_json(parent)".to_owned())].into(),
        ..child("public.by_id", "id", "parent_id")
    };
    let declared = [child("public.by_code", "id", "parent_id"), table];
    let (_database, mut connection) = captured_on(
        Version::V18,
        "create table public.parents (id int primary key, k int, kind varchar(9) generated always as ('k' || (k + 1)::text) virtual, note text);
         create table public.by_id (id int primary key, parent_id int references parents on delete cascade);
         create table public.by_code (id int primary key, parent_id int references parents on delete cascade);
         insert into parents values (1, 41); insert into by_id values (1, 1); insert into by_code values (1, 1)",
        &declared,
    )
    .await;
    execute(&mut connection, "update by_id set id = 2; delete from parents").await;
    let found = events(&mut connection).await;
    let told: Vec<&str> = found.iter().map(|event| event.0.as_str()).collect();
    assert_eq!(told, ["k42.updated", "k42.deleted", "k42.deleted"]);
    let parent =
        |place: usize| found[place..].iter().map(|event| &event.2["parent"]).find(|parent| !parent.is_null());
    assert_eq!(parent(0), parent(1), "all of it");
}

/// Rows that went are remembered as those of the whole table.
#[tokio::test]
async fn a_parent_may_be_a_partition() {
    let mut declared = child("public.by_id", "id", "parent_id");
    declared.parent.as_mut().unwrap().table = "public.parents_1".to_owned();
    let (_database, mut connection) = captured(
        "create table public.parents (id int primary key, kind text) partition by range (id);
         create table public.parents_1 partition of parents for values from (0) to (10);
         create table public.by_id (id int primary key, parent_id int references parents_1 on delete cascade)",
        &[declared],
    )
    .await;
    execute(
        &mut connection,
        "insert into parents values (1, 'epic'); insert into by_id values (1, 1); delete from parents",
    )
    .await;
    let kinds: Vec<String> = events(&mut connection).await.into_iter().map(|(kind, ..)| kind).collect();
    assert_eq!(kinds, ["epic.created", "epic.deleted"]);
}

/// Types that its children have none of.
#[tokio::test]
async fn what_is_said_of_a_parent_does_not_depend_on_the_session() {
    let declared = Table {
        tenant: Some("parent.seen || ' ' || parent.took".to_owned()),
        ..child("public.by_id", "id", "parent_id")
    };
    let (_database, mut connection) = captured(
        "create table public.parents (id int primary key, kind text, seen timestamptz, took interval);
         create table public.by_id (id int primary key, parent_id int);
         insert into parents values (1, 'epic', '2026-01-05 12:00Z', '1 day')",
        &[declared],
    )
    .await;
    execute(
        &mut connection,
        "set timezone = 'Asia/Tokyo'; set intervalstyle = 'postgres_verbose'; insert into by_id values (1, 1)",
    )
    .await;
    let tenant: String =
        sqlx::query_scalar("select tenant from postrider.events").fetch_one(&mut connection).await.unwrap();
    assert_eq!(tenant, "2026-01-05 12:00:00+00 P1D");
}

#[tokio::test]
async fn a_parent_that_went_twice_is_the_last_one() {
    let (_database, mut connection) = captured(
        "create table public.parents (id int primary key, kind text);
         create table public.by_id (id int primary key, parent_id int references parents on delete cascade)",
        &[child("public.by_id", "id", "parent_id")],
    )
    .await;
    execute(
        &mut connection,
        "begin; insert into parents values (1, 'first'); insert into by_id values (1, 1); delete from parents;
         insert into parents values (1, 'second'); insert into by_id values (1, 1); delete from parents; commit",
    )
    .await;
    let kinds: Vec<String> = events(&mut connection).await.into_iter().map(|(kind, ..)| kind).collect();
    assert_eq!(kinds, ["first.created", "first.deleted", "second.created", "second.deleted"]);
    // Of another transaction there is nothing to be known.
    execute(&mut connection, "insert into parents values (1, 'third'); insert into by_id values (1, 1)")
        .await;
    execute(&mut connection, "delete from parents").await;
    let kinds: Vec<String> = events(&mut connection).await.into_iter().map(|(kind, ..)| kind).collect();
    assert_eq!(kinds, ["third.created", "third.deleted"]);
}

/// A type must not be chosen by any of several rows. Across partitions the server may be unable to keep them apart: there it is said.
#[tokio::test]
async fn a_parent_that_is_not_known_by_its_column_is_refused() {
    let database = crate::support::database().await;
    let mut connection = database.connect().await.unwrap();
    execute(
        &mut connection,
        "create table public.parents (id int, kind text, at int); create table public.by_id (id int primary key, parent_id int)",
    )
    .await;
    let declared = [child("public.by_id", "id", "parent_id")];
    for index in [
        "create index on parents (id)",
        "create unique index on parents (id) where kind is not null",
        "create unique index on parents (id, at)",
        "create unique index on parents ((id + 1))",
        "alter table parents add unique (id) deferrable",
    ] {
        execute(&mut connection, index).await;
        let refused = capture::plan(&mut connection, &declared).await.unwrap_err();
        assert!(matches!(&refused, Error::Expression { key, .. } if key == "parent.column"), "{refused}");
        let refused = capture::apply(&mut connection, &declared, false).await.unwrap_err().to_string();
        assert!(
            refused.contains("two rows of public.parents could have the same value in `id`"),
            "{refused}"
        );
    }
    execute(&mut connection, "create unique index on parents (id) include (kind)").await;
    capture::apply(&mut connection, &declared, false).await.unwrap();
    execute(
        &mut connection,
        "drop table parents; create table parents (id int, kind text, at int, primary key (id, at)) partition by range (at)",
    )
    .await;
    let plan = capture::apply(&mut connection, &declared, false).await.unwrap();
    assert!(plan.tables[1].notes[1].starts_with("no unique index is on id alone"), "{plan:?}");
}

/// A type must not be chosen by a row that row security hides.
#[tokio::test]
async fn a_parent_whose_rows_may_be_hidden_is_refused() {
    let database = crate::support::database().await;
    let mut admin = database.connect().await.unwrap();
    let owner = format!("{}_own", database.name());
    execute(
        &mut admin,
        &format!(
            "create role \"{owner}\"; create table public.parents (id int primary key, kind text);
             create table public.by_id (id int primary key, parent_id int);
             alter table parents owner to \"{owner}\"; alter table by_id owner to \"{owner}\";
             alter table parents enable row level security"
        ),
    )
    .await;
    let declared = [child("public.by_id", "id", "parent_id")];
    capture::apply(&mut admin, &declared, false).await.unwrap();
    execute(&mut admin, "alter table parents force row level security").await;
    let refused = capture::apply(&mut admin, &declared, false).await.unwrap_err();
    assert!(matches!(refused, Error::Hidden { .. }), "{refused}");
    execute(&mut admin, &format!("drop owned by \"{owner}\" cascade; drop role \"{owner}\"")).await;
}
