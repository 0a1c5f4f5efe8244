//! `postrider where`.

use std::process::Stdio;
use std::time::{Duration, Instant};

use postrider::log::{Mood, Report, Start, sink};
use postrider_testkit::Database;
use serde_json::{Value, json};

use crate::support::{End, postrider_on};
use crate::world::{Running, ask, create_sink, deliver, emit, installed, on, open_reader, park, run};

fn state<'d>(document: &'d Value, sink: &str) -> &'d Value {
    document["sinks"].as_array().unwrap().iter().find(|found| found["sink"] == sink).unwrap()
}

#[tokio::test]
async fn says_what_became_of_an_event_at_each_sink() {
    let database = installed().await;
    create_sink(&database, "late").await;
    emit(&database, "before", "k").await;
    let id = emit(&database, "order.paid", "k").await;
    deliver(&database, "web", 2).await;
    sink::open(&mut database.connect().await.unwrap(), "new", Start::Now).await.unwrap();
    let document = on(&database, &["where", &id, "--json"]).expect(0).json();
    assert_eq!(
        (&document["found"], &document["type"], &document["slot"]),
        (&json!("log"), &json!("order.paid"), &json!(0))
    );
    let web = state(&document, "web");
    assert_eq!(web["state"], "passed", "only who knows its filter can tell whether it was delivered");
    assert!(web["settled_at"].is_string(), "{web}");
    let waiting = state(&document, "late");
    assert_eq!((&waiting["state"], &waiting["before"]), (&json!("waiting"), &json!(1)));
    assert_eq!(state(&document, "new")["state"], "skipped");
    let end = on(&database, &["where", &id.to_uppercase()]).expect(0);
    assert!(
        end.stdout.contains("waits, behind 1 event in its lane; no relay carries this lane"),
        "{}",
        end.stdout
    );
    assert!(
        end.stdout.contains("Z, or left out by its filter if it has one")
            && end.stdout.contains("the sink began behind this event"),
        "{}",
        end.stdout
    );
}

#[tokio::test]
async fn a_late_event_waits_although_the_cursor_has_passed_it() {
    let database = installed().await;
    let mut slow = database.connect().await.unwrap();
    let id: String = {
        sqlx::raw_sql("begin").execute(&mut slow).await.unwrap();
        sqlx::query_scalar("select postrider.emit('slow', '1', key => 'k')::text")
            .fetch_one(&mut slow)
            .await
            .unwrap()
    };
    emit(&database, "fast", "k").await;
    deliver(&database, "web", 1).await;
    let end = on(&database, &["where", &id]).expect(1);
    assert!(end.stderr.contains("never committed"), "{}", end.stderr);
    sqlx::raw_sql("commit").execute(&mut slow).await.unwrap();
    let document = on(&database, &["where", &id, "--json"]).expect(0).json();
    assert_eq!(
        (&document["sinks"][0]["state"], &document["sinks"][0]["before"]),
        (&json!("waiting"), &json!(0))
    );
    deliver(&database, "web", 1).await;
    let document = on(&database, &["where", &id, "--json"]).expect(0).json();
    assert_eq!(document["sinks"][0]["state"], "passed");
}

#[tokio::test]
async fn with_the_configuration_at_hand_what_the_filter_left_out_was_not_delivered() {
    let database = installed().await;
    let path = std::env::temp_dir().join(format!("{}.yaml", database.name()));
    let config = path.to_str().unwrap();
    let sinks = "sinks:
  some:
    null: {}
    start: earliest
    filter: .type == \"order.paid\"
  all:
    null: {}
    start: earliest
  broken:
    null: {}
    start: earliest
    filter: .payload.n > 0 or error(\"no\")
";
    std::fs::write(&path, sinks).unwrap();
    let paid = emit(&database, "order.paid", "a").await;
    let made = emit(&database, "order.made", "b").await;
    on(&database, &["run", "--once", "--config", config]).expect(0);
    let states = |id: &str, words: &[&str]| -> Vec<String> {
        let document = on(&database, &[&["where", id, "--json"], words].concat()).expect(0).json();
        ["some", "all", "broken"]
            .map(|sink| state(&document, sink)["state"].as_str().unwrap().to_owned())
            .into()
    };
    assert_eq!(states(&paid, &["--config", config]), ["delivered", "delivered", "delivered"]);
    assert_eq!(states(&made, &["--config", config]), ["filtered", "delivered", "delivered"]);
    assert_eq!(states(&made, &[]), ["passed", "passed", "passed"]);
    let end = on(&database, &["where", &made, "--config", config]).expect(0);
    assert!(end.stdout.contains("Z, by its filter as it is configured now"), "{}", end.stdout);
    // Another filter than the one that it met.
    std::fs::write(&path, sinks.replace(".payload.n > 0", ".payload.n > 1")).unwrap();
    assert_eq!(states(&made, &["--config", config]), ["filtered", "delivered", "passed"]);
    std::fs::remove_file(path).unwrap();
}

/// Who may look may ask for an event, and gets everything but what is in it.
#[tokio::test]
async fn any_role_that_may_see_the_views_will_do() {
    let database = installed().await;
    let id = emit(&database, "order.paid", "k").await;
    deliver(&database, "web", 1).await;
    let dead = park(&database, "web", "order.made", "k", "dead").await;
    let role = format!("{}_looks", database.name());
    run(&database, format!("create role {role} login in role postrider_reader")).await;
    let path = std::env::temp_dir().join(format!("{}.yaml", database.name()));
    std::fs::write(&path, "sinks:\n  web:\n    null: {}\n    filter: .payload.n == 1\n").unwrap();
    let ask = |url: &str, words: &[&str]| {
        let words = [&["where", "--json", "--config", path.to_str().unwrap()], words].concat();
        End::of(&mut postrider_on(url, &words)).expect(0).json()
    };
    let (mine, theirs) = (database.url(), database.url_as(&role));
    let document = ask(&theirs, &[&id]);
    assert_eq!((&document["type"], &document["key"]), (&json!("order.paid"), &json!("k")));
    assert_eq!(state(&document, "web")["state"], "passed", "what the filter would say of its content");
    assert_eq!(state(&ask(&mine, &[&id]), "web")["state"], "delivered");
    let document = ask(&theirs, &[&dead]);
    assert_eq!(document["parked"][0]["reason"], "It is Far too large");
    assert!(!document.to_string().contains("1.50"), "its payload: {document}");
    End::of(&mut postrider_on(&theirs, &["where", "01980000-0000-7000-8000-000000000000"])).expect(1);
    std::fs::remove_file(path).unwrap();
    run(&database, format!("drop role {role}")).await;
}

/// Asks until the only sink has the event in this state.
async fn until(database: &Database, id: &str, wanted: &str) -> Value {
    let begin = Instant::now();
    loop {
        let sink = on(database, &["where", id, "--json"]).expect(0).json()["sinks"][0].clone();
        if sink["state"] == wanted {
            return sink;
        }
        assert!(begin.elapsed() < Duration::from_mins(2), "never {wanted}: {sink}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// As [`until`], and in these words: a relay that a busy machine holds up for longer than its lease counts as gone for a moment.
async fn until_said(database: &Database, id: &str, wanted: &str, words: &str) {
    let begin = Instant::now();
    loop {
        let sink = until(database, id, wanted).await;
        if sink["text"].as_str().unwrap().contains(words) {
            return;
        }
        assert!(begin.elapsed() < Duration::from_mins(2), "never {words:?}: {sink}");
    }
}

#[tokio::test]
async fn what_a_living_relay_has_sent_is_in_flight_at_it() {
    let database = installed().await;
    // More than a pipe holds, and nobody reads it.
    let large = "select postrider.emit('large', json_build_object('text', repeat('x', 1000000)), key => 'k')";
    let id = ask(&database, large).await;
    let next = emit(&database, "next", "k").await;
    let path = std::env::temp_dir().join(format!("{}.yaml", database.name()));
    std::fs::write(&path, "log: { lease: 1s, idle: { max: 1s } }\nsinks:\n  out:\n    stdout: {}\n    start: earliest\n    max_in_flight: 1\n")
        .unwrap();
    let words = ["run", "--listen", "off", "--config", path.to_str().unwrap()];
    let mut relay =
        postrider_on(&database.url(), &words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let sink = until(&database, &id, "in flight").await;
    assert!(sink["text"].as_str().unwrap().starts_with("in flight at relay "), "{sink}");
    assert!(sink["in_flight_since"].is_string() && sink["as_of"].is_string(), "{sink}");
    until_said(&database, &next, "waiting", "carried by relay ").await;

    relay.kill().unwrap();
    relay.wait().unwrap();
    let sink = until(&database, &id, "waiting").await;
    assert!(sink["text"].as_str().unwrap().ends_with("no relay carries this lane"), "{sink}");
    std::fs::remove_file(path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_holder_of_its_lane_says_is_believed() {
    let database = installed().await;
    let id = emit(&database, "order.paid", "k").await;
    let seq = ask(&database, "select seq from postrider.events").await.parse().unwrap();
    let reader = open_reader(&database, "web").await;
    let trouble = |trouble: &str, unsettled| Report {
        mood: Mood::Disconnected,
        trouble: Some(trouble.to_owned()),
        unsettled,
        ..Report::default()
    };
    reader.report(trouble("the disk is full", vec![seq]));
    let sink = until(&database, &id, "in flight").await;
    let text = sink["text"].as_str().unwrap();
    assert!(text.contains("in flight at relay 1: the sink has answered, which is not stored yet"), "{text}");
    reader.report(Report::default());
    until(&database, &id, "waiting").await;
    reader.report(trouble("the disk is full again", Vec::new()));
    let begin = Instant::now();
    while !until(&database, &id, "waiting").await["trouble"].is_string() {
        assert!(begin.elapsed() < Duration::from_mins(2), "nothing is said of the trouble");
    }
    let end = on(&database, &["where", &id]).expect(0);
    assert!(end.stdout.contains(": the disk is full again"), "{}", end.stdout);

    let parked = park(&database, "web", "order.paid", "k", "waiting").await;
    run(&database, format!("update postrider.parked set id = '{id}' where id = '{parked}'")).await;
    assert!(on(&database, &["where", &id]).expect(0).stdout.contains("; tried again at soon"));
    run(&database, format!("update postrider.in_flight set sending = '{{{seq}}}'")).await;
    assert!(on(&database, &["where", &id]).expect(0).stdout.contains("; tried again right now"));
    // Not a word of somebody who holds other lanes.
    run(&database, "delete from postrider.parked; update postrider.leases set owner = gen_random_uuid()")
        .await;
    until(&database, &id, "waiting").await;
}

#[tokio::test]
async fn parked_dead_and_gone_events_are_found() {
    let database = installed().await;
    let id = emit(&database, "order.paid", "k").await;
    deliver(&database, "web", 1).await;
    let head = park(&database, "web", "order.paid", "k", "dead").await;
    run(&database, format!("update postrider.parked set id = '{id}' where id = '{head}'")).await;
    let behind = park(&database, "web", "order.made", "k", "behind").await;
    let end = on(&database, &["where", &id]).expect(0);
    assert!(end.stdout.contains("dead after 10 attempts (too_large: It is Far too large)"), "{}", end.stdout);
    run(&database, "update postrider.parked set next_attempt_at = now() - interval '1 hour'").await;
    for (id, sinks) in [(&id, "/sinks/0/parked/0"), (&behind, "/parked/0")] {
        let document = on(&database, &["where", id, "--json"]).expect(0).json();
        let parked = document.pointer(sinks).unwrap();
        assert!(parked["next_attempt_at"].is_null(), "nobody tries it: {parked}");
    }
    // Only parked: its slot was emptied.
    let end = on(&database, &["where", &behind]).expect(0);
    assert!(
        end.stdout.contains("its slot was emptied") && end.stdout.contains(&format!("waits for event {id}")),
        "{}",
        end.stdout
    );

    let gone = emit(&database, "gone", "x").await;
    run(&database, format!("delete from postrider.events where id = '{gone}'; update postrider.events set created_at = now() + interval '1 minute'; update postrider.ring set closed_at = now() where slot = 7")).await;
    let document = on(&database, &["where", &gone, "--json"]).expect(0).json();
    assert_eq!(document["found"], "gone");
    let end = on(&database, &["where", "0199ffff-0000-7000-8000-000000000000", "--json"]).expect(0);
    assert_eq!(end.json()["found"], "gone", "older than everything in the log");
    on(&database, &["where", "ffffffff-0000-7000-8000-000000000000"]).expect(1);
    // Nothing is left: what it had is gone, and not mistyped.
    run(&database, "delete from postrider.events").await;
    assert_eq!(on(&database, &["where", &gone, "--json"]).expect(0).json()["found"], "gone");
    on(&database, &["where", "ffffffff-0000-7000-8000-000000000000"]).expect(1);
}

/// A discarded event was not delivered, and one that was tried again was delivered then.
#[tokio::test]
async fn what_was_parked_is_told_by_its_end() {
    let database = installed().await;
    let path = std::env::temp_dir().join(format!("{}.yaml", database.name()));
    let config = path.to_str().unwrap();
    let broken = "sinks:
  web:
    null: {}
    start: earliest
    transform: error(\"no\" + .type)
    retry: { max_attempts: 1 }
";
    std::fs::write(&path, broken).unwrap();
    let ids = [emit(&database, "order.paid", "a").await, emit(&database, "order.made", "b").await];
    let once = ["run", "--once", "--config", config];
    let end = on(&database, &once).expect(0);
    assert!(
        end.stderr.contains("an event was refused") && end.stderr.contains("it is dead"),
        "{}",
        end.stderr
    );
    // Both are named, or the number of the others.
    let named = end.stderr.matches("an event was refused").count();
    let is_counted = end.stderr.contains("more events were refused than are named here");
    assert!(named == 2 || is_counted, "{}", end.stderr);
    assert!(!end.stderr.contains("noorder"), "a reason may quote the event: {}", end.stderr);
    let at = |id: &str| {
        state(&on(&database, &["where", id, "--json", "--config", config]).expect(0).json(), "web").clone()
    };
    assert_eq!(ids.each_ref().map(|id| at(id)["state"].clone()), [json!("dead"), json!("dead")]);
    let parked_at = ask(&database, "select max(parked_at) from postrider.parked").await;

    on(&database, &["dead", "discard", &ids[0], "--yes"]).expect(0);
    std::fs::write(&path, broken.replace("error(\"no\" + .type)", ".payload")).unwrap();
    on(&database, &["dead", "retry", &ids[1], "--yes"]).expect(0);
    let relay = Running::start(&database, &["run", "--listen", "off", "--config", config]);
    let sink = until(&database, &ids[1], "delivered").await;
    assert!(sink["text"].as_str().unwrap().ends_with("after it had been parked"), "{sink}");
    drop(relay);
    let discarded = at(&ids[0]);
    assert_eq!(discarded["state"], "discarded", "{discarded}");
    for sink in [&sink, &discarded] {
        let ended = sink["settled_at"].as_str().unwrap();
        let is_later = format!("select '{ended}'::timestamptz > '{parked_at}'::timestamptz");
        assert_eq!(ask(&database, &is_later).await, "true", "{sink}");
    }
    std::fs::remove_file(path).unwrap();
}

#[tokio::test]
async fn the_id_of_an_adopted_row_will_do() {
    let database = installed().await;
    emit(&database, "order.paid", "k").await;
    run(&database, "update postrider.events set source_id = '4711'").await;
    let document = on(&database, &["where", "4711", "--json"]).expect(0).json();
    assert_eq!((&document["source_id"], &document["sinks"]), (&json!("4711"), &json!([])));
    on(&database, &["where", "4712"]).expect(1);
}
