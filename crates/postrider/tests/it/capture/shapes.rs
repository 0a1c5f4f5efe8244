//! Tables of unusual shapes: very wide, with columns that are called like ours, with nothing in the payload.

use postrider::capture::{Change, Table};
use serde_json::{Value, json};

use super::{captured, events, execute};

/// A call of the server's takes a hundred arguments at most: what changed and the row take several.
#[tokio::test]
async fn a_table_of_250_columns() {
    let columns = (1..250).map(|n| format!("c{n} int")).collect::<Vec<_>>().join(", ");
    let (_database, mut connection) = captured(
        &format!("create table public.wide (id int primary key, {columns})"),
        &[Table::new("public.wide", "wide")],
    )
    .await;
    execute(&mut connection, "insert into wide (id, c1, c249) values (1, 10, 20)").await;
    execute(&mut connection, "update wide set c120 = 5, c249 = 21").await;
    execute(&mut connection, "update wide set c1 = null").await;
    let found = events(&mut connection).await;
    assert_eq!(found[0].2.as_object().unwrap().len(), 250);
    assert_eq!(
        (&found[0].2["c1"], &found[0].2["c120"], &found[0].2["c249"]),
        (&json!(10), &Value::Null, &json!(20))
    );
    assert_eq!(found[1].3, json!({"c120": null, "c249": 20}));
    assert_eq!(found[2].3, json!({"c1": 10}));
}

#[tokio::test]
async fn columns_may_be_called_as_the_trigger_calls_its_own() {
    let names = ["new", "old", "captured", "verbs", "previous", "key", "data"];
    let columns = names.map(|name| format!("{name} text")).join(", ");
    let declared = Table {
        key: Some("old || '/' || new".to_owned()),
        tenant: Some("captured".to_owned()),
        extra: [("both".to_owned(), "verbs || previous".to_owned())].into(),
        headers: [("as_it_is".to_owned(), "new".to_owned()), ("made".to_owned(), "lower(data)".to_owned())]
            .into(),
        ..Table::new("public.odd", "odd")
    };
    let (_database, mut connection) =
        captured(&format!("create table public.odd ({columns})"), &[declared]).await;
    execute(&mut connection, "insert into odd values ('n', 'o', 'c', 'v', 'p', 'k', 'D')").await;
    execute(&mut connection, "update odd set new = 'm', data = null").await;
    execute(&mut connection, "delete from odd").await;
    let headers: Vec<String> = sqlx::query_scalar("select headers::text from postrider.events order by seq")
        .fetch_all(&mut connection)
        .await
        .unwrap();
    let headers: Vec<Value> = headers.iter().map(|headers| serde_json::from_str(headers).unwrap()).collect();
    // What is null is no header.
    assert_eq!(
        headers,
        [json!({"as_it_is": "n", "made": "d"}), json!({"as_it_is": "m"}), json!({"as_it_is": "m"})]
    );
    let found = events(&mut connection).await;
    assert_eq!(found.iter().map(|event| event.1.as_str()).collect::<Vec<_>>(), ["o/n", "o/m", "o/m"]);
    assert_eq!(found[1].3, json!({"new": "n", "data": "D"}));
    let last = json!({"new": "m", "old": "o", "captured": "c", "verbs": "v", "previous": "p", "key": "k", "data": null, "both": "vp"});
    assert_eq!((&found[1].2, &found[2].2), (&last, &last));
}

/// A row called `new` stands in the way of the one that the trigger is called for, where fields of that are asked for.
#[tokio::test]
async fn a_column_called_new_may_have_fields_that_are_called_as_other_columns() {
    let declared = Table { tenant: Some("(new).n::text".to_owned()), ..Table::new("public.odd", "odd") };
    let (_database, mut connection) = captured(
        "create type public.pair as (id int, n int); create table public.odd (id int primary key, n int, new public.pair)",
        &[declared],
    )
    .await;
    execute(&mut connection, "insert into odd values (1, 2, (3, 4))").await;
    let tenant: String =
        sqlx::query_scalar("select tenant from postrider.events").fetch_one(&mut connection).await.unwrap();
    let found = events(&mut connection).await;
    assert_eq!((found[0].1.as_str(), tenant.as_str()), ("1", "4"));
    assert_eq!(found[0].2, json!({"id": 1, "n": 2, "new": {"id": 3, "n": 4}}));
}

#[tokio::test]
async fn a_column_that_comes_to_a_table_of_which_nothing_is_in_the_payload() {
    let declared = Table { omit: vec!["id".to_owned()], ..Table::new("public.bare", "bare") };
    let (_database, mut connection) =
        captured("create table public.bare (id int primary key)", &[declared]).await;
    execute(&mut connection, "insert into bare values (1)").await;
    execute(&mut connection, "alter table bare add column note text").await;
    execute(&mut connection, "update bare set note = 'x'").await;
    let found: Vec<(Value, Value)> =
        events(&mut connection).await.into_iter().map(|(_, _, data, previous)| (data, previous)).collect();
    assert_eq!(found, [(json!({}), json!({})), (json!({"note": "x"}), json!({"note": null}))]);
}

/// A column's change is news, is told of, both or neither, by what is declared of it.
#[tokio::test]
async fn what_changed_is_news_and_told_of_as_declared() {
    let state = Change { verb: "state.updated".to_owned(), beside: false };
    let declared = Table {
        omit: vec!["body".to_owned(), "note".to_owned()],
        ignore: vec!["place".to_owned(), "note".to_owned()],
        changes: [("state".to_owned(), state)].into(),
        ..Table::new("public.posts", "post")
    };
    let posts = "create table public.posts (id int primary key, state int, place int, body text, note text, name text);
         insert into public.posts values (1, 1, 1, 'a', 'a', 'a')";
    let (_database, mut connection) = captured(posts, &[declared]).await;
    let all = json!({ "name": "b", "place": 2, "state": 2 });
    for (set, expected) in [
        ("name = 'b'", vec![("post.updated", json!({ "name": "a" }))]),
        ("body = 'b'", vec![("post.updated", json!({}))]),
        ("place = 2", vec![]),
        ("note = 'b'", vec![]),
        ("state = 2", vec![("post.state.updated", json!({ "state": 1 }))]),
        (
            "state = 3, place = 3, name = 'c'",
            vec![("post.updated", all.clone()), ("post.state.updated", all)],
        ),
        ("body = 'c', place = 4", vec![("post.updated", json!({ "place": 3 }))]),
    ] {
        execute(&mut connection, &format!("update public.posts set {set}")).await;
        let found = events(&mut connection).await;
        let found: Vec<(&str, Value)> =
            found.iter().map(|(kind, _, _, previous)| (kind.as_str(), previous.clone())).collect();
        assert_eq!(found, expected, "{set}");
    }
}

/// The declared field stays what it is, and the column's change is told of.
#[tokio::test]
async fn a_column_that_comes_under_the_name_of_a_declared_field_does_not_take_its_place() {
    let declared = Table {
        extra: [("total".to_owned(), "id + 1".to_owned())].into(),
        ..Table::new("public.orders", "order")
    };
    let (_database, mut connection) =
        captured("create table public.orders (id int primary key)", &[declared]).await;
    execute(&mut connection, "insert into orders values (1)").await;
    execute(&mut connection, "alter table orders add column total int, add column note text").await;
    execute(&mut connection, "update orders set total = 5").await;
    execute(&mut connection, "update orders set total = 6, note = 'x'").await;
    let payloads: Vec<String> = sqlx::query_scalar("select payload::text from postrider.events order by seq")
        .fetch_all(&mut connection)
        .await
        .unwrap();
    // As text, of which a parser would show the last field of a name alone.
    assert_eq!(
        payloads,
        [
            r#"{"data":{"id":1,"total":2},"previous_attributes":{}}"#,
            r#"{"data":{"id":1,"total":2,"note":null},"previous_attributes":{}}"#,
            r#"{"data":{"id":1,"total":2,"note":"x"},"previous_attributes":{"note":null}}"#,
        ]
    );
}
