//! `postrider where`.

use postrider::log::{Start, sink};
use serde_json::{Value, json};

use crate::world::{create_sink, deliver, emit, installed, on, park, run};

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
    assert_eq!(web["state"], "delivered");
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
        end.stdout.contains("delivered at ") && end.stdout.contains("the sink began behind this event"),
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
    assert_eq!(document["sinks"][0]["state"], "delivered");
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
