//! `postrider sinks`.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{End, postrider_on};
use crate::world::{Running, ask, create_sink, emit, installed, on, open_reader, park, run};

#[tokio::test]
async fn lists_pauses_and_resumes() {
    let database = installed().await;
    assert!(on(&database, &["sinks", "list"]).expect(0).stderr.starts_with("none"));
    create_sink(&database, "web").await;
    let paused = "select paused_at is not null from postrider.sinks";
    let document = on(&database, &["sinks", "pause", "web", "--json"]).expect(0).json();
    assert_eq!(document["changed"], json!(true));
    assert_eq!(ask(&database, paused).await, "true");
    let since = ask(&database, "select paused_at from postrider.sinks").await;
    let end = on(&database, &["sinks", "pause", "web"]).expect(0);
    assert!(end.stderr.contains("paused already"), "{}", end.stderr);
    assert_eq!(ask(&database, "select paused_at from postrider.sinks").await, since);
    let document = on(&database, &["sinks", "list", "--json"]).expect(0).json();
    assert_eq!(document["sinks"][0]["state"], "paused");
    assert!(on(&database, &["sinks", "list"]).expect(0).stdout.contains("paused"));
    on(&database, &["sinks", "resume", "web"]).expect(0);
    assert_eq!(ask(&database, paused).await, "false");
    let document = on(&database, &["sinks", "resume", "web", "--json"]).expect(0).json();
    assert_eq!(document, json!({"sink": "web", "paused_at": null, "changed": false}));
    let end = on(&database, &["sinks", "pause", "wbe"]).expect(1);
    assert!(end.stderr.contains("no sink \"wbe\"; there are web"), "{}", end.stderr);
}

#[tokio::test]
async fn forgetting_says_what_is_lost_and_does_it_only_when_told() {
    let database = installed().await;
    create_sink(&database, "web").await;
    emit(&database, "a", "1").await;
    emit(&database, "a", "2").await;
    park(&database, "web", "a", "3", "dead").await;
    let end = on(&database, &["sinks", "forget", "web"]).expect(2);
    assert!(
        end.stderr.starts_with("web: 2 events not delivered, 0 parked and 1 dead would be given up\n"),
        "{}",
        end.stderr
    );
    assert!(end.stderr.contains("sinks forget web --yes"), "{}", end.stderr);
    assert_eq!(ask(&database, "select count(*) from postrider.sinks").await, "1");
    // Somebody who may only look is not told that anything is gone.
    let role = format!("{}_reader", database.name());
    run(&database, format!("create role {role} login in role postrider_reader")).await;
    let words = ["sinks", "forget", "web", "--yes"];
    let end = End::of(&mut postrider_on(&database.url_as(&role), &words)).expect(1);
    assert!(!end.stderr.contains("given up") && end.stderr.contains("postrider_relay"), "{}", end.stderr);
    assert_eq!(ask(&database, "select count(*) from postrider.sinks").await, "1");
    run(&database, format!("drop role {role}")).await;
    let document = on(&database, &["sinks", "forget", "web", "--yes", "--json"]).expect(0).json();
    assert_eq!((&document["done"], &document["undelivered"]["events"]), (&json!(true), &json!(2)));
    for table in ["sinks", "leases", "progress", "parked"] {
        assert_eq!(ask(&database, &format!("select count(*) from postrider.{table}")).await, "0", "{table}");
    }
    on(&database, &["sinks", "forget", "web", "--yes"]).expect(1);
}

#[tokio::test]
async fn a_sink_that_is_read_is_forgotten_only_when_overruled() {
    let database = installed().await;
    let _reader = open_reader(&database, "web").await;
    let end = on(&database, &["sinks", "forget", "web"]).expect(2);
    assert!(end.stderr.contains("relay 1 reads it"), "{}", end.stderr);
    let end = on(&database, &["sinks", "forget", "web", "--yes"]).expect(1);
    assert!(end.stderr.contains("relay 1") && end.stderr.contains("--overrule-readers"), "{}", end.stderr);
    assert_eq!(ask(&database, "select count(*) from postrider.sinks").await, "1");
    on(&database, &["sinks", "forget", "web", "--overrule-readers"]).expect(64);
    on(&database, &["sinks", "forget", "web", "--yes", "--overrule-readers"]).expect(0);
    assert_eq!(ask(&database, "select count(*) from postrider.sinks").await, "0");
}

/// When the command is back, the relay has noticed, and nothing is on its way.
#[tokio::test]
async fn what_is_emitted_after_a_pause_is_not_delivered() {
    let database = installed().await;
    let file = std::env::temp_dir().join(format!("{}.ndjson", database.name()));
    let place = format!("file:{}", file.display());
    let words = ["run", "--listen", "off", "--to", &place, "--start", "earliest"];
    let _relay = Running::start(&database, &words);
    let lines = || std::fs::read_to_string(&file).unwrap_or_default().lines().count();
    let until_lines = async |wanted: usize| {
        let begun = Instant::now();
        while lines() < wanted {
            assert!(begun.elapsed() < Duration::from_mins(2), "{} of {wanted} lines", lines());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    for round in 1..=2 {
        emit(&database, "before", "k").await;
        until_lines(2 * round - 1).await;
        let end = on(&database, &["sinks", "pause", "file"]).expect(0);
        assert!(end.stderr.contains("file is paused: nothing arrives"), "{}", end.stderr);
        emit(&database, "after", "k").await;
        // It lives on, and leaves the event alone.
        let beat = "select extract(epoch from heard_at) from postrider.readers";
        let (begun, before) = (Instant::now(), ask(&database, beat).await);
        while ask(&database, beat).await == before {
            assert!(begun.elapsed() < Duration::from_mins(2), "no heartbeat");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(lines(), 2 * round - 1, "delivered although it was paused");
        on(&database, &["sinks", "resume", "file"]).expect(0);
        until_lines(2 * round).await;
    }
    let _ = std::fs::remove_file(file);
}

/// A relay that does not answer is named, and the pause stands.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_that_a_relay_does_not_confirm_says_so() {
    let database = installed().await;
    let _reader = open_reader(&database, "web").await;
    let end = on(&database, &["sinks", "pause", "web", "--wait", "1s", "--json"]).expect(2);
    assert!(end.stderr.contains("relay 1 did not say within 1 s"), "{}", end.stderr);
    assert_eq!(end.json()["unconfirmed"], json!(["relay 1"]));
    assert_eq!(ask(&database, "select paused_at is not null from postrider.sinks").await, "true");
}
