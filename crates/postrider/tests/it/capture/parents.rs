//! Tables that hang on another one, also when that has gone before them.

use postrider::capture::{self, Error, Parent, Table};

use super::{captured, events, execute};

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
        assert!(!capture::plan(connection, one).await.unwrap().is_done());
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
