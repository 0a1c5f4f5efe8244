//! Every envelope on every broker, read back by a client that is none of ours; what is to be a `CloudEvent` is one by npm's `cloudevents`.

use std::process::Command;

use postrider_testkit::{Broker, Heard, Kafka, Nats, RabbitMq, Redis, cloudevents};
use serde_json::{Value, json};

use crate::support::End;
use crate::world::{ask, installed, on};

const ENVELOPES: [&str; 5] = ["cloudevents", "cloudevents-binary", "plain", "plane", "debezium"];

/// Characters that no header takes as they are.
const KEY: &str = "Zoë 100 %";
const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Two events to one sink for each envelope. `sink` is what stands in the configuration for an envelope, `read` reads what it got.
async fn every_envelope(
    kind: &str,
    sink: impl Fn(&str) -> String,
    mut read: impl AsyncFnMut(&str) -> Vec<Heard>,
) {
    let database = installed().await;
    let emit = format!(
        "select postrider.emit('order.paid', '{{\"total\": 12.50}}', key => '{KEY}', tenant => 'acme', entity => 'order', \
         headers => '{{\"traceparent\": \"{TRACE}\", \"attempt\": 2, \"X-Origin\": \"web\"}}')"
    );
    let ids = [ask(&database, &emit).await, ask(&database, &emit).await];
    let file = std::env::temp_dir().join(format!("{}.yaml", database.name()));
    let sinks = ENVELOPES.map(|envelope| {
        format!(
            "  {envelope}: {{ {}, envelope: {envelope}, source: shop, start: earliest }}\n",
            sink(envelope)
        )
    });
    std::fs::write(&file, format!("sinks:\n{}", sinks.concat())).unwrap();
    on(&database, &["run", "--once", "--config", &file.to_string_lossy()]).expect(0);
    let _ = std::fs::remove_file(file);

    for envelope in ENVELOPES {
        let heard = read(envelope).await;
        assert_eq!(heard.len(), 2, "{envelope}: {heard:?}");
        if envelope.starts_with("cloudevents") {
            for (event, id) in cloudevents(kind, &heard).unwrap().iter().zip(&ids) {
                is_the_event(event, id);
            }
        } else {
            heard.iter().zip(&ids).for_each(|(message, id)| is_the_message(envelope, message, id));
        }
    }
}

fn is_the_event(event: &Value, id: &str) {
    let expected = [
        ("id", json!(id)),
        ("source", json!("shop")),
        ("type", json!("order.paid")),
        ("subject", json!(KEY)),
        ("tenant", json!("acme")),
        ("entity", json!("order")),
        ("datacontenttype", json!("application/json")),
        ("traceparent", json!(TRACE)),
        ("headers", json!("{\"X-Origin\":\"web\"}")),
        ("data", json!({ "total": 12.50 })),
    ];
    for (name, value) in expected {
        assert_eq!(event[name], value, "{name} of {event}");
    }
    // Headers are texts.
    assert!([json!(2), json!("2")].contains(&event["attempt"]), "{event}");
}

fn is_the_message(envelope: &str, message: &Heard, id: &str) {
    let header = |name: &str| {
        let mut headers = message.headers.iter();
        headers.find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    };
    if envelope == "plane" {
        let body: Value = serde_json::from_str(&message.body).unwrap();
        let expected = [id, "order.paid", KEY, "acme"];
        let found = ["event_id", "event_type", "entity_id", "workspace_id"].map(|name| &body[name]);
        assert_eq!(found, expected.map(|text| json!(text)).each_ref());
        return;
    }
    // Byte for byte.
    assert_eq!(message.body, "{\"total\": 12.50}");
    assert_eq!(header("traceparent"), Some(TRACE), "{message:?}");
    assert_eq!(header("X-Origin"), Some("web"), "{message:?}");
    if envelope == "debezium" {
        assert_eq!((header("id"), header("eventType")), (Some(id), Some("order.paid")), "{message:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_cli_reads_every_envelope() {
    let redis = Broker::private(Redis::new()).await.unwrap();
    let sink = |envelope: &str| format!("redis: {{ url: '{}' }}, route: {envelope}", redis.url());
    every_envelope("redis", sink, async |envelope| {
        let entries = redis.ask(["XRANGE", envelope, "-", "+"]).await.unwrap();
        let entries = entries.as_array().unwrap().iter();
        entries.map(|entry| of_fields(entry[1].as_array().unwrap())).collect()
    })
    .await;
}

fn of_fields(fields: &[Value]) -> Heard {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut headers: Vec<_> = fields.chunks(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect();
    let (last, body) = headers.pop().unwrap();
    assert_eq!(last, "data");
    // The fields that are the sink's own are no attributes.
    headers.retain(|(name, _)| !["type", "key"].contains(&name.as_str()));
    Heard { headers, body }
}

/// What is in a stream.
const READ: &str = r"
import asyncio, json, nats, sys
async def main():
    client = await nats.connect(sys.argv[1])
    context = client.jetstream()
    info = await context.stream_info(sys.argv[2])
    for seq in range(1, info.state.messages + 1):
        message = await context.get_msg(sys.argv[2], seq)
        print(json.dumps([list(message.headers.items()), message.data.decode()]))
    await client.close()
asyncio.run(main())
";

#[tokio::test(flavor = "multi_thread")]
async fn nats_py_reads_every_envelope() {
    let nats = Broker::private(Nats::new()).await.unwrap();
    // A stream of its own for each: so that each is read by itself.
    let sink = |envelope: &str| {
        format!(
            "nats: {{ url: '{}', stream: {envelope}, create: true }}, route: '{envelope}.{{type}}'",
            nats.url()
        )
    };
    every_envelope("nats", sink, async |envelope| python("nats", READ, &[&nats.url(), envelope])).await;
}

/// What a script has read, headers and body of each message.
fn python(packages: &str, script: &str, words: &[&str]) -> Vec<Heard> {
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", script]).args(words).env("PYTHONDONTWRITEBYTECODE", "1");
    let lines = End::of(python.env("PYTHONPATH", postrider_testkit::cache().join(packages))).expect(0).stdout;
    let heard = |line| {
        let (headers, body) = serde_json::from_str(line).unwrap();
        Heard { headers, body }
    };
    lines.lines().map(heard).collect()
}

/// Binds a queue to an exchange, both of one name; without it, what is in the queue.
const PIKA: &str = r#"
import json, pika, sys
connection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))
channel = connection.channel()
for name in sys.argv[3:]:
    if sys.argv[2] == "bind":
        channel.exchange_declare(name, "fanout", durable=True)
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, name)
    else:
        while True:
            method, properties, body = channel.basic_get(name, auto_ack=True)
            if method is None:
                break
            headers = list((properties.headers or {}).items()) + [["content-type", properties.content_type]]
            print(json.dumps([headers, body.decode()]))
connection.close()
"#;

#[tokio::test(flavor = "multi_thread")]
async fn pika_reads_every_envelope() {
    let rabbitmq = Broker::shared(RabbitMq::new().with_management()).await.unwrap();
    let url = rabbitmq.url();
    let bind: Vec<&str> = [url.as_str(), "bind"].into_iter().chain(ENVELOPES).collect();
    python("rabbitmq/pip", PIKA, &bind);
    let sink = |envelope: &str| format!("rabbitmq: {{ url: '{url}', exchange: {envelope} }}");
    every_envelope("rabbitmq", sink, async |envelope| {
        python("rabbitmq/pip", PIKA, &[&url, "read", envelope])
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kcat_reads_every_envelope() {
    let kafka = Broker::shared(Kafka::new()).await.unwrap();
    let brokers = kafka.bootstrap();
    let sink = |envelope: &str| {
        let create = "create_topics: { partitions: 1, replication: 1 }";
        format!("kafka: {{ url: 'kafka://{brokers}', {create} }}, route: {envelope}")
    };
    every_envelope("kafka", sink, async |envelope| {
        let mut kcat = Command::new("kcat");
        kcat.args(["-b", &brokers, "-C", "-t", envelope, "-o", "beginning", "-e", "-q", "-J"]);
        let lines = End::of(&mut kcat).expect(0).stdout;
        lines.lines().map(|line| of_kcat(&serde_json::from_str(line).unwrap())).collect()
    })
    .await;
}

/// `{"headers":["name","value",…],"payload":"…",…}`
fn of_kcat(message: &Value) -> Heard {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let headers = message["headers"].as_array().unwrap();
    let headers = headers.chunks(2).map(|pair| (text(&pair[0]), text(&pair[1]))).collect();
    Heard { headers, body: text(&message["payload"]) }
}
