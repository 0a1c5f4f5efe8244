//! Every type of event by every way of writing: one exact event in each cell, or the reason why there can be none.

use postrider_testkit::Version;
use serde_json::{Value, json};
use sqlx::{PgConnection, Row};

use super::tracker::{TABLES, declared};
use super::{captured_on, execute};

/// Ways of writing, as the table in the documentation names them.
const PATHS: [&str; 10] = [
    "raw SQL",
    "ORM write",
    "bulk",
    "COPY",
    "MERGE",
    "ON CONFLICT",
    "cascade",
    "view",
    "migration",
    "savepoint",
];

const ONLY_INSERTS: &str = "COPY only inserts";
const NEVER_DELETES: &str = "ON CONFLICT inserts or updates";
const ONLY_DELETES: &str = "the foreign keys here only delete";
const NO_MERGE: &str = "MERGE begins with PostgreSQL 15";

/// What one row of the table does, to the rows 1 (of a work item) and 2 (of an epic).
struct Case {
    /// Behind `workitem.` or `epic.`.
    verb: &'static str,
    /// Where the same type has two causes.
    how: &'static str,
    table: &'static str,
    write: Write,
    /// What the event says of row N.
    data: fn(i32) -> Value,
    previous: fn(i32) -> Value,
}

enum Write {
    Insert,
    /// What is set.
    Update(&'static str),
    Delete,
}

fn issue(n: i32, name: &str, state: i32, deleted: Option<&str>, assignees: &[i32]) -> Value {
    json!({
        "id": n, "name": name, "state_id": state, "type_id": if n == 1 { Value::Null } else { json!(5) }, "workspace_id": 9,
        "project_id": 4, "sort_order": 1.5, "updated_at": null, "deleted_at": deleted, "assignee_ids": assignees
    })
}

fn assignee(n: i32, deleted: Option<&str>) -> Value {
    json!({"id": n, "issue_id": n, "assignee_id": 70, "deleted_at": deleted})
}

fn comment(n: i32, text: &str) -> Value {
    json!({"id": n, "issue_id": n, "comment": text})
}

fn cycle(n: i32, cycle: i32) -> Value {
    json!({"id": n, "issue_id": n, "cycle_id": cycle})
}

const DELETED: &str = "2026-01-02T03:04:05+00:00";
const SOFTLY: &str = "deleted_at = '2026-01-02 03:04:05+00'";

fn cases() -> Vec<Case> {
    let nothing: fn(i32) -> Value = |_| json!({});
    let case = |verb, how, table, write, data, previous| Case { verb, how, table, write, data, previous };
    vec![
        case("created", "", "issues", Write::Insert, |n| issue(n, "new", 1, None, &[]), nothing),
        case(
            "updated",
            "",
            "issues",
            Write::Update("name = 'changed'"),
            |n| issue(n, "changed", 1, None, &[70]),
            |_| json!({"name": "new"}),
        ),
        case(
            "state.updated",
            "",
            "issues",
            Write::Update("state_id = 3"),
            |n| issue(n, "new", 3, None, &[70]),
            |_| json!({"state_id": 1}),
        ),
        case("deleted", "by DELETE", "issues", Write::Delete, |n| issue(n, "new", 1, None, &[70]), nothing),
        case(
            "deleted",
            "softly",
            "issues",
            Write::Update(SOFTLY),
            |n| issue(n, "new", 1, Some(DELETED), &[70]),
            |_| json!({"deleted_at": null}),
        ),
        case("assignee.added", "", "issue_assignees", Write::Insert, |n| assignee(n, None), nothing),
        case(
            "assignee.removed",
            "by DELETE",
            "issue_assignees",
            Write::Delete,
            |n| assignee(n, None),
            nothing,
        ),
        case(
            "assignee.removed",
            "softly",
            "issue_assignees",
            Write::Update(SOFTLY),
            |n| assignee(n, Some(DELETED)),
            |_| json!({"deleted_at": null}),
        ),
        case("comment.created", "", "issue_comments", Write::Insert, |n| comment(n, "hello"), nothing),
        case(
            "comment.updated",
            "",
            "issue_comments",
            Write::Update("comment = 'hi'"),
            |n| comment(n, "hi"),
            |_| json!({"comment": "hello"}),
        ),
        case("comment.deleted", "", "issue_comments", Write::Delete, |n| comment(n, "hello"), nothing),
        case("cycle.added", "", "cycle_issues", Write::Insert, |n| cycle(n, 8), nothing),
        case("cycle.removed", "", "cycle_issues", Write::Delete, |n| cycle(n, 8), nothing),
        case(
            "cycle.moved",
            "",
            "cycle_issues",
            Write::Update("cycle_id = 9"),
            |n| cycle(n, 9),
            |_| json!({"cycle_id": 8}),
        ),
    ]
}

/// The columns that are written, and their values in row N.
fn row(table: &str, n: i32) -> (&'static str, String) {
    match table {
        "issues" => (
            "id, name, state_id, type_id, workspace_id, project_id, sort_order",
            format!("{n}, 'new', 1, {}, 9, 4, 1.5", if n == 1 { "null::int" } else { "5" }),
        ),
        "issue_assignees" => ("id, issue_id, assignee_id", format!("{n}, {n}, 70")),
        "issue_comments" => ("id, issue_id, comment", format!("{n}, {n}, 'hello'")),
        _ => ("id, issue_id, cycle_id", format!("{n}, {n}, 8")),
    }
}

/// One row by an ordinary statement.
fn plain(case: &Case, table: &str, n: i32) -> String {
    let (columns, values) = row(case.table, n);
    match case.write {
        Write::Insert => format!("insert into {table} ({columns}) values ({values})"),
        Write::Update(set) => format!("update {table} set {set} where id = {n}"),
        Write::Delete => format!("delete from {table} where id = {n}"),
    }
}

/// The statements of a path for both rows, or why there are none.
fn statements(case: &Case, path: &str, version: Version) -> Result<Vec<String>, &'static str> {
    let table = case.table;
    let (columns, one) = row(table, 1);
    let both = format!("({one}), ({})", row(table, 2).1);
    let names: Vec<String> = columns.split(", ").map(|name| format!("s.{name}")).collect();
    let each = |make: &dyn Fn(i32) -> String| Ok(vec![make(1), make(2)]);
    match path {
        "raw SQL" => each(&|n| plain(case, table, n)),
        // What drivers of ORMs send: one row, prepared, with parameters.
        "ORM write" => each(&|n| {
            let prepared = match case.write {
                Write::Insert => plain(case, table, n).replacen(&format!("({n}, "), "($1, ", 1),
                _ => plain(case, table, n).replace(&format!("id = {n}"), "id = $1"),
            };
            format!("prepare one(int) as {prepared}; execute one({n}); deallocate one")
        }),
        "bulk" => Ok(vec![match case.write {
            Write::Insert => format!("insert into {table} ({columns}) values {both}"),
            Write::Update(set) => format!("update {table} set {set}"),
            Write::Delete => format!("delete from {table}"),
        }]),
        "COPY" => match case.write {
            Write::Insert => Ok(vec![format!(
                "copy {table} ({columns}) from stdin with (format csv, null 'null::int', quote '''')"
            )]),
            _ => Err(ONLY_INSERTS),
        },
        "MERGE" if version < Version::V15 => Err(NO_MERGE),
        "MERGE" => {
            let when = match case.write {
                Write::Insert => format!("not matched then insert ({columns}) values ({})", names.join(", ")),
                Write::Update(set) => format!("matched then update set {set}"),
                Write::Delete => "matched then delete".to_owned(),
            };
            Ok(vec![format!(
                "merge into {table} t using (values {both}) s ({columns}) on t.id = s.id when {when}"
            )])
        }
        "ON CONFLICT" => match case.write {
            Write::Insert => {
                Ok(vec![format!("insert into {table} ({columns}) values {both} on conflict (id) do nothing")])
            }
            Write::Update(set) => Ok(vec![format!(
                "insert into {table} ({columns}) values {both} on conflict (id) do update set {set}"
            )]),
            Write::Delete => Err(NEVER_DELETES),
        },
        "cascade" => match (&case.write, table) {
            (Write::Delete, "issues") => Ok(vec!["delete from projects".to_owned()]),
            (Write::Delete, _) => Ok(vec!["delete from issues".to_owned()]),
            _ => Err(ONLY_DELETES),
        },
        "view" => each(&|n| plain(case, &format!("seen_{table}"), n)),
        // DDL and data in one transaction; the column is gone before anyone has generated the trigger anew.
        "migration" => Ok(vec![format!(
            "begin; alter table {table} add column migrated int; {}; {}; alter table {table} drop column migrated; commit",
            plain(case, table, 1),
            plain(case, table, 2)
        )]),
        _ => each(&|n| {
            let write = plain(case, table, n);
            format!("begin; savepoint s; {write}; rollback to s; {write}; commit")
        }),
    }
}

/// The tables as they are before a cell, and no events.
async fn reset(connection: &mut PgConnection, case: &Case) {
    let mut script = vec![
        "delete from cycle_issues; delete from issue_comments; delete from issue_assignees; delete from issues;
         delete from projects; insert into projects values (4)"
            .to_owned(),
    ];
    let creates_issues = case.table == "issues" && matches!(case.write, Write::Insert);
    for table in ["issues", "issue_assignees", "issue_comments", "cycle_issues"] {
        let written_by_the_case = table == case.table && matches!(case.write, Write::Insert);
        // Nobody is assigned to an issue that does not exist.
        if !written_by_the_case && !creates_issues {
            for n in [1, 2] {
                let (columns, values) = row(table, n);
                script.push(format!("insert into {table} ({columns}) values ({values})"));
            }
        }
    }
    script.push("truncate postrider.events".to_owned());
    execute(connection, &script.join("; ")).await;
}

async fn write(connection: &mut PgConnection, case: &Case, statement: &str) {
    if !statement.starts_with("copy") {
        return execute(connection, statement).await;
    }
    let mut copy = connection.copy_in_raw(statement).await.unwrap();
    for n in [1, 2] {
        let line = row(case.table, n).1.replace(", ", ",") + "\n";
        copy.send(line.as_bytes()).await.unwrap();
    }
    copy.finish().await.unwrap();
}

async fn every_cell(version: Version) {
    let (_database, mut connection) = captured_on(version, TABLES, &declared()).await;
    for table in ["issues", "issue_assignees", "issue_comments", "cycle_issues"] {
        execute(&mut connection, &format!("create view seen_{table} as select * from {table}")).await;
    }
    execute(&mut connection, "set app.initiator_id = 'u1'; set app.initiator_type = 'user'").await;
    for case in cases() {
        for path in PATHS {
            let Ok(statements) = statements(&case, path, version) else { continue };
            reset(&mut connection, &case).await;
            for statement in &statements {
                write(&mut connection, &case, statement).await;
            }
            cell(&mut connection, &case, path).await;
        }
    }
}

/// Exactly the two events that are expected, and in a cascade those of the rows it began with beside them.
async fn cell(connection: &mut PgConnection, case: &Case, path: &str) {
    let rows = sqlx::query(
        "select type, key, entity, payload::text, headers::text from postrider.events order by key, seq",
    )
    .fetch_all(connection)
    .await
    .unwrap();
    let found: Vec<Value> = rows
        .iter()
        .filter(|row| {
            // An issue that goes takes along what hangs on it: those are cells of their own.
            let beside = path == "cascade" || case.table == "issues" && matches!(case.write, Write::Delete);
            let r#type: &str = row.get("type");
            !beside || r#type.split_once('.').is_some_and(|(_, verb)| verb == case.verb)
        })
        .map(|row| {
            let json = |name| serde_json::from_str::<Value>(row.get::<&str, _>(name)).unwrap();
            json!([row.get::<&str, _>("type"), row.get::<&str, _>("key"), json("payload"), json("headers")])
        })
        .collect();
    let expected: Vec<Value> = [(1, "workitem"), (2, "epic")]
        .into_iter()
        .map(|(n, kind)| {
            let mut data = (case.data)(n);
            if path == "migration" {
                data["migrated"] = Value::Null;
            }
            if path == "cascade" && case.table == "issues" {
                // The children went first or not: whoever needs them in the last event of a row deletes softly.
                let there = found.get(usize::try_from(n).unwrap() - 1).map(|event| event[2]["data"]["assignee_ids"].clone());
                assert!(there == Some(json!([])) || there.as_ref() == Some(&data["assignee_ids"]), "{there:?}");
                data["assignee_ids"] = there.unwrap_or_default();
            }
            let headers = json!({"initiator_id": "u1", "initiator_type": "user", "project_id": 4});
            json!([format!("{kind}.{}", case.verb), n.to_string(), {"data": data, "previous_attributes": (case.previous)(n)}, headers])
        })
        .collect();
    assert_eq!(found, expected, "{} {} by {path}", case.verb, case.how);
}

#[tokio::test]
async fn every_type_by_every_way_of_writing() {
    every_cell(Version::default()).await;
}

#[tokio::test]
async fn every_type_by_every_way_of_writing_on_14() {
    every_cell(Version::V14).await;
}

#[tokio::test]
async fn every_type_by_every_way_of_writing_on_18() {
    every_cell(Version::V18).await;
}

/// The table as the documentation has it.
fn as_markdown() -> String {
    let mut lines =
        vec![format!("| type | {} |", PATHS.join(" | ")), format!("|---|{}", "---|".repeat(PATHS.len()))];
    let mut reasons: Vec<&str> = Vec::new();
    for case in cases() {
        let how = if case.how.is_empty() { String::new() } else { format!(", {}", case.how) };
        let cells = PATHS.map(|path| match statements(&case, path, Version::default()) {
            Ok(_) => "yes".to_owned(),
            Err(reason) => {
                let number = reasons.iter().position(|known| *known == reason).unwrap_or_else(|| {
                    reasons.push(reason);
                    reasons.len() - 1
                });
                format!("– ({})", number + 1)
            }
        });
        lines.push(format!("| `{}`{how} | {} |", case.verb, cells.join(" | ")));
    }
    lines.push(String::new());
    lines.extend(reasons.iter().enumerate().map(|(n, reason)| format!("({}) {reason}.", n + 1)));
    lines.join("\n")
}

#[test]
fn the_table_in_the_documentation_is_that_of_the_suite() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/capture.md")).unwrap();
    let table = as_markdown();
    assert!(page.contains(&table), "put this into docs/capture.md:\n{table}");
}
