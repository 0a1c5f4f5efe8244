//! Events that are kept of a table that hangs on another one: they are recorded with the row that was there when they happened.

use postrider::capture::{self, OnFailure, Parent, Table};
use postrider_testkit::Version;
use sqlx::PgConnection;

use super::{captured, captured_on, events, execute};

const TRACKER: &str = "create table public.issues (id int primary key, name text, type_id int);
    create table public.comments (id int primary key, issue_id int references issues on delete cascade, comment text)";

fn comments() -> Table {
    Table {
        key: Some("issue_id".to_owned()),
        parent: Some(Parent {
            table: "public.issues".to_owned(),
            column: "id".to_owned(),
            on: "issue_id".to_owned(),
        }),
        r#type: Some("case when parent.type_id is null then 'workitem' else 'epic' end".to_owned()),
        ..Table::new("public.comments", "comment")
    }
}

/// Type and id of each event since the last call.
async fn told(connection: &mut PgConnection) -> Vec<String> {
    let events = events(connection).await;
    events.into_iter().map(|(kind, _, data, _)| format!("{kind} {}", data["id"])).collect()
}

#[tokio::test]
async fn a_kept_event_has_the_type_of_the_parent_that_has_gone() {
    for version in [Version::V14, Version::V18] {
        let (_database, mut connection) = captured_on(version, TRACKER, &[comments()]).await;
        execute(&mut connection, "insert into issues values (1, 'e', 1), (2, 'w', null), (3, 'e', 1); insert into comments values (1, 1, 'c')").await;
        assert_eq!(told(&mut connection).await, ["epic.created 1"], "{version}");
        execute(
            &mut connection,
            "alter table comments rename comment to body; insert into comments values (2, 1, 'd'), (3, 2, 'd'), (4, null, 'd'), (5, 3, 'd');
             update issues set type_id = null where id = 3; delete from issues where id < 3",
        )
        .await;
        capture::apply(&mut connection, &[comments()], false).await.unwrap();
        assert_eq!(
            told(&mut connection).await,
            [
                "epic.created 2",
                "workitem.created 3",
                "workitem.created 4",
                "epic.created 5",
                "epic.deleted 1",
                "epic.deleted 2",
                "workitem.deleted 3"
            ],
            "{version}"
        );
    }
}

/// So it is where an expression was what failed, and with what waits behind that.
#[tokio::test]
async fn a_failure_keeps_the_parent_of_its_row() {
    let broken = Table {
        tenant: Some("100 / (comments.id - 1)".to_owned()),
        on_failure: OnFailure::Record,
        ..comments()
    };
    let (_database, mut connection) = captured(TRACKER, std::slice::from_ref(&broken)).await;
    execute(
        &mut connection,
        "insert into issues values (1, 'e', 1); insert into comments values (1, 1, 'c'), (2, 1, 'd')",
    )
    .await;
    execute(&mut connection, "delete from issues").await;
    assert_eq!(told(&mut connection).await, [""; 0]);
    let mended = Table { tenant: None, ..broken };
    assert_eq!(capture::recapture(&mut connection, &mended).await.unwrap().writes, 4);
    assert_eq!(
        told(&mut connection).await,
        ["epic.created 1", "epic.created 2", "epic.deleted 1", "epic.deleted 2"]
    );
}

/// What was kept is understood by its columns, not by their names.
#[tokio::test]
async fn a_parent_that_was_kept_survives_its_columns_being_renamed() {
    let (_database, mut connection) = captured(TRACKER, &[comments()]).await;
    execute(
        &mut connection,
        "insert into issues values (1, 'e', 1); alter table comments rename comment to body; insert into comments values (1, 1, 'c');
         alter table issues rename type_id to kind_id; alter table issues add type_id int; delete from issues",
    )
    .await;
    let table = Table {
        r#type: Some("case when parent.kind_id is null then 'workitem' else 'epic' end".to_owned()),
        ..comments()
    };
    capture::apply(&mut connection, std::slice::from_ref(&table), false).await.unwrap();
    assert_eq!(told(&mut connection).await, ["epic.created 1", "epic.deleted 1"]);
}

/// The names between the two may have changed: a foreign key still leads from one to the other.
#[tokio::test]
async fn a_parent_is_kept_where_what_leads_to_it_was_renamed() {
    for (renamed, parent, on, column) in [
        ("alter table comments rename issue_id to iid", "public.issues", "iid", "id"),
        ("alter table issues rename id to number", "public.issues", "issue_id", "number"),
        ("alter table issues rename to tickets", "public.tickets", "issue_id", "id"),
    ] {
        let (_database, mut connection) = captured(TRACKER, &[comments()]).await;
        execute(&mut connection, "insert into issues values (1, 'e', 1), (2, 'w', null)").await;
        execute(
            &mut connection,
            &format!("{renamed}; insert into comments values (1, 1, 'c'), (2, 2, 'c'), (3, null, 'c'); update {parent} set type_id = null"),
        )
        .await;
        let declared = Table {
            key: Some(on.to_owned()),
            parent: Some(Parent { table: parent.to_owned(), column: column.to_owned(), on: on.to_owned() }),
            ..comments()
        };
        let plan = capture::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
        assert_eq!(plan.kept, [], "{renamed}");
        assert_eq!(
            told(&mut connection).await,
            ["epic.created 1", "workitem.created 2", "workitem.created 3"],
            "{renamed}"
        );
    }
    // Also one that has gone, where only the child's own column has another name.
    let (_database, mut connection) = captured(TRACKER, &[comments()]).await;
    execute(
        &mut connection,
        "insert into issues values (1, 'e', 1); insert into comments values (1, 1, 'c'); alter table comments rename issue_id to iid; delete from issues",
    )
    .await;
    events(&mut connection).await;
    let mut declared = Table { key: Some("iid".to_owned()), ..comments() };
    declared.parent.as_mut().unwrap().on = "iid".to_owned();
    capture::apply(&mut connection, &[declared], false).await.unwrap();
    assert_eq!(told(&mut connection).await, ["epic.deleted 1"]);
}

/// Nobody guesses: neither that there was none, nor that it is the one of now.
#[tokio::test]
async fn an_event_whose_parent_could_not_be_kept_is_refused() {
    let alone = TRACKER.replace(" references issues on delete cascade", "");
    let (_database, mut connection) = captured(&alone, &[comments()]).await;
    execute(
        &mut connection,
        "insert into issues values (1, 'e', 1); alter table comments rename issue_id to iid; insert into comments values (1, 1, 'c');
         update issues set type_id = null",
    )
    .await;
    let mut table = Table { key: Some("iid".to_owned()), ..comments() };
    table.parent.as_mut().unwrap().on = "iid".to_owned();
    let plan = capture::apply(&mut connection, std::slice::from_ref(&table), false).await.unwrap();
    assert!(plan.kept[0].message.contains("the row of public.issues that it hung on"), "{plan:?}");
    assert_eq!(told(&mut connection).await, [""; 0]);
    // Whoever knows says it.
    execute(
        &mut connection,
        "update postrider.capture_failures set parent_row = '{\"id\": 1, \"type_id\": 1}'",
    )
    .await;
    assert_eq!(capture::recapture(&mut connection, &table).await.unwrap().writes, 1);
    assert_eq!(told(&mut connection).await, ["epic.created 1"]);
}

/// A declaration that asks for more than was kept.
#[tokio::test]
async fn a_column_that_the_kept_parent_does_not_have_is_not_taken_for_null() {
    let (_database, mut connection) = captured(TRACKER, &[comments()]).await;
    execute(
        &mut connection,
        "insert into issues values (1, 'e', 1); alter table comments rename comment to body; insert into comments values (1, 1, 'c');
         alter table issues add class text default 'epic'",
    )
    .await;
    let table = Table { r#type: Some("coalesce(parent.class, 'workitem')".to_owned()), ..comments() };
    let plan = capture::apply(&mut connection, &[table], false).await.unwrap();
    assert!(plan.kept[0].message.contains("has not all the columns"), "{plan:?}");
    assert_eq!(told(&mut connection).await, [""; 0]);
}
