//! From `emit` to a broker, and read back by a client that is none of ours.

use postrider_testkit::{Broker, Redis};
use serde_json::Value;

use crate::support::{End, postrider, postrider_on};
use crate::world::{emit, installed, on};

const TYPES: [&str; 3] = ["order.placed", "order.paid", "order.shipped"];

/// The ids of events of one key, in order.
async fn emitted(database: &postrider_testkit::Database) -> Vec<String> {
    let mut ids = Vec::new();
    for event_type in TYPES {
        ids.push(emit(database, event_type, "7").await);
    }
    ids
}

/// A `CloudEvent` has the id that `emit` gave, and its type.
fn check(bodies: &[Value], ids: &[String]) {
    assert_eq!(bodies.len(), ids.len(), "{bodies:?}");
    for ((body, id), event_type) in bodies.iter().zip(ids).zip(TYPES) {
        assert_eq!((body["specversion"].as_str(), body["id"].as_str()), (Some("1.0"), Some(id.as_str())));
        assert_eq!(body["type"], event_type);
        assert_eq!(body["data"], serde_json::json!({ "n": 1 }));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_gets_events_and_redis_cli_reads_them() {
    let (database, redis) = (installed().await, Broker::private(Redis::new()).await.unwrap());
    let ids = emitted(&database).await;
    let once = ["run", "--once", "--to", &redis.url(), "--start", "earliest"];
    on(&database, &once).expect(0);
    on(&database, &once).expect(0);
    let entries = redis.ask(["XRANGE", "events:order", "-", "+"]).await.unwrap();
    let bodies = entries.as_array().unwrap().iter().map(|entry| {
        let fields: Vec<&str> =
            entry[1].as_array().unwrap().iter().map(|field| field.as_str().unwrap()).collect();
        let ["id", id, "type", _, "key", "7", "content-type", _, "data", data] = fields.as_slice() else {
            panic!("{fields:?}");
        };
        let body: Value = serde_json::from_str(data).unwrap();
        assert_eq!(body["id"], **id);
        body
    });
    check(&bodies.collect::<Vec<_>>(), &ids);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_password_of_a_broker_is_in_no_output() {
    let database = installed().await;
    emit(&database, "order.paid", "7").await;
    for to in
        ["redis://me:c4n4ry@127.0.0.1:1", "rediss://me:c4n4ry@127.0.0.1:1"]
    {
        let once = ["run", "--once", "--patience", "1s", "--to", to, "--start", "earliest"];
        let end = End::of(postrider_on(&database.url(), &once).env("POSTRIDER_LOG", "trace")).expect(69);
        assert!(end.stderr.contains("cannot be reached"), "{}", end.stderr);
        assert!(!(end.stdout + &end.stderr).contains("c4n4ry"));
        let end = End::of(&mut postrider(&["config", "show", "--to", to, "--database", "postgres://h/d"]))
            .expect(0);
        assert!(end.stdout.contains("127.0.0.1:1") && !end.stdout.contains("c4n4ry"), "{}", end.stdout);
    }
    for to in ["redis:", "redis://", "redis:x"] {
        let end = End::of(&mut postrider(&["config", "show", "--to", to])).expect(64);
        assert!(end.stderr.contains("redis://HOST:PORT"), "{}", end.stderr);
    }
    let end = End::of(&mut postrider(&[
        "config",
        "show",
        "--to",
        "redis://:c4n4ry@",
        "--database",
        "postgres://h/d",
    ]));
    assert_ne!(end.code, Some(0), "{}", end.stdout);
    assert!(!(end.stdout + &end.stderr).contains("c4n4ry"));
}
