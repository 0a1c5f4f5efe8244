//! Declared tables.

use postrider::capture::{Change, OnFailure, Parent, Replicated, Table, Truncate, Verbs};

use super::{URL, bad, examined, good};

#[test]
fn a_declared_table_is_what_the_library_gets() {
    let text = r"
tables:
  public.issues:
    entity: issue
    key: id
    tenant: workspace_id
    type: case when type_id is null then 'workitem' else 'epic' end
    verbs: { updated: none, purged: purged }
    changes: { state_id: state.updated }
    also: { name: renamed }
    soft_delete: deleted_at
    omit: [description]
    ignore: [sort_order, updated_at]
    extra: { n: '1' }
    headers: { project_id: project_id }
    context: [app.initiator_id]
    parent: { table: public.projects, by: project_id }
    replicated: ignore
    truncate: refuse
    on_failure: record
  public.small: { entity: small }
";
    let text_of = |text: &str| Some(text.to_owned());
    let change = |verb: &str, beside| Change { verb: verb.to_owned(), beside };
    let wanted = Table {
        r#type: text_of("case when type_id is null then 'workitem' else 'epic' end"),
        key: text_of("id"),
        tenant: text_of("workspace_id"),
        verbs: Verbs { update: None, purge: text_of("purged"), ..Verbs::default() },
        changes: [
            ("state_id".to_owned(), change("state.updated", false)),
            ("name".to_owned(), change("renamed", true)),
        ]
        .into(),
        soft_delete: text_of("deleted_at"),
        omit: vec!["description".to_owned()],
        ignore: vec!["sort_order".to_owned(), "updated_at".to_owned()],
        extra: [("n".to_owned(), "1".to_owned())].into(),
        headers: [("project_id".to_owned(), "project_id".to_owned())].into(),
        context: vec!["app.initiator_id".to_owned()],
        parent: Some(Parent {
            table: "public.projects".to_owned(),
            column: "id".to_owned(),
            on: "project_id".to_owned(),
        }),
        replicated: Replicated::Ignore,
        truncate: Truncate::Refuse,
        on_failure: OnFailure::Record,
        ..Table::new("public.issues", "issue")
    };
    let config = good(text, [URL]);
    assert_eq!(config.relay.tables, [wanted, Table::new("public.small", "small")]);
    let shown = examined(text, [URL]).show().yaml();
    assert_eq!(examined(&shown, [URL]).file.tables, examined(text, [URL]).file.tables, "{shown}");
}

#[test]
fn what_is_wrong_with_a_table_is_said_with_its_line() {
    let text = "tables:\n  public.a: { entity: a, omits: [x] }\n  b: { entity: b }\n  public.c: { entity: c, changes: { x: none } }\n";
    let report = examined(text, [URL]).report;
    let lines: Vec<_> =
        report.json().as_array().unwrap().iter().map(|found| found["line"].as_u64()).collect();
    assert_eq!(lines, [Some(2)], "{report}");
    bad(text, [URL], &["did you mean `omit`?", "in `tables.public.a`"]);
    for (table, said) in [
        ("b: { entity: b }", "with its schema"),
        ("postrider.events: { entity: b }", "the log's own"),
        ("public.b: { key: id }", "entity"),
        ("public.b: { entity: b, on_failure: ignore }", "refuse"),
        ("public.b: { entity: b, on_failure: recrod }", "did you mean `record`?"),
        ("public.b: { entity: b, changes: { x: none } }", "`ignore`"),
        ("public.b: { entity: b, changes: { x: y }, also: { x: z } }", "both in `changes`"),
        ("public.b: { entity: b, also: { x: y }, ignore: [x] }", "both in `also` and in `ignore`"),
        ("public.b: { entity: b, context: [user] }", "app.user"),
        ("public.b: { entity: b, context: [app.user], headers: { user: '1' } }", "two headers"),
        ("public.b: { entity: b, verbs: { created: '' } }", "verbs.created"),
        ("public.b: { entity: b, parent: { table: public.c } }", "by"),
    ] {
        bad(&format!("tables:\n  {table}\n"), [URL], &[said, "p.yaml:2"]);
    }
}
