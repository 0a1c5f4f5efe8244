//! `postrider doctor`.

use std::time::{Duration, Instant};

use postrider::log::{Mood, Report};
use postrider_testkit::{PostgresServer, Settings, Version};
use serde_json::{Value, json};

use crate::support::{End, empty_database, postrider, postrider_on};
use crate::world::{ask, create_sink, emit, installed, on, open_reader, park, run};

/// The results by the name of the check.
fn results(document: &Value) -> Vec<(&str, &str)> {
    let checks = document["checks"].as_array().unwrap().iter();
    checks.map(|check| (check["check"].as_str().unwrap(), check["result"].as_str().unwrap())).collect()
}

fn check<'d>(document: &'d Value, name: &str) -> &'d Value {
    let mut checks = document["checks"].as_array().unwrap().iter();
    checks.find(|check| check["check"] == name).unwrap_or_else(|| panic!("no {name} in {document}"))
}

#[tokio::test]
async fn a_healthy_database_has_nothing_bad_but_its_test_server() {
    let database = installed().await;
    let _reader = open_reader(&database, "web").await;
    let document = on(&database, &["doctor", "--json"]).expect(2).json();
    for (name, result) in results(&document) {
        // The servers of tests run without fsync, other tests leave transactions open, and a stalled machine looks like a clock that is off.
        if !["durability", "long transactions", "oldest snapshot", "connections", "clocks"].contains(&name) {
            assert_eq!(result, "ok", "{name}: {document}");
        }
    }
    assert_eq!(check(&document, "durability")["result"], "bad");
    assert_eq!(check(&document, "wraparound")["result"], "ok");
    let end = on(&database, &["doctor"]).expect(2);
    assert!(end.stdout.contains("→ set fsync = on"), "{}", end.stdout);
    assert!(end.stderr.contains(" ok, "), "{}", end.stderr);
}

#[tokio::test]
async fn without_a_schema_the_remedy_is_init() {
    let database = empty_database().await;
    let document = on(&database, &["doctor", "--json"]).expect(2).json();
    let schema = check(&document, "schema");
    assert_eq!(
        (&schema["result"], schema["remedy"].as_str().unwrap().contains("postrider init")),
        (&json!("bad"), true)
    );
}

#[tokio::test]
async fn what_is_wrong_with_the_log_is_named_with_its_remedy() {
    let database = installed().await;
    create_sink(&database, "web").await;
    create_sink(&database, "mail").await;
    emit(&database, "a", "1").await;
    park(&database, "web", "a", "1", "dead").await;
    run(
        &database,
        "alter table postrider.events_3 set unlogged;
         alter sequence postrider.seq cache 20;
         drop index postrider.events_xid_seq;
         update postrider.sinks set paused_at = now() where name = 'mail';
         update postrider.events set created_at = now() - interval '1 hour';
         revoke all on all functions in schema postrider from postrider_emit, postrider_consume",
    )
    .await;
    let document = on(&database, &["doctor", "--json"]).expect(2).json();
    for (name, result, detail, remedy) in [
        ("tables", "bad", "postrider.events_3", "alter table postrider.events_3 set logged;"),
        ("sequence", "bad", "cache 20", "alter sequence postrider.seq cache 1"),
        ("indexes", "bad", "postrider.events_0 (xid, seq)", "postrider sql | psql"),
        ("sinks", "bad", "web", "postrider run"),
        ("paused sinks", "warn", "mail", "postrider sinks resume"),
        ("dead events", "warn", "1 event at web", "postrider dead list"),
        ("waiting events", "warn", "web: for 1 h", "postrider status"),
        ("grants", "warn", "nobody may emit", "--emit-role"),
    ] {
        let found = check(&document, name);
        assert_eq!(found["result"], result, "{found}");
        assert!(found["detail"].as_str().unwrap().contains(detail), "{detail} in {found}");
        assert!(found["remedy"].as_str().unwrap().contains(remedy), "{remedy} in {found}");
    }
    run(&database, "delete from postrider.progress; select setval('postrider.seq', 1); insert into postrider.identity values (true, 42, 1)").await;
    let document = on(&database, &["doctor", "--json"]).expect(2).json();
    assert!(check(&document, "cursors")["detail"].as_str().unwrap().contains("mail"), "{document}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_sink_is_named_with_its_remedy() {
    let database = installed().await;
    let reader = open_reader(&database, "web").await;
    create_sink(&database, "old").await;
    park(&database, "web", "a", "1", "waiting").await;
    run(&database, "update postrider.sinks set taken_back = 50, taken_back_at = now() where name = 'web'")
        .await;
    run(&database, "update postrider.sinks set paused_at = '2026-03-01' where name = 'old'").await;
    let trouble = Some("the sink has no room left".to_owned());
    reader.report(Report { mood: Mood::Waiting, trouble, ..Report::default() });
    let begin = Instant::now();
    while ask(&database, "select count(*) from postrider.troubles").await == "0" {
        assert!(begin.elapsed() < Duration::from_mins(2), "the trouble is not stored");
    }
    let folder = std::env::temp_dir().join(database.name());
    std::fs::create_dir_all(folder.join("taken.ndjson")).unwrap();
    let (path, shown) = (folder.join("postrider.yaml"), folder.display());
    let file = |name: &str, path: &str| format!("  {name}:\n    file:\n      path: {shown}/{path}\n");
    let sinks = [
        file("web", "web.ndjson"),
        file("taken", "taken.ndjson"),
        file("lost", "nowhere/x"),
        file("notes", "notes.txt"),
    ]
    .concat();
    std::fs::write(folder.join("notes.txt"), "line1\nprecious").unwrap();
    std::fs::write(&path, format!("sinks:\n{sinks}")).unwrap();
    let document = on(&database, &["doctor", "--json", "--config", path.to_str().unwrap()]).expect(2).json();
    for (name, result, detail, remedy) in [
        ("relays", "bad", "web: waiting at relay 1 since ", "goes on by itself"),
        ("relays", "bad", "the sink has no room left", "goes on by itself"),
        ("parked events", "warn", "web: 1 tried again", "postrider dead list --parked"),
        ("taken back", "warn", "50 events of web", "log.standbys"),
        ("orphaned sinks", "warn", "old", "postrider sinks forget"),
        ("paused sinks", "warn", "old since 2026-03-01", "postrider sinks resume"),
        ("new sinks", "warn", "lost; notes; taken", "start or reload a relay"),
        ("files of sinks", "bad", "taken.ndjson is no regular file", "name another path"),
        ("files of sinks", "bad", "notes.txt ends with something that is no event", "name another path"),
        ("files of sinks", "bad", "nowhere/x cannot be written", "create its folder"),
    ] {
        let checks = document["checks"].as_array().unwrap();
        let is_meant = |check: &&Value| {
            check["check"] == name
                && check["result"] == result
                && check["detail"].as_str().unwrap().contains(detail)
                && check["remedy"].as_str().is_some_and(|found| found.contains(remedy))
        };
        assert!(checks.iter().any(|check| is_meant(&check)), "no {name} with {detail:?} in {document}");
    }
    run(&database, "update postrider.sinks set taken_back_at = now() - interval '8 days'").await;
    let later = on(&database, &["doctor", "--json"]).expect(2).json();
    assert!(!later.to_string().contains("taken back"), "it is not shown for ever: {later}");
    let text = document.to_string();
    assert!(text.contains("web.ndjson can be written; its disk has "), "{text}");
    assert!(!folder.join("web.ndjson").exists(), "looking changes nothing");
    let words = ["config", "check", "--depth", "environment", "--config", path.to_str().unwrap()];
    let end = on(&database, &words).expect(78);
    assert!(end.stderr.contains("notes.txt ends with something that is no event"), "{}", end.stderr);
    std::fs::remove_dir_all(folder).unwrap();
}

/// What the command line says of the database counts for the file too; and a file that is not understood is not passed over.
#[tokio::test]
async fn the_sinks_of_a_file_without_a_database_are_looked_at() {
    let database = installed().await;
    let folder = std::env::temp_dir().join(database.name());
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("postrider.yaml");
    let config = path.to_str().unwrap();
    let url = database.url();
    let words = ["doctor", "--json", "--config", config, "--database", &url];
    std::fs::write(&path, "sinks: { lost: { file: { path: /nowhere/x } } }\n").unwrap();
    let document = End::of(&mut postrider(&words)).expect(2).json();
    assert_eq!(check(&document, "files of sinks")["result"], "bad", "{document}");
    std::fs::write(&path, "sinks: { lost: { file: { path: '${NOWHERE}' } } }\n").unwrap();
    let document = End::of(&mut postrider(&words)).expect(2).json();
    assert_eq!(check(&document, "configuration")["result"], "warn", "{document}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn another_cluster_needs_a_rebase() {
    let database = installed().await;
    run(&database, "insert into postrider.identity values (true, 42, 1)").await;
    let document = on(&database, &["doctor", "--json"]).expect(2).json();
    let identity = check(&document, "identity");
    assert_eq!(identity["result"], "bad");
    assert!(identity["remedy"].as_str().unwrap().contains("postrider rebase"), "{identity}");
}

#[tokio::test]
async fn looking_changes_nothing() {
    let database = installed().await;
    on(&database, &["doctor"]).expect(2);
    let mut connection = database.connect().await.unwrap();
    let known: i64 = sqlx::query_scalar("select count(*) from postrider.identity")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(known, 0);
}

#[tokio::test]
async fn open_and_prepared_transactions_are_named() {
    let server =
        PostgresServer::private(Version::default(), Settings::with_prepared_transactions()).await.unwrap();
    let url = server.url("postgres");
    End::of(&mut postrider_on(&url, &["init"])).expect(0);
    let document = End::of(&mut postrider_on(&url, &["doctor", "--json"])).expect(2).json();
    let wake = check(&document, "wake-up");
    assert_eq!(
        (&wake["result"], wake["detail"].as_str().unwrap().contains("100 ms")),
        (&json!("warn"), true)
    );
    for name in ["long transactions", "prepared transactions"] {
        assert_eq!(check(&document, name)["result"], "ok", "nothing is old yet");
    }
}

/// A database of which nothing was seen is not well, and whoever looked is told what it takes.
#[tokio::test]
async fn a_role_that_may_not_look_is_told_what_it_missed() {
    let database = installed().await;
    let role = format!("{}_nobody", database.name());
    run(&database, format!("create role {role} login")).await;
    let examine =
        || End::of(&mut postrider_on(&database.url_as(&role), &["doctor", "--json"])).expect(2).json();
    let document = examine();
    let schema = check(&document, "schema");
    assert_eq!(schema["result"], "bad");
    let (detail, remedy) = (schema["detail"].as_str().unwrap(), schema["remedy"].as_str().unwrap());
    assert!(detail.contains(&role) && detail.contains("USAGE on the schema postrider"), "{detail}");
    // The role that only looks, whatever it is called.
    assert!(remedy.contains(&format!("`grant postrider_reader to {role};`")), "{remedy}");
    run(&database, format!("grant usage on schema postrider to {role}")).await;
    let document = examine();
    let schema = check(&document, "schema");
    assert!(schema["detail"].as_str().unwrap().contains("EXECUTE on the function"), "{schema}");
    run(&database, format!("grant postrider_reader to {role}")).await;
    assert_eq!(check(&examine(), "schema")["result"], "ok");
    run(&database, format!("drop owned by {role}; drop role {role}")).await;
}

/// Sessions of others are there, without what they do: to see nothing is not to see that there is nothing.
#[tokio::test]
async fn a_relay_that_may_not_see_sessions_does_not_call_them_fine() {
    let database = installed().await;
    let role = format!("{}_carrier", database.name());
    run(&database, format!("create role {role} login in role postrider_relay")).await;
    let others = [database.connect().await.unwrap(), database.connect().await.unwrap()];
    let seen = || End::of(&mut postrider_on(&database.url_as(&role), &["doctor", "--json"])).expect(2).json();
    let blind = seen();
    for name in ["long transactions", "oldest snapshot"] {
        let found = check(&blind, name);
        assert_eq!(found["result"], "warn", "{found}");
        assert!(found["detail"].as_str().unwrap().contains("may not see"), "{found}");
        let remedy = found["remedy"].as_str().unwrap();
        assert!(remedy.contains(&format!("grant pg_read_all_stats to {role};")), "{found}");
    }
    let connections = check(&blind, "connections")["detail"].as_str().unwrap().to_owned();
    let counted: usize =
        connections.trim_start_matches("at most ").split(' ').next().unwrap().parse().unwrap();
    assert!(counted > others.len(), "those of others are counted: {connections}");
    run(&database, format!("grant pg_read_all_stats to {role}")).await;
    let all = seen();
    for name in ["long transactions", "oldest snapshot", "connections"] {
        let detail = check(&all, name)["detail"].as_str().unwrap();
        assert!(!detail.contains("may not see") && !detail.contains("at most"), "{name}: {detail}");
    }
    drop(others);
    run(&database, format!("drop role {role}")).await;
}
