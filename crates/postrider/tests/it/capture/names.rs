//! Names and expressions that read like something else: every one of them is captured, or refused by name before it is installed.

use postrider::capture::{self, Change, Error, Parent, Table};
use serde_json::json;

use super::{captured, events, execute};
use crate::support::database;

/// Words that SQL or PL/pgSQL reserves, or uses, on some version.
const WORDS: &str = "all analyse analyze and any array as asc asymmetric authorization begin between binary both by case cast check collate \
    collation column concurrently constraint continue create cross current_catalog current_date current_role current_schema current_time \
    current_timestamp current_user cursor declare default deferrable desc diagnostics distinct do else elsif end except exception execute exit \
    false fetch for foreach foreign found freeze from full get grant group having if ilike in initially inner insert intersect into is isnull join \
    lateral leading left like limit localtime localtimestamp loop move natural new not notnull null of offset old on only open option or order \
    outer overlaps perform placing primary query raise record references return returning reverse right rowtype scroll select session_user similar \
    slice some strict symmetric system_user table tablesample tg_op tg_relid then to trailing true union unique update user using values variadic \
    verbose when where while window with";

#[tokio::test]
async fn columns_may_be_called_by_any_reserved_word() {
    let columns: Vec<String> = WORDS.split_whitespace().map(|word| format!("\"{word}\" int")).collect();
    let mention = Table {
        tenant: Some("concat(\"by\", \"begin\", \"loop\")".to_owned()),
        headers: [
            ("if".to_owned(), "\"if\"".to_owned()),
            ("sum".to_owned(), "\"while\" + \"strict\"".to_owned()),
        ]
        .into(),
        ..Table::new("public.words", "word")
    };
    for table in [Table::new("public.words", "word"), mention] {
        let (_database, mut connection) = captured(
            &format!("create table public.words (id int primary key, {})", columns.join(", ")),
            std::slice::from_ref(&table),
        )
        .await;
        for word in WORDS.split_whitespace() {
            execute(
                &mut connection,
                &format!("insert into words (id, \"{word}\") values (1, 1); update words set \"{word}\" = 2; delete from words"),
            )
            .await;
            let found = events(&mut connection).await;
            assert_eq!(found.len(), 3, "{word}");
            assert_eq!(
                (&found[0].2[word], &found[1].3, &found[2].2[word]),
                (&json!(1), &json!({word: 1}), &json!(2))
            );
        }
    }
}

#[tokio::test]
async fn a_key_may_have_quotes_in_its_name_and_colons_in_its_parts() {
    let declared = [
        Table { tenant: Some("upper(\"a\"\"b\")".to_owned()), ..Table::new("public.quoted", "quoted") },
        Table { key: Some("U&\"\\0074yp\"".to_owned()), ..Table::new("public.numbered", "numbered") },
    ];
    let (_database, mut connection) = captured(
        "create table public.quoted (\"a\"\"b\" text, c text, primary key (\"a\"\"b\", c)); create table public.numbered (typ text)",
        &declared,
    )
    .await;
    execute(
        &mut connection,
        "insert into quoted values ('1:2', '3'), ('1', '2:3'), (E'1\\\\', ':3'); insert into numbered values ('x')",
    )
    .await;
    let keys: Vec<String> = events(&mut connection).await.into_iter().map(|(_, key, ..)| key).collect();
    assert_eq!(keys, ["1\\:2:3", "1:2\\:3", "1\\\\:\\:3", "x"]);
}

#[tokio::test]
async fn tables_and_columns_may_be_called_as_the_trigger_calls_its_own_parts() {
    let declared = [
        Table { key: Some("kind".to_owned()), ..Table::new("public.capture", "capture") },
        Table {
            r#type: Some("parent.kind || coalesce(p.parent, '')".to_owned()),
            parent: Some(Parent {
                table: "public.capture".to_owned(),
                column: "kind".to_owned(),
                on: "p.of".to_owned(),
            }),
            ..Table::new("public.p", "child")
        },
    ];
    let (_database, mut connection) = captured(
        // The parent has a column that is called as the one by which it is known.
        "create table public.capture (kind text primary key, of text); create table public.p (id int primary key, of text, parent text)",
        &declared,
    )
    .await;
    execute(&mut connection, "insert into capture values ('a'); insert into p values (1, 'a', 'b')").await;
    let found: Vec<(String, String)> =
        events(&mut connection).await.into_iter().map(|(kind, key, ..)| (kind, key)).collect();
    assert_eq!(
        found,
        [("capture.created".to_owned(), "a".to_owned()), ("ab.created".to_owned(), "1".to_owned())]
    );
}

#[tokio::test]
async fn an_expression_that_a_trigger_could_not_take_is_refused() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    execute(&mut connection, "create table public.orders (id int primary key, name text)").await;
    for expression in [
        "to_jsonb(orders)",
        "(orders).name",
        "md5(orders.*::text)",
        "row_to_json(orders.*)",
        "generate_series(1, 3)",
        "count(*)",
    ] {
        let table = Table {
            extra: [("x".to_owned(), expression.to_owned())].into(),
            ..Table::new("public.orders", "order")
        };
        let refused = capture::plan(&mut connection, &[table]).await.unwrap_err();
        assert!(
            matches!(&refused, Error::Expression { key, .. } if key == "extra.x"),
            "{expression}: {refused}"
        );
    }
}

/// Two columns of one event make it once.
#[tokio::test]
async fn columns_that_share_an_event_make_it_once() {
    let change = || Change { verb: "dates.updated".to_owned(), beside: false };
    let table = Table {
        changes: [("begins".to_owned(), change()), ("ends".to_owned(), change())].into(),
        ..Table::new("public.plans", "plan")
    };
    let (_database, mut connection) =
        captured("create table public.plans (id int primary key, begins date, ends date)", &[table]).await;
    execute(
        &mut connection,
        "insert into plans values (1); update plans set begins = '2026-01-01', ends = '2026-02-01'",
    )
    .await;
    let kinds: Vec<String> = events(&mut connection).await.into_iter().map(|(kind, ..)| kind).collect();
    assert_eq!(kinds, ["plan.created", "plan.dates.updated"]);
}

/// A name that was clear when the trigger was made may be that of two columns later. Nobody's write fails for that.
#[tokio::test]
async fn a_name_that_becomes_ambiguous_breaks_no_write() {
    let names =
        "array(select name from public.assigned join public.people on person = who where issue = issues.id)";
    let declared = Table {
        extra: [("names".to_owned(), names.to_owned())].into(),
        ..Table::new("public.issues", "issue")
    };
    let (_database, mut connection) = captured(
        "create table public.issues (id int primary key, n int); create table public.assigned (issue int, who int);
         create table public.people (person int, name text)",
        &[declared],
    )
    .await;
    execute(&mut connection, "insert into issues values (1); alter table assigned add column name text")
        .await;
    execute(&mut connection, "update issues set n = 1").await;
    let kept: Vec<String> = sqlx::query_scalar("select sqlstate from postrider.capture_failures")
        .fetch_all(&mut connection)
        .await
        .unwrap();
    assert_eq!(kept, ["42702"]);
}
