//! Types that bring their own JSON along, which they do not take back: `hstore` and its kin, and arrays of documents.

use postrider::capture::{self, OnFailure, Parent, Table};
use postrider_testkit::Version;
use serde_json::json;

use super::{captured, captured_on, events, execute, types};

/// As a column, below a domain, inside an array and inside a composite.
const HSTORES: &str =
    "create schema ext; create extension hstore schema ext; create domain ext.attributes as ext.hstore;
    create type ext.pair as (n int, attrs ext.hstore);";

fn child(kind: &str) -> Table {
    Table {
        r#type: Some(kind.to_owned()),
        parent: Some(Parent {
            table: "public.parents".to_owned(),
            column: "id".to_owned(),
            on: "parent_id".to_owned(),
        }),
        ..Table::new("public.children", "child")
    }
}

#[tokio::test]
async fn a_parent_that_has_one_can_be_deleted() {
    for version in [Version::V14, Version::V18] {
        for (column, kind) in [
            ("ext.hstore", "parent.kind"),
            (
                "ext.hstore",
                "parent.kind || ext.fetchval(parent.attrs, 'a \" \\, )') || ext.fetchval(parent.attrs, 'b')",
            ),
            ("ext.attributes", "parent.kind || ext.fetchval(parent.attrs, 'b')"),
            ("ext.hstore[]", "parent.kind || ext.fetchval(parent.attrs[1], 'b')"),
            ("ext.pair", "parent.kind || ext.fetchval((parent.attrs).attrs, 'b')"),
        ] {
            let value = match column {
                "ext.hstore[]" => "array[h]",
                "ext.pair" => "row(1, h)::ext.pair",
                _ => "h",
            };
            let (_database, mut connection) = captured_on(
                version,
                &format!(
                    "{HSTORES} create table public.parents (id int primary key, empty text, none text, kind text, attrs {column}, doc jsonb);
                     create table public.children (id int primary key, parent_id int references parents on delete cascade);
                     insert into parents select 1, '', null, 'a, \"\\(', {value}, '[1]' from ext.hstore(array['a \" \\, )', 'x', 'b', 'y']) h"
                ),
                &[child(kind)],
            )
            .await;
            execute(&mut connection, "insert into children values (1, 1)").await;
            let created = types(&mut connection).await;
            assert!(created[0].starts_with("a, \"\\("), "{version} {column} {created:?}");
            execute(&mut connection, "delete from parents").await;
            let deleted = types(&mut connection).await;
            assert_eq!(deleted, [created[0].replace("created", "deleted")], "{version} {column} {kind}");
        }
    }
}

/// A column that has come and that no trigger knows keeps no parent from going.
#[tokio::test]
async fn a_parent_that_gets_one_can_be_deleted() {
    let (_database, mut connection) = captured(
        &format!(
            "{HSTORES} create table public.parents (id int primary key, kind text);
             create table public.children (id int primary key, parent_id int references parents on delete cascade);
             insert into parents values (1, 'epic'); insert into children values (1, 1)"
        ),
        &[child("parent.kind")],
    )
    .await;
    execute(&mut connection, "alter table parents add attrs ext.hstore default 'a=>1'; delete from parents")
        .await;
    assert_eq!(types(&mut connection).await, ["epic.deleted"]);
}

#[tokio::test]
async fn rows_that_have_one_are_kept_and_recaptured() {
    let broken = Table {
        tenant: Some("100 / n".to_owned()),
        on_failure: OnFailure::Record,
        ..Table::new("public.orders", "order")
    };
    let (_database, mut connection) = captured(
        &format!(
            "{HSTORES} create table public.orders (id int primary key, n int, attrs ext.attributes, list ext.hstore[], pair ext.pair,
                 note text, doc json, seen timestamptz, bytes bytea, is_new boolean)"
        ),
        std::slice::from_ref(&broken),
    )
    .await;
    execute(
        &mut connection,
        r#"set timezone = 'Asia/Tokyo'; set datestyle = 'German'; set bytea_output = 'escape';
           insert into orders values (1, 0, 'a=>1', array['b=>2', null]::ext.hstore[], row(7, 'c=>"x, y"'), E'q"\\,\n(', '{"k": [1.0]}',
               '2026-01-05 12:00Z', '\x00ff', true);
           update orders set n = 1, note = '', attrs = null"#,
    )
    .await;
    let mended = Table { tenant: None, ..broken };
    assert_eq!(capture::recapture(&mut connection, &mended).await.unwrap().writes, 2);
    let recaptured = events(&mut connection).await;
    // As they would have been recorded at once.
    capture::apply(&mut connection, &[mended], false).await.unwrap();
    execute(
        &mut connection,
        r#"delete from orders; truncate postrider.events;
           insert into orders values (1, 0, 'a=>1', array['b=>2', null]::ext.hstore[], row(7, 'c=>"x, y"'), E'q"\\,\n(', '{"k": [1.0]}',
               '2026-01-05 12:00Z', '\x00ff', true);
           update orders set n = 1, note = '', attrs = null"#,
    )
    .await;
    assert_eq!(recaptured, events(&mut connection).await);
    assert_eq!(recaptured[0].2["attrs"], json!({"a": "1"}));
}

/// A list in one of them is a document, and no dimension of the array.
#[tokio::test]
async fn arrays_of_documents_are_kept_and_recaptured() {
    let broken = Table {
        tenant: Some("100 / n".to_owned()),
        on_failure: OnFailure::Record,
        ..Table::new("public.orders", "order")
    };
    let (_database, mut connection) = captured(
        "create domain public.document as jsonb; create type public.pair as (n int, docs json[]);
         create table public.orders (id int primary key, n int, docs jsonb[], below public.document[], pair public.pair)",
        std::slice::from_ref(&broken),
    )
    .await;
    execute(
        &mut connection,
        "insert into orders values (1, 0, array['[1, 2]', '3', null]::jsonb[], array['[1]', '{}']::public.document[], row(1, array['[1]', '2']::json[]))",
    )
    .await;
    let mended = Table { tenant: None, ..broken };
    assert_eq!(capture::recapture(&mut connection, &mended).await.unwrap().writes, 1);
    let found = events(&mut connection).await;
    let data = &found[0].2;
    assert_eq!((&data["docs"], &data["below"]), (&json!([[1, 2], 3, null]), &json!([[1], {}])));
    assert_eq!(data["pair"], json!({"n": 1, "docs": [[1], 2]}));
}

/// So it is with the row of a parent.
#[tokio::test]
async fn a_parent_with_an_array_of_documents_can_be_deleted() {
    let (_database, mut connection) = captured(
        "create table public.parents (id int primary key, docs jsonb[]);
         create table public.children (id int primary key, parent_id int references parents on delete cascade);
         insert into parents values (1, array['[1, 2]', '3']::jsonb[]); insert into children values (1, 1)",
        &[child("'has' || (parent.docs)[2]::text")],
    )
    .await;
    execute(&mut connection, "delete from parents").await;
    assert_eq!(types(&mut connection).await, ["has3.deleted"]);
}
