//! `postrider jobs`.

use serde_json::json;

use crate::support::{End, postrider_on};
use crate::world::{ask, installed, on, run};

#[tokio::test]
async fn jobs_are_listed_shown_retried_and_cancelled() {
    let database = installed().await;
    let end = on(&database, &["jobs", "list"]).expect(0);
    assert_eq!((end.stdout.as_str(), end.stderr.as_str()), ("", "none\n"));
    ask(&database, "select postrider.enqueue('mail.send', '{\"to\" :  7}', max_attempts => 1)").await;
    ask(&database, "select claim from postrider.claim_jobs()").await;
    ask(&database, "select postrider.finish_jobs(1, '[{\"id\": 1, \"error\": \"no such \\u0007mailbox\"}]')")
        .await;
    ask(
        &database,
        "select postrider.enqueue('later', '{}', run_at => now() + interval '1 hour', priority => 3)",
    )
    .await;
    ask(&database, "select postrider.enqueue('now', '{}', queue => 'other')").await;

    let list = on(&database, &["jobs", "list", "--json"]).expect(0).json();
    let states: Vec<(i64, &str)> = list["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| (job["id"].as_i64().unwrap(), job["state"].as_str().unwrap()))
        .collect();
    assert_eq!(states, [(3, "ready"), (2, "scheduled"), (1, "dead")]);
    let dead = on(&database, &["jobs", "list", "--state", "dead"]).expect(0);
    assert!(
        dead.stdout.contains("mail.send") && dead.stdout.contains("no such \\u{7}mailbox"),
        "{}",
        dead.stdout
    );
    assert_eq!(dead.stdout.lines().count(), 2, "{}", dead.stdout);
    assert_eq!(
        on(&database, &["jobs", "list", "--queue", "other", "--json"]).expect(0).json()["jobs"][0]["kind"],
        "now"
    );

    let shown = on(&database, &["jobs", "show", "1"]).expect(0);
    for part in ["state         dead", "attempt       1 of 1", "{\"to\" :  7}", "attempt 1: no such"] {
        assert!(shown.stdout.contains(part), "{part}: {}", shown.stdout);
    }
    assert_eq!(on(&database, &["jobs", "show", "1", "--json"]).expect(0).json()["payload"], json!({"to": 7}));
    assert!(on(&database, &["jobs", "show", "99"]).expect(1).stderr.contains("there is no job 99"));

    let end = on(&database, &["jobs", "retry", "1", "2"]).expect(0);
    assert_eq!(end.stderr, "job 1 was dead and is tried again\njob 2 was scheduled and is tried again\n");
    assert!(
        on(&database, &["jobs", "retry", "3"])
            .expect(1)
            .stderr
            .contains("job 3 is ready and cannot be retried")
    );
    assert_eq!(
        on(&database, &["jobs", "cancel", "1", "--json"]).expect(0).json(),
        json!({"cancelled": [{"id": 1, "done": "cancelled"}]})
    );
    assert!(on(&database, &["jobs", "cancel", "1"]).expect(1).stderr.contains("job 1 is cancelled"));
    // One that cannot be helped does not keep the others from it.
    let end = on(&database, &["jobs", "cancel", "99", "1", "2", "--json"]).expect(1);
    assert!(
        end.stderr.contains("there is no job 99") && end.stderr.contains("job 2 is cancelled"),
        "{}",
        end.stderr
    );
    assert_eq!(end.json()["cancelled"], json!([{"id": 2, "done": "cancelled"}]));
    assert_eq!(end.json()["failed"][0]["id"], json!(99));
    run(&database, "select postrider.claim_jobs('other')").await;
    let running = on(&database, &["jobs", "list", "--state", "running", "--json"]).expect(0).json();
    assert!(running["jobs"][0]["worker"].is_string() && running["jobs"][0]["at"].is_string(), "{running}");
}

/// Whoever may look at where things stand may list jobs, and sees no payload.
#[tokio::test]
async fn jobs_are_listed_for_a_reader() {
    let database = installed().await;
    ask(
        &database,
        "select postrider.enqueue('mail.send', '{\"secret\": 7}', run_at => now() + interval '1 hour')",
    )
    .await;
    let rows: i64 = {
        let mut connection = database.connect().await.unwrap();
        sqlx::query("set role postrider_reader").execute(&mut connection).await.unwrap();
        sqlx::query_scalar("select count(*) from postrider.list_jobs() l where l::text not like '%secret%'")
            .fetch_one(&mut connection)
            .await
            .unwrap()
    };
    assert_eq!(rows, 1);
}

#[tokio::test]
async fn a_queue_is_paused_and_resumed_and_counted() {
    let database = installed().await;
    ask(&database, "select postrider.enqueue('a', '{}', queue => 'mail')").await;
    assert_eq!(on(&database, &["jobs", "pause", "mail"]).expect(0).stderr, "queue \"mail\" is paused\n");
    assert_eq!(
        on(&database, &["jobs", "pause", "mail"]).expect(0).stderr,
        "queue \"mail\" is paused already\n"
    );
    let stats = on(&database, &["jobs", "stats", "--json"]).expect(0).json();
    assert_eq!((&stats["queues"][0]["queue"], &stats["queues"][0]["ready"]), (&json!("mail"), &json!(1)));
    assert!(stats["queues"][0]["paused_at"].is_string());
    for words in [
        ["jobs", "pause", "mial"].as_slice(),
        &["jobs", "resume", "mial"],
        &["jobs", "list", "--queue", "mial"],
    ] {
        let end = on(&database, words).expect(1);
        assert!(end.stderr.contains("there is no queue \"mial\"; there are: mail"), "{}", end.stderr);
    }
    assert!(on(&database, &["jobs", "stats"]).expect(0).stdout.starts_with("QUEUE "));
    let resumed = on(&database, &["jobs", "resume", "mail", "--json"]).expect(0).json();
    assert_eq!(resumed, json!({"queue": "mail", "paused": false, "changed": true}));
}

/// Whoever works jobs off may retry and cancel them without a right to look at them, and one that cannot be helped keeps no other from it.
#[tokio::test]
async fn jobs_are_retried_and_cancelled_by_who_may_not_see_them() {
    let database = installed().await;
    let role = format!("{}_operator", database.name());
    run(&database, format!(r#"create role "{role}" login; grant postrider_consume to "{role}""#)).await;
    ask(&database, "select postrider.enqueue('mail.send', '{}', run_at => now() + interval '1 hour')").await;
    let on_them = |words: &[&str]| End::of(&mut postrider_on(&database.url_as(&role), words)).expect(1);
    let end = on_them(&["jobs", "retry", "99", "1"]);
    assert!(end.stderr.contains("job 99 cannot be retried: there is no such job"), "{}", end.stderr);
    assert!(end.stderr.contains("job 1 was scheduled and is tried again"), "{}", end.stderr);
    let end = on_them(&["jobs", "cancel", "99", "1", "--json"]);
    assert_eq!(end.json()["cancelled"], json!([{"id": 1, "done": "cancelled"}]));
    run(&database, format!(r#"drop owned by "{role}"; drop role "{role}""#)).await;
}

/// Each number is that of its state.
#[tokio::test]
async fn jobs_of_a_queue_are_counted_by_state() {
    let database = installed().await;
    for statement in [
        "select postrider.enqueue('a', '{}', queue => 'mail', max_attempts => 1) from generate_series(1, 4)",
        "select count(*) from postrider.claim_jobs('mail', 3)",
        r#"select postrider.finish_jobs(1, '[{"id": 1, "error": "x"}, {"id": 2, "error": "x"}]', done => '{}')"#,
        "select postrider.enqueue('b', '{}', queue => 'mail', run_at => now() + interval '1 hour') from generate_series(1, 3)",
        "select postrider.enqueue('c', '{}', queue => 'mail', key => 'k') from generate_series(1, 5)",
        "select postrider.enqueue('a', '{}', queue => 'mail') from generate_series(1, 6)",
        "select postrider.extend_jobs(gen_random_uuid(), '1 hour', 'one', array['mail'])",
        "select postrider.extend_jobs(gen_random_uuid(), '1 microsecond', 'gone', array['mail'])",
    ] {
        run(&database, statement).await;
    }
    let stats = on(&database, &["jobs", "stats", "--json"]).expect(0).json();
    let mail = json!({
        "queue": "mail", "ready": 7, "running": 1, "scheduled": 3, "behind_key": 5, "dead": 2, "workers": 1, "paused_at": null,
    });
    assert_eq!(stats, json!({ "queues": [mail] }));
    let words = on(&database, &["jobs", "stats"]).expect(0).stdout;
    let row: Vec<&str> = words.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..7], ["mail", "7", "1", "3", "5", "2", "1"], "{words}");
}
