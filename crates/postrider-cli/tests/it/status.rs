//! `postrider status`.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{End, postrider, postrider_on};
use crate::world::{ask, create_sink, deliver, emit, installed, on, open_reader, park, run};

#[tokio::test]
async fn without_sinks_all_is_well() {
    let database = installed().await;
    let end = on(&database, &["status"]).expect(0);
    assert!(end.stdout.starts_with("no sinks") && end.stdout.contains("ring: "), "{}", end.stdout);
    assert_eq!(on(&database, &["status", "--json"]).expect(0).json()["sinks"], json!([]));
}

#[tokio::test]
async fn says_who_carries_what_and_what_waits() {
    let database = installed().await;
    for key in 0..20 {
        emit(&database, "order.paid", &key.to_string()).await;
    }
    deliver(&database, "web", 20).await;
    let document = on(&database, &["status", "--json"]).expect(2).json();
    let sink = &document["sinks"][0];
    assert_eq!((&sink["state"], &sink["trouble"]), (&json!("no relay"), &json!(true)));
    assert_eq!(sink["backlog"], json!({"events": 0, "is_exact": true}));

    let reader = open_reader(&database, "web").await;
    emit(&database, "order.paid", "7").await;
    let document = on(&database, &["status", "--json"]).expect(0).json();
    let sink = &document["sinks"][0];
    assert_eq!(
        (&document["well"], &sink["state"], &sink["readers"]),
        (&json!(true), &json!("running"), &json!(["relay 1"]))
    );
    assert_eq!(sink["backlog"], json!({"events": 1, "is_exact": true}));
    assert!(sink["oldest_seconds"].as_f64().is_some_and(|age| age < 60.0), "{sink}");
    let end = on(&database, &["status", "--lanes"]).expect(0);
    assert!(end.stdout.contains("relay 1 (lanes 0–15)") && end.stdout.contains("HELD BY"), "{}", end.stdout);

    create_sink(&database, "mail").await;
    park(&database, "mail", "a", "1", "dead").await;
    park(&database, "mail", "a", "1", "behind").await;
    run(&database, "update postrider.sinks set paused_at = now() where name = 'mail'").await;
    let end = on(&database, &["status", "--json"]).expect(2);
    let mail = &end.json()["sinks"][0];
    assert_eq!((&mail["sink"], &mail["state"]), (&json!("mail"), &json!("paused")));
    assert_eq!(mail["parked"], json!({"waiting": 0, "behind": 1, "dead": 1}));
    assert_eq!(mail["backlog"]["events"], json!(21));
    let end = on(&database, &["status"]).expect(2);
    assert!(
        end.stdout.contains("mail: 1 event dead: see `postrider dead list --sink mail`"),
        "{}",
        end.stdout
    );
    assert!(end.stdout.contains("OWED TO") && end.stdout.contains("is written"), "{}", end.stdout);
    reader.close().await.unwrap();
}

#[tokio::test]
async fn a_backlog_beyond_ten_thousand_a_lane_is_at_least_so_much() {
    let database = installed().await;
    create_sink(&database, "web").await;
    run(
        &database,
        "select count(postrider.emit('e', '{}'::json, key => 'same')) from generate_series(1, 10001)",
    )
    .await;
    let end = on(&database, &["status"]).expect(2);
    assert!(end.stdout.contains("10,000 at least"), "{}", end.stdout);
}

#[tokio::test]
async fn a_sink_that_is_not_in_the_file_is_orphaned() {
    let database = installed().await;
    create_sink(&database, "web").await;
    create_sink(&database, "old").await;
    let path = std::env::temp_dir().join(format!("{}.yaml", database.name()));
    std::fs::write(&path, "sinks:\n  web:\n    null: {}\n").unwrap();
    let document = on(&database, &["status", "--json", "--config", path.to_str().unwrap()]).expect(2).json();
    let states: Vec<&Value> =
        document["sinks"].as_array().unwrap().iter().map(|sink| &sink["state"]).collect();
    assert_eq!(states, ["orphaned", "no relay"]);
    std::fs::remove_file(path).unwrap();
}

/// Relays of one database may have a file each: whoever looks with one of them is not told to forget the sinks of the other.
#[tokio::test]
async fn a_sink_that_another_relay_carries_is_not_orphaned() {
    let database = installed().await;
    let _reader = open_reader(&database, "web").await;
    let path = std::env::temp_dir().join(format!("{}.yaml", database.name()));
    let file = path.to_str().unwrap();
    std::fs::write(&path, "sinks:\n  mail:\n    null: {}\n").unwrap();
    let said = "is not in this configuration; relay 1 carries it";
    let document = on(&database, &["status", "--json", "--config", file]).expect(0).json();
    let web = &document["sinks"][0];
    assert_eq!((&web["state"], &web["note"]), (&json!("running"), &json!(said)));
    let end = on(&database, &["status", "--config", file]).expect(0);
    assert!(end.stdout.contains(&format!("\nweb: {said}\n")), "{}", end.stdout);
    let document = on(&database, &["doctor", "--json", "--config", file]).expect(2).json();
    let checks = document["checks"].as_array().unwrap();
    assert!(!checks.iter().any(|check| check["check"] == "orphaned sinks"), "{document}");
    let other = checks.iter().find(|check| check["check"] == "other sinks").unwrap();
    assert_eq!(
        (&other["result"], &other["detail"]),
        (&json!("ok"), &json!("not in this configuration, and carried: web by relay 1"))
    );
    std::fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn a_log_above_its_size_names_the_sink_that_holds_it() {
    let database = installed().await;
    create_sink(&database, "web").await;
    run(
        &database,
        "select count(postrider.emit('e', json_build_object('x', repeat('y', 900)), key => n::text)) from generate_series(1, 1000) n;
         select setval('postrider.slot', 1)",
    )
    .await;
    let path = std::env::temp_dir().join(format!("{}.yaml", database.name()));
    let file = path.to_str().unwrap();
    std::fs::write(&path, "log: { max_log_size: 1MB }\nsinks:\n  web:\n    null: {}\n").unwrap();
    let sink = on(&database, &["status", "--json", "--config", file]).expect(2).json()["sinks"][0].clone();
    assert_eq!(sink["state"], "holding the ring");
    let said = sink["troubles"][1].as_str().unwrap();
    assert!(said.starts_with("holds the log, which has 1.") && said.contains("no more than 1MB"), "{said}");
    let checks = on(&database, &["doctor", "--json", "--config", file]).expect(2).json()["checks"].clone();
    let ring = checks.as_array().unwrap().iter().find(|check| check["check"] == "ring").unwrap();
    let said = ring["detail"].as_str().unwrap();
    assert!(
        said.contains("log.max_log_size is 1MB") && said.ends_with("have not settled closed slots: web"),
        "{ring}"
    );
    // Without a limit there is nothing to say.
    std::fs::write(&path, "sinks:\n  web:\n    null: {}\n").unwrap();
    let sink = on(&database, &["status", "--json", "--config", file]).expect(2).json()["sinks"][0].clone();
    assert_eq!(sink["state"], "no relay");
    std::fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn any_role_that_may_see_the_views_will_do() {
    let database = installed().await;
    create_sink(&database, "web").await;
    emit(&database, "a", "1").await;
    let role = format!("{}_looks", database.name());
    run(&database, format!("create role {role} login in role postrider_reader")).await;
    let url = database.url_as(&role);
    let document = End::of(&mut postrider_on(&url, &["status", "--json"])).expect(2).json();
    assert_eq!(document["sinks"][0]["backlog"]["events"], json!(1));
    assert_eq!(document["ring"][0]["held_by"], json!(["web"]));
    End::of(&mut postrider_on(&url, &["sinks", "list"])).expect(0);
    End::of(&mut postrider_on(&url, &["sinks", "pause", "web"])).expect(1);
    run(&database, format!("drop role {role}")).await;
}

#[test]
fn watching_does_not_spin() {
    for every in ["0s", "99ms"] {
        let end = End::of(&mut postrider(&["status", &format!("--watch={every}")])).expect(64);
        assert!(end.stderr.contains("100ms at least"), "{}", end.stderr);
    }
}

#[tokio::test]
async fn watching_looks_again() {
    let database = installed().await;
    create_sink(&database, "web").await;
    let mut child = postrider_on(&database.url(), &["status", "--json", "--watch=100ms"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut events = || -> Value {
        let document: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        document["sinks"][0]["backlog"]["events"].clone()
    };
    assert_eq!(events(), json!(0));
    emit(&database, "a", "1").await;
    while events() != json!(1) {}
    let ended = "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and application_name = 'postrider'";
    assert_eq!(ask(&database, ended).await, "1");
    emit(&database, "b", "1").await;
    while events() != json!(2) {}
    child.kill().unwrap();
    let said = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
    let said: Vec<&str> = said.lines().collect();
    assert!(
        said.len() == 2
            && said[0].starts_with("note: the connection is lost")
            && said[1] == "note: connected again",
        "{said:?}"
    );
}
