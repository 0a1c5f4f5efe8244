//! `outbox:` in the file: planned, applied, run.

use serde_json::Value;

use crate::capture::File;
use crate::world::{ask, installed, run};

const TABLE: &str = "create table public.old_outbox (id bigserial primary key, event_id uuid not null unique, event_type text not null,
        entity_id uuid not null, payload jsonb not null, workspace_id uuid not null, initiator_type text not null,
        created_at timestamptz not null default now(), claimed_at timestamptz, processed_at timestamptz);
    create index on public.old_outbox (claimed_at, processed_at, id) where claimed_at is null and processed_at is null";

fn insert(rows: u32) -> String {
    format!(
        "insert into old_outbox (event_id, event_type, entity_id, payload, workspace_id, initiator_type)
         select gen_random_uuid(), 'workitem.updated', gen_random_uuid(), '{{\"data\": {{}}}}', gen_random_uuid(), 'USER' from generate_series(1, {rows})"
    )
}

/// From the first look to the last mark, in both modes.
#[tokio::test]
async fn a_table_is_adopted_and_its_rows_are_sent_and_marked() {
    for mode in ["trigger", "poll"] {
        let database = installed().await;
        run(&database, TABLE).await;
        run(&database, insert(3)).await;
        let written = std::env::temp_dir().join(format!("{}.ndjson", database.name()));
        let text = format!(
            "outbox:\n  public.old_outbox: {{ preset: plane, mode: {mode} }}\nsinks:\n  letters: {{ file: {{ path: {} }}, envelope: plane }}\nhttp: {{ listen: 'off' }}\n",
            written.display()
        );
        let file = File::new(&database, &text);
        let end = file.run(&database, &["plan"]).expect(2);
        assert!(end.stdout.contains("public.old_outbox  missing  3 rows are not sent"), "{}", end.stdout);
        let end = file.run(&database, &["apply"]).expect(78);
        assert!(end.stderr.contains("would never get the rows that wait"), "{}", end.stderr);
        run(&database, "update old_outbox set claimed_at = now()").await;
        drop(file);
        let file = File::new(&database, &text.replace("envelope: plane", "envelope: plane, start: earliest"));
        let end = file.run(&database, &["apply"]);
        if mode == "trigger" {
            assert!(end.expect(2).stderr.contains("3 rows were claimed by another poller"));
            run(&database, "update old_outbox set claimed_at = now() - interval '1 hour'").await;
            let end = file.run(&database, &["apply"]).expect(0);
            assert!(end.stderr.contains("public.old_outbox: was missing, is installed"), "{}", end.stderr);
        } else {
            end.expect(0);
            run(&database, "update old_outbox set claimed_at = now() - interval '1 hour'").await;
        }
        file.run(&database, &["plan"]).expect(0);
        run(&database, insert(2)).await;
        file.run(&database, &["run", "--once"]).expect(0);
        let letters = std::fs::read_to_string(&written).unwrap();
        let ids: Vec<String> = letters
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["event_id"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(ids.len(), 5, "{mode}: {letters}");
        for id in ids {
            let known = format!("select count(*) from old_outbox where event_id = '{id}'");
            assert_eq!(ask(&database, &known).await, "1");
        }
        assert_eq!(
            ask(
                &database,
                "select count(*) from old_outbox where processed_at is null or claimed_at is null"
            )
            .await,
            "0",
            "{mode}"
        );
        let end = file
            .run(&database, &["where", &ask(&database, "select min(event_id::text) from old_outbox").await]);
        assert!(end.expect(0).stdout.contains("workitem.updated"));
        std::fs::remove_file(&written).unwrap();
    }
}

#[tokio::test]
async fn a_mistake_is_shown_at_its_line() {
    let database = installed().await;
    run(&database, TABLE).await;
    for (text, said) in [
        ("public.old_outbox: { preset: outbox_events }", "there is no column"),
        ("public.old_outbox: { preset: plain }", "plain"),
        ("public.old_outbox: { mode: poll }", "preset"),
        ("public.old_outbox: { preset: none }", "name `columns.id`"),
        ("public.no_such_table: { preset: plane }", "there is no table public.no_such_table"),
        (
            "public.old_outbox: { preset: plane, columns: { key: nothing } }",
            "there is no column nothing for the key",
        ),
        ("public.old_outbox: { preset: plane, batch: 0 }", "take 1 to 100000"),
    ] {
        let file = File::new(&database, &format!("outbox:\n  {text}\n"));
        let end = file.run(&database, &["plan"]).expect(78);
        assert!(end.stderr.contains(said), "{said}: {}", end.stderr);
    }
}

/// A trigger that is off, and a row that cannot become an event.
#[tokio::test]
async fn status_doctor_and_the_relay_say_what_is_wrong_with_an_outbox_table() {
    let database = installed().await;
    run(&database, TABLE).await;
    let text = |mode: &str| {
        format!(
            "outbox:\n  public.old_outbox: {{ preset: plane, mode: {mode} }}\nsinks:\n  out: {{ 'null': {{}}, start: earliest }}\nhttp: {{ listen: 'off' }}\n"
        )
    };
    let file = File::new(&database, &text("trigger"));
    let capture = || file.run(&database, &["status", "--json"]).json()["capture"].clone();
    assert_eq!(capture()["alarms"][0]["state"], "missing");
    file.run(&database, &["apply"]).expect(0);
    assert_eq!(capture()["well"], true);
    run(&database, "alter table old_outbox disable trigger user").await;
    assert_eq!(capture()["alarms"][0]["table"], "public.old_outbox");
    assert_eq!(capture()["alarms"][0]["state"], "disabled");
    let doctor = || {
        let end = file.run(&database, &["doctor"]);
        end.stdout.lines().find(|line| line.contains("  capture  ")).unwrap().to_owned()
    };
    assert!(doctor().starts_with("bad   capture"), "{}", doctor());

    std::fs::write(std::env::temp_dir().join(format!("{}.yaml", database.name())), text("poll")).unwrap();
    file.run(&database, &["apply"]).expect(0);
    run(&database, insert(2)).await;
    run(
        &database,
        "alter table old_outbox alter event_type drop not null; update old_outbox set event_type = null where id = 1",
    )
    .await;
    let end = file.run(&database, &["run", "--once"]).expect(0);
    assert!(end.stderr.contains("rows of the outbox table cannot become events"), "{}", end.stderr);
    let misfits = &capture()["misfits"][0];
    assert_eq!(
        (&misfits["outbox"], &misfits["rows"], &misfits["reason"]),
        (&Value::from("public.old_outbox"), &Value::from(1), &Value::from("event_type is null"))
    );
    assert!(doctor().starts_with("bad   capture"), "{}", doctor());
    run(&database, "update old_outbox set event_type = 'mended' where id = 1").await;
    file.run(&database, &["run", "--once"]).expect(0);
    assert_eq!(capture()["well"], true);
    assert_eq!(ask(&database, "select count(*) from old_outbox where processed_at is null").await, "0");
}

/// Every sink of the file gets the rows that wait, or `apply` takes none of them: one that begins with what comes after it is born would miss them, and they
/// would be marked as sent all the same. Whoever owns the table may ask, too.
#[tokio::test]
async fn rows_that_wait_are_taken_only_for_sinks_that_get_them() {
    let database = installed().await;
    run(&database, TABLE).await;
    run(&database, insert(3)).await;
    let owner = format!("{}_owner", database.name());
    run(
        &database,
        format!(
            r#"create role "{owner}" login; alter table old_outbox owner to "{owner}"; grant create, usage on schema public to "{owner}";
               select postrider.allow_capture('{owner}')"#
        ),
    )
    .await;
    let text = |more: &str| {
        format!(
            "outbox:\n  public.old_outbox: {{ preset: plane }}\nsinks:\n  audit: {{ 'null': {{}}, start: earliest }}\n{more}http: {{ listen: 'off' }}\n"
        )
    };
    let applied = |more: &str| {
        let file = File::new(&database, &text(more));
        let mut command = file.command(&database, &["apply"]);
        crate::support::End::of(command.env("DATABASE_URL", database.url_as(&owner)))
    };
    let end = applied("log: { lease: 1s }\n").expect(78);
    assert!(end.stderr.contains("lease"), "a file that no relay starts with: {}", end.stderr);
    let end = applied("  bus: { 'null': {} }\n").expect(78);
    assert!(end.stderr.contains("the sink bus has not been started"), "{}", end.stderr);
    assert_eq!(ask(&database, "select count(*) from postrider.events").await, "0");
    // Once it has been there, it gets them.
    File::new(&database, "sinks:\n  bus: { 'null': {} }\nhttp: { listen: 'off' }\n")
        .run(&database, &["run", "--once"])
        .expect(0);
    applied("  bus: { 'null': {} }\n").expect(0);
    assert_eq!(ask(&database, "select count(*) from postrider.events").await, "3");
    run(&database, format!(r#"drop table old_outbox; drop owned by "{owner}"; drop role "{owner}""#)).await;
}
