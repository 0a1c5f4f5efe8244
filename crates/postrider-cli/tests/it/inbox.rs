//! `postrider inbox`.

use serde_json::json;

use crate::world::{installed, on, run};

#[tokio::test]
async fn the_inbox_is_shown_forgotten_and_kept() {
    let database = installed().await;
    let end = on(&database, &["inbox", "list"]).expect(0);
    assert_eq!((end.stdout.as_str(), end.stderr.as_str()), ("", "none\n"));
    run(
        &database,
        "select postrider.first_time('billing', 'x'); select postrider.first_time('billing', 'y'); select postrider.first_time('mail', 'x')",
    )
    .await;

    run(&database, "update postrider.inbox set seen_at = '2026-01-01 00:00Z' where event_id = 'x'").await;
    let stats = on(&database, &["inbox", "stats", "--json"]).expect(0).json();
    assert_eq!(stats["retention_seconds"], json!(1_209_600.0));
    let counts: Vec<_> = stats["consumers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|of| (of["consumer"].clone(), of["ids"].clone()))
        .collect();
    assert_eq!(counts, [(json!("billing"), json!(2)), (json!("mail"), json!(1))]);
    assert!(stats["bytes"].as_i64().unwrap() > 0 && stats["log_retention_seconds"].is_null(), "{stats}");
    let billing = &stats["consumers"][0];
    let is_old = |when: &str| billing[when].as_str().unwrap().starts_with("2026-01-01T");
    assert!(is_old("oldest") && !is_old("newest"), "{billing}");
    let words = on(&database, &["inbox", "stats"]).expect(0);
    assert!(
        words.stdout.contains("billing") && words.stderr.contains("remembered for 14 d"),
        "{} {}",
        words.stdout,
        words.stderr
    );

    let ids = |words: &[&str]| {
        let document = on(&database, &[&["inbox", "list", "--json"], words].concat()).expect(0).json();
        document["ids"].as_array().unwrap().len()
    };
    assert_eq!(
        (ids(&[]), ids(&["--consumer", "billing"]), ids(&["--id", "x"]), ids(&["--limit", "1"])),
        (3, 2, 2, 1)
    );

    run(&database, "select postrider.first_time('uuids', 'ABCDEF00-0000-7000-8000-000000000001'::uuid)")
        .await;
    let upper = "ABCDEF00-0000-7000-8000-000000000001";
    assert_eq!(ids(&["--id", upper]), 1, "one uuid may be written in two ways");
    let end = on(&database, &["inbox", "forget", "uuids", upper, "--yes"]).expect(0);
    assert!(end.stderr.contains("1 id forgotten"), "{}", end.stderr);
    let end = on(&database, &["inbox", "keep", "0s"]).expect(64);
    assert!(end.stderr.contains("nothing would be remembered"), "{}", end.stderr);
    let end = on(&database, &["inbox", "forget", "billing", "x"]).expect(2);
    assert!(end.stderr.contains("1 id would be forgotten") && end.stderr.contains("--yes"), "{}", end.stderr);
    assert_eq!(ids(&["--consumer", "billing"]), 2, "nothing was forgotten");
    for words in [["inbox", "forget", "biling", "x", "--yes"], ["inbox", "forget", "billing", "z", "--yes"]] {
        let end = on(&database, &words).expect(1);
        assert!(end.stderr.contains("there is nothing to forget"), "{}", end.stderr);
    }
    let done = on(&database, &["inbox", "forget", "billing", "x", "--yes", "--json"]).expect(0).json();
    assert_eq!(done, json!({ "consumer": "billing", "id": "x", "ids": 1, "done": true }));
    assert_eq!(ids(&["--consumer", "billing"]), 1);
    let done = on(&database, &["inbox", "forget", "mail", "--yes", "--json"]).expect(0).json();
    assert_eq!(done["ids"], json!(1));
}

/// What a relay has written down of the log counts, if it is longer. Where none has, that is said.
#[tokio::test]
async fn a_retention_below_that_of_the_log_is_found() {
    let database = installed().await;
    let end = on(&database, &["inbox", "keep", "1s"]).expect(0);
    assert!(end.stderr.contains("nothing was compared"), "{}", end.stderr);
    run(&database, "select postrider.turn_inbox('7 days')").await;
    let end = on(&database, &["inbox", "keep", "1d"]).expect(2);
    assert!(end.stderr.contains("the log keeps events for 7 d"), "{}", end.stderr);
    let end = on(&database, &["inbox", "keep", "30d"]).expect(0);
    assert!(!end.stderr.contains("compared"), "{}", end.stderr);
    assert_eq!(
        on(&database, &["inbox", "stats", "--json"]).expect(0).json()["retention_seconds"],
        json!(2_592_000.0)
    );
    on(&database, &["inbox", "keep", "soon"]).expect(64);
}
