//! From `emit` to a broker, and read back by a client that is none of ours.

mod envelopes;

use std::process::Command;

use postrider_testkit::{Broker, Kafka, Nats, RabbitMq, Redis};
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

/// What is in the stream: the id in the header, the subject, and the body of each message.
const READ: &str = r#"
import asyncio, json, nats, sys
async def main():
    client = await nats.connect(sys.argv[1])
    stream = client.jetstream()
    info = await stream.stream_info("events")
    for seq in range(1, info.state.messages + 1):
        message = await stream.get_msg("events", seq)
        print(json.dumps([message.headers["event_id"], message.subject, json.loads(message.data)]))
    await client.close()
asyncio.run(main())
"#;

#[tokio::test(flavor = "multi_thread")]
async fn nats_gets_events_and_nats_py_reads_them() {
    let (database, nats) = (installed().await, Broker::private(Nats::new()).await.unwrap());
    let ids = emitted(&database).await;
    // There is no stream yet, and `--to` makes none.
    let to = ["run", "--once", "--patience", "1s", "--to", &nats.url(), "--start", "earliest"];
    let end = on(&database, &to).expect(69);
    assert!(end.stderr.contains("no stream `events`"), "{}", end.stderr);
    let file = std::env::temp_dir().join(format!("{}.yaml", database.name()));
    let sink = format!(
        "sinks: {{ nats: {{ nats: {{ url: '{}', create: true }}, start: earliest }} }}\n",
        nats.url()
    );
    std::fs::write(&file, sink).unwrap();
    on(&database, &["run", "--once", "--config", &file.to_string_lossy()]).expect(0);
    on(&database, &to).expect(0);
    let _ = std::fs::remove_file(file);

    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", READ, &nats.url()]).env("PYTHONPATH", postrider_testkit::cache().join("nats"));
    let end = End::of(python.env("PYTHONDONTWRITEBYTECODE", "1")).expect(0);
    let messages: Vec<Value> = end.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (message, event_type) in messages.iter().zip(TYPES) {
        assert_eq!(message[0], message[2]["id"]);
        assert_eq!(message[1], format!("events.{event_type}"));
    }
    check(&messages.iter().map(|message| message[2].clone()).collect::<Vec<_>>(), &ids);
}

/// A queue that is bound to the exchange; and what is in it: the properties and the body of each message.
const PIKA: &str = r#"
import json, pika, sys
connection = pika.BlockingConnection(pika.URLParameters(sys.argv[2]))
channel = connection.channel()
if sys.argv[1] == "bind":
    channel.exchange_declare("events", "fanout", durable=True)
    channel.queue_declare("cli-orders", durable=True, arguments={"x-queue-type": "quorum"})
    channel.queue_bind("cli-orders", "events")
else:
    while True:
        method, properties, body = channel.basic_get("cli-orders", auto_ack=True)
        if method is None:
            break
        print(json.dumps([properties.message_id, method.routing_key, properties.content_type, properties.type,
                          properties.delivery_mode, json.loads(body)]))
connection.close()
"#;

#[tokio::test(flavor = "multi_thread")]
async fn rabbitmq_gets_events_and_pika_reads_them() {
    let (database, rabbitmq) =
        (installed().await, Broker::shared(RabbitMq::new().with_management()).await.unwrap());
    let ids = emitted(&database).await;
    let url = rabbitmq.url();
    // Nobody listens: they wait, and it is said for what.
    let to = ["run", "--once", "--patience", "1s", "--to", &url, "--start", "earliest"];
    let end = on(&database, &to).expect(69);
    assert!(end.stderr.contains("no queue is bound to the exchange `events`"), "{}", end.stderr);
    let python = |what: &str| {
        let mut python = Command::new("/usr/bin/python3");
        python.args(["-c", PIKA, what, &url]).env("PYTHONDONTWRITEBYTECODE", "1");
        End::of(python.env("PYTHONPATH", postrider_testkit::cache().join("rabbitmq/pip"))).expect(0)
    };
    python("bind");
    let once = ["run", "--once", "--to", &url, "--start", "earliest"];
    on(&database, &once).expect(0);
    on(&database, &once).expect(0);
    let end = python("read");
    let messages: Vec<Value> = end.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (message, event_type) in messages.iter().zip(TYPES) {
        assert_eq!(message[0], message[5]["id"]);
        assert_eq!((&message[1], &message[3]), (&event_type.into(), &event_type.into()));
        assert_eq!(
            (message[2].as_str(), message[4].as_u64()),
            (Some("application/cloudevents+json"), Some(2))
        );
    }
    check(&messages.iter().map(|message| message[5].clone()).collect::<Vec<_>>(), &ids);
}

/// What is in the topic: key, headers and body of each message.
fn kcat(brokers: &str, topic: &str) -> Vec<(String, String, Value)> {
    let mut kcat = Command::new("kcat");
    kcat.args(["-b", brokers, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%k\t%h\t%s\n"]);
    let end = End::of(&mut kcat).expect(0);
    let messages = end.stdout.lines().map(|line| {
        let [key, headers, body] = line.splitn(3, '\t').collect::<Vec<_>>().try_into().unwrap();
        (key.to_owned(), headers.to_owned(), serde_json::from_str(body).unwrap())
    });
    messages.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn kafka_gets_events_and_kcat_reads_them() {
    let (database, kafka) = (installed().await, Broker::shared(Kafka::new()).await.unwrap());
    let ids = emitted(&database).await;
    let file = std::env::temp_dir().join(format!("{}.yaml", database.name()));
    let url = format!("kafka://{}", kafka.bootstrap());
    let create = "create_topics: { partitions: 3, replication: 1 }";
    for compression in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let sink = format!(
            "sinks: {{ {compression}: {{ kafka: {{ url: '{url}', {create}, compression: {compression} }}, start: earliest }} }}\n"
        );
        std::fs::write(&file, sink).unwrap();
        on(&database, &["run", "--once", "--config", &file.to_string_lossy()]).expect(0);
    }
    // Another sink, which finds the topic.
    on(&database, &["run", "--once", "--to", &url, "--start", "earliest"]).expect(0);
    let _ = std::fs::remove_file(file);
    let messages = kcat(&kafka.bootstrap(), "order");
    assert_eq!(messages.len(), 6 * ids.len());
    for messages in messages.chunks(ids.len()) {
        for ((key, headers, _), (id, event_type)) in messages.iter().zip(ids.iter().zip(TYPES)) {
            assert_eq!(key, "7");
            let expected =
                format!("event_id={id},event_type={event_type},content-type=application/cloudevents+json");
            assert_eq!(*headers, expected);
        }
        check(&messages.iter().map(|(_, _, body)| body.clone()).collect::<Vec<_>>(), &ids);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_password_of_a_broker_is_in_no_output() {
    let database = installed().await;
    emit(&database, "order.paid", "7").await;
    for to in [
        "redis://me:c4n4ry@127.0.0.1:1",
        "nats://me:c4n4ry@127.0.0.1:1",
        "rediss://me:c4n4ry@127.0.0.1:1",
        "amqp://me:c4n4ry@127.0.0.1:1",
        "kafka://me:c4n4ry@127.0.0.1:1",
        "kafka+ssl://me:c4n4ry@127.0.0.1:1",
    ] {
        let once = ["run", "--once", "--patience", "1s", "--to", to, "--start", "earliest"];
        let end = End::of(postrider_on(&database.url(), &once).env("POSTRIDER_LOG", "trace")).expect(69);
        assert!(end.stderr.contains("cannot be reached"), "{}", end.stderr);
        assert!(!(end.stdout + &end.stderr).contains("c4n4ry"));
        let end = End::of(&mut postrider(&["config", "show", "--to", to, "--database", "postgres://h/d"]))
            .expect(0);
        assert!(end.stdout.contains("127.0.0.1:1") && !end.stdout.contains("c4n4ry"), "{}", end.stdout);
    }
    for to in ["redis:", "redis://", "redis:x", "nats", "kafka:x"] {
        let end = End::of(&mut postrider(&["config", "show", "--to", to])).expect(64);
        assert!(
            end.stderr.contains("redis://HOST:PORT, nats://HOST:PORT, amqp://HOST:PORT, kafka://HOST:PORT"),
            "{}",
            end.stderr
        );
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

/// What `doctor` says of the durability of sinks, and whether it has a remedy.
fn graded(database: &postrider_testkit::Database, config: &str) -> (String, bool) {
    // The server of the tests has a fault of its own.
    let found = on(database, &["doctor", "--json", "--config", config]).expect(2).json();
    let checks = found["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["check"] == "durability of sinks").unwrap();
    (check["result"].as_str().unwrap().to_owned(), check["remedy"].is_string())
}

/// Below what is required the relay does not start, and `doctor` says what to do.
#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_is_not_good_enough_keeps_the_relay_from_starting() {
    let (database, redis) = (installed().await, Broker::private(Redis::new()).await.unwrap());
    let file = std::env::temp_dir().join(format!("{}.yaml", database.name()));
    let sink =
        format!("sinks: {{ cache: {{ redis: {{ url: '{}' }}, require_durability: B }} }}\n", redis.url());
    std::fs::write(&file, sink).unwrap();
    let config = file.to_string_lossy().into_owned();
    let end = on(&database, &["run", "--once", "--config", &config]).expect(78);
    assert!(
        end.stderr.contains("the sink `cache` is not good enough: its durability is E"),
        "{}",
        end.stderr
    );
    assert!(end.stderr.contains("set `appendonly yes`"), "{}", end.stderr);
    assert_eq!(graded(&database, &config), ("bad".to_owned(), true));

    for [name, value] in [["appendonly", "yes"], ["appendfsync", "always"]] {
        redis.ask(["CONFIG", "SET", name, value]).await.unwrap();
    }
    on(&database, &["run", "--once", "--config", &config]).expect(0);
    assert_eq!(graded(&database, &config), ("ok".to_owned(), false));
    let _ = std::fs::remove_file(file);
}
