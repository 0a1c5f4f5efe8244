//! The issue tracker: its tables, what is declared of them, and an exact event for each kind of write.

use postrider::capture::{Change, Parent, Table, Verbs};
use serde_json::json;

use super::{captured, events, execute, types};

pub const TABLES: &str = "
    create table public.projects (id int primary key);
    create table public.issues (id int primary key, name text not null, state_id int, type_id int, workspace_id int, project_id int references projects on delete cascade,
        sort_order float8, description text, updated_at timestamptz, deleted_at timestamptz);
    create table public.issue_assignees (id int primary key, issue_id int not null references issues on delete cascade, assignee_id int not null,
        deleted_at timestamptz);
    create table public.issue_comments (id int primary key, issue_id int not null references issues on delete cascade, comment text);
    create table public.cycle_issues (id int primary key, issue_id int not null references issues on delete cascade, cycle_id int not null)";

const KIND: &str = "case when type_id is null then 'workitem' else 'epic' end";
const PARENTS_KIND: &str = "case when parent.type_id is null then 'workitem' else 'epic' end";

fn verbs(insert: &str, update: Option<&str>, delete: &str) -> Verbs {
    Verbs {
        insert: Some(insert.to_owned()),
        update: update.map(str::to_owned),
        delete: Some(delete.to_owned()),
        restore: Some(insert.to_owned()),
        purge: None,
        snapshot: None,
    }
}

fn context() -> Vec<String> {
    vec!["app.initiator_id".to_owned(), "app.initiator_type".to_owned()]
}

fn child(table: &str, entity: &str, verbs: Verbs) -> Table {
    Table {
        r#type: Some(PARENTS_KIND.to_owned()),
        key: Some("issue_id".to_owned()),
        parent: Some(Parent {
            table: "public.issues".to_owned(),
            column: "id".to_owned(),
            on: "issue_id".to_owned(),
        }),
        verbs,
        headers: [("project_id".to_owned(), "parent.project_id".to_owned())].into(),
        context: context(),
        ..Table::new(table, entity)
    }
}

pub fn declared() -> Vec<Table> {
    let state = Change { verb: "state.updated".to_owned(), beside: false };
    let issues = Table {
        r#type: Some(KIND.to_owned()),
        key: Some("id".to_owned()),
        tenant: Some("workspace_id".to_owned()),
        changes: [("state_id".to_owned(), state)].into(),
        soft_delete: Some("deleted_at".to_owned()),
        omit: vec!["description".to_owned()],
        ignore: vec!["sort_order".to_owned(), "updated_at".to_owned(), "description".to_owned()],
        headers: [("project_id".to_owned(), "project_id".to_owned())].into(),
        context: context(),
        extra: [(
            "assignee_ids".to_owned(),
            "array(select a.assignee_id from public.issue_assignees a where a.issue_id = issues.id order by 1)"
                .to_owned(),
        )]
        .into(),
        ..Table::new("public.issues", "issue")
    };
    let mut assignees =
        child("public.issue_assignees", "assignee", verbs("assignee.added", None, "assignee.removed"));
    assignees.soft_delete = Some("deleted_at".to_owned());
    let comments = child(
        "public.issue_comments",
        "comment",
        verbs("comment.created", Some("comment.updated"), "comment.deleted"),
    );
    let moved = Change { verb: "cycle.moved".to_owned(), beside: false };
    let mut cycles = child("public.cycle_issues", "cycle", verbs("cycle.added", None, "cycle.removed"));
    cycles.changes = [("cycle_id".to_owned(), moved)].into();
    vec![issues, assignees, comments, cycles]
}

#[tokio::test]
async fn every_kind_of_event() {
    let (_database, mut connection) = captured(TABLES, &declared()).await;
    execute(&mut connection, "insert into issues (id, name, workspace_id) values (1, 'one', 9)").await;
    execute(&mut connection, "insert into issues (id, name, type_id) values (2, 'two', 5)").await;
    assert_eq!(types(&mut connection).await, ["workitem.created", "epic.created"]);
    execute(&mut connection, "update issues set name = name || '!', state_id = 3").await;
    assert_eq!(
        types(&mut connection).await,
        ["workitem.updated", "workitem.state.updated", "epic.updated", "epic.state.updated"]
    );
    execute(&mut connection, "update issues set state_id = 4 where id = 1").await;
    let found = events(&mut connection).await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].0, "workitem.state.updated");
    assert_eq!(found[0].3, json!({"state_id": 3}));
    execute(&mut connection, "update issues set sort_order = 1, updated_at = now(), description = 'long'")
        .await;
    assert_eq!(types(&mut connection).await, [""; 0]);
    execute(&mut connection, "insert into issue_assignees values (1, 1, 70), (2, 2, 71)").await;
    execute(
        &mut connection,
        "insert into issue_comments values (1, 1, 'hello'); update issue_comments set comment = 'hi'",
    )
    .await;
    execute(
        &mut connection,
        "insert into cycle_issues values (1, 2, 8); update cycle_issues set cycle_id = 9",
    )
    .await;
    assert_eq!(
        types(&mut connection).await,
        [
            "workitem.assignee.added",
            "epic.assignee.added",
            "workitem.comment.created",
            "workitem.comment.updated",
            "epic.cycle.added",
            "epic.cycle.moved"
        ]
    );
    execute(
        &mut connection,
        "update issue_assignees set deleted_at = now() where id = 1; delete from issue_comments",
    )
    .await;
    assert_eq!(types(&mut connection).await, ["workitem.assignee.removed", "workitem.comment.deleted"]);
    // A cascade: the parent is gone for every trigger on the child, and its type is still known.
    execute(&mut connection, "delete from issues where id = 2").await;
    assert_eq!(types(&mut connection).await, ["epic.deleted", "epic.assignee.removed", "epic.cycle.removed"]);
    let kept: i64 = sqlx::query_scalar("select count(*) from postrider.departed")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(kept, 1);
    execute(&mut connection, "update issues set deleted_at = now()").await;
    execute(&mut connection, "update issues set deleted_at = null").await;
    assert_eq!(types(&mut connection).await, ["workitem.deleted", "workitem.restored"]);
}
