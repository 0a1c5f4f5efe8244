//! `postrider dead`.

use serde_json::{Value, json};

use crate::world::{ask, create_sink, installed, on, park, run};

const NOWHERE: &str = "00000000-0000-7000-8000-000000000000";

#[tokio::test]
async fn lists_page_by_page_and_selects() {
    let database = installed().await;
    create_sink(&database, "web").await;
    create_sink(&database, "mail").await;
    let end = on(&database, &["dead", "list"]).expect(0);
    assert_eq!((end.stdout.as_str(), end.stderr.as_str()), ("", "none\n"));

    let paid = park(&database, "web", "order.paid", "1", "dead").await;
    park(&database, "web", "order.paid", "1", "behind").await;
    let sent = park(&database, "web", "mail.sent", "2", "dead").await;
    let other = park(&database, "mail", "order.made", "3", "waiting").await;
    let ids = |words: &[&str]| -> Vec<String> {
        let document = on(&database, &[&["dead", "list", "--json"], words].concat()).expect(0).json();
        document["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(|event| event["id"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(ids(&[]), [paid.clone(), sent.clone()]);
    assert_eq!(ids(&["--parked"]).len(), 4);
    assert_eq!(ids(&["--parked", "--sink", "mail"]), [other]);
    assert_eq!(ids(&["--key", "2"]), std::slice::from_ref(&sent));
    assert_eq!(ids(&["--type", "order.*"]), std::slice::from_ref(&paid));
    assert_eq!(ids(&["--type", "order_*"]), [""; 0], "no SQL pattern");
    assert_eq!(ids(&["--error", "too_large"]).len(), 2);
    assert_eq!(ids(&["--error", "far TOO"]).len(), 2, "words of the reason");
    assert_eq!(ids(&["--error", "rejected"]), [""; 0]);
    assert_eq!(ids(&["--since", "1h"]).len(), 2);
    assert_eq!(ids(&["--until", "1h"]), [""; 0]);

    assert_eq!(ids(&["--sink", "mail"]), [""; 0], "none are dead");
    for command in ["list", "retry", "discard"] {
        let end = on(&database, &["dead", command, "--sink", "wbe"]).expect(1);
        assert!(end.stderr.contains("no sink \"wbe\"; there are mail, web"), "{}", end.stderr);
    }

    let first = on(&database, &["dead", "list", "--json", "--limit", "1"]).expect(0).json();
    assert_eq!((&first["matching"], first["events"].as_array().unwrap().len()), (&json!(2), 1));
    let next = first["next"].to_string();
    assert_eq!(ids(&["--limit", "1", "--after", &next]), [sent]);
    let end = on(&database, &["dead", "list", "--limit", "1"]).expect(0);
    assert!(end.stdout.starts_with("ID ") && end.stdout.contains("too_large: It is Far"), "{}", end.stdout);
    assert_eq!(end.stderr, format!("1 of 2 events; go on with --after {next}\n"));
}

#[tokio::test]
async fn shows_the_whole_event_with_its_history() {
    let database = installed().await;
    create_sink(&database, "web").await;
    let id = park(&database, "web", "order.paid", "k\u{1b}[2J", "dead").await;
    let behind = park(&database, "web", "order.made", "k\u{1b}[2J", "behind").await;
    let end = on(&database, &["dead", "show", &id]).expect(0);
    for part in
        ["order.paid", "k\\u{1b}[2J", r#"{"n" :  1.50}"#, "too_large: the first time", "attempts      10"]
    {
        assert!(end.stdout.contains(part), "{part} in {}", end.stdout);
    }
    let end = on(&database, &["dead", "show", &id, "--json"]).expect(0);
    assert!(end.stdout.contains(r#""payload":{"n" :  1.50}"#), "byte for byte: {}", end.stdout);
    let document = end.json();
    assert_eq!(document["history"][0]["reason"], "the first time");
    assert_eq!(document["headers"], json!({"h": "v"}));
    let document = on(&database, &["dead", "show", &behind, "--json"]).expect(0).json();
    assert_eq!(document["held_by"], json!(id));
    let end = on(&database, &["dead", "show", NOWHERE]).expect(1);
    assert!(end.stderr.contains(NOWHERE) && end.stderr.contains("postrider where"), "{}", end.stderr);
}

#[tokio::test]
async fn retries_only_when_told_and_only_the_first_of_a_key() {
    let database = installed().await;
    create_sink(&database, "web").await;
    for key in 0..7 {
        park(&database, "web", "order.paid", &key.to_string(), "dead").await;
    }
    let behind = park(&database, "web", "order.paid", "0", "behind").await;
    let end = on(&database, &["dead", "retry", "--all"]).expect(2);
    assert!(end.stderr.starts_with("7 events match:\n"), "{}", end.stderr);
    assert_eq!(end.stderr.matches("order.paid").count(), 5, "a sample of five: {}", end.stderr);
    assert!(end.stderr.contains("… and 2 more") && end.stderr.contains("--yes"), "{}", end.stderr);
    assert_eq!(ask(&database, "select count(*) from postrider.parked where state = 'dead'").await, "7");

    let end =
        on(&database, &["dead", "retry", "--all", "--parked", "--yes", "--batch", "3", "--json"]).expect(0);
    let document = end.json();
    assert_eq!((&document["retried"], &document["left_behind"]), (&json!(7), &json!(1)));
    assert!(end.stderr.contains("waiting behind"), "{}", end.stderr);
    let due = "select count(*) from postrider.parked where state = 'waiting' and attempts = 0 and next_attempt_at <= clock_timestamp()
        and history <> '[]'";
    assert_eq!(ask(&database, due).await, "7");

    let end = on(&database, &["dead", "retry", &behind, "--yes"]).expect(1);
    assert!(end.stderr.contains("waits behind"), "{}", end.stderr);
    on(&database, &["dead", "retry", &behind, "--parked", "--yes"]).expect(2);
    let end = on(&database, &["dead", "retry", "--sink", "web", "--yes"]).expect(0);
    assert_eq!(end.stderr, "nothing matches\n");
    on(&database, &["dead", "retry", NOWHERE, "--yes"]).expect(1);
}

#[tokio::test]
async fn a_discarded_event_lets_the_next_of_its_key_go() {
    let database = installed().await;
    create_sink(&database, "web").await;
    let first = park(&database, "web", "e1", "k", "dead").await;
    park(&database, "web", "e2", "k", "behind").await;
    let third = park(&database, "web", "e3", "k", "behind").await;
    park(&database, "web", "other", "x", "dead").await;
    let states = "select string_agg(type || ' ' || state, ', ' order by place) from postrider.parked";
    on(&database, &["dead", "discard", &first]).expect(2);
    assert_eq!(ask(&database, states).await, "e1 dead, e2 behind, e3 behind, other dead");
    let document = on(&database, &["dead", "discard", &first, "--yes", "--json"]).expect(0).json();
    assert_eq!((&document["discarded"], &document["done"]), (&json!(1), &Value::Bool(true)));
    assert_eq!(ask(&database, states).await, "e2 waiting, e3 behind, other dead");
    // One from the middle of a key holds nobody up.
    on(&database, &["dead", "discard", &third, "--parked", "--yes"]).expect(0);
    assert_eq!(ask(&database, states).await, "e2 waiting, other dead");
    // All of a key at once, in batches of one.
    park(&database, "web", "e4", "k", "behind").await;
    park(&database, "web", "e5", "k", "behind").await;
    on(&database, &["dead", "discard", "--key", "k", "--type", "e[24]", "--parked", "--yes"]).expect(0);
    on(&database, &["dead", "discard", "--key", "k", "--parked", "--yes", "--batch", "1"]).expect(0);
    assert_eq!(ask(&database, states).await, "other dead");
}

/// A relay that parks one more behind does so under the lock of the sink's row.
#[tokio::test]
async fn discarding_waits_for_whoever_parks_at_the_same_moment() {
    let database = installed().await;
    create_sink(&database, "web").await;
    let first = park(&database, "web", "e1", "k", "dead").await;
    let mut relay = database.connect().await.unwrap();
    sqlx::raw_sql("begin; select from postrider.sinks for no key update").execute(&mut relay).await.unwrap();
    let url = database.url();
    let discard = std::thread::spawn(move || {
        crate::support::End::of(&mut crate::support::postrider_on(
            &url,
            &["dead", "discard", &first, "--yes"],
        ))
    });
    let waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()";
    while ask(&database, waits).await == "0" {}
    sqlx::raw_sql(
        "insert into postrider.parked (sink, id, lane, seq, type, key, payload, created_at, state)
         select sink, postrider.uuid7(), 0, 2, 'e2', 'k', '{}', now(), 'behind' from postrider.sinks;
         commit",
    )
    .execute(&mut relay)
    .await
    .unwrap();
    discard.join().unwrap().expect(0);
    assert_eq!(
        ask(&database, "select string_agg(type || ' ' || state, ', ') from postrider.parked").await,
        "e2 waiting"
    );
}

#[tokio::test]
async fn selecting_nothing_is_wrong_usage() {
    let database = installed().await;
    for words in [&["dead", "retry", "--yes"][..], &["dead", "discard", "--parked"], &["dead", "show"]] {
        on(&database, words).expect(64);
    }
    run(&database, "select 1").await;
}

#[tokio::test]
async fn a_dead_event_has_no_next_attempt() {
    let database = installed().await;
    create_sink(&database, "web").await;
    let dead = park(&database, "web", "a", "1", "dead").await;
    let waiting = park(&database, "web", "a", "2", "waiting").await;
    run(&database, "update postrider.parked set next_attempt_at = '2026-03-01'").await;
    let shown = |id: &str| on(&database, &["dead", "show", id]).expect(0).stdout;
    assert!(!shown(&dead).contains("next attempt") && shown(&waiting).contains("next attempt"));
    assert!(on(&database, &["dead", "show", &dead, "--json"]).expect(0).json()["next_attempt_at"].is_null());
}

#[tokio::test]
async fn an_attempt_that_is_thousands_of_years_away_is_shown() {
    let database = installed().await;
    create_sink(&database, "web").await;
    let id = park(&database, "web", "a", "1", "waiting").await;
    for when in ["12000-03-01", "infinity"] {
        run(&database, format!("update postrider.parked set next_attempt_at = '{when}'")).await;
        for words in [
            &["dead", "list", "--parked"][..],
            &["dead", "show", &id],
            &["dead", "list", "--parked", "--json"],
        ] {
            on(&database, words).expect(0);
        }
    }
}
