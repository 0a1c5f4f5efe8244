//! The sink `kafka`, against Kafka; what a real broker cannot be made to say, against the client library's mock of one.

mod cluster;
mod faults;
mod forgotten;
mod limits;
mod mock;

use std::collections::HashMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use postrider::log::Record;
use postrider_relay::sink::BoxFuture;
use postrider_relay::sinks::kafka::{KafkaConfig, KafkaSink};
use postrider_relay::units::Span;
use postrider_relay::{Sink, Unavailable};
use postrider_testkit::conformance::{Control, Door, Subject, WRONG_PASSWORD, Way, examine};
use postrider_testkit::{Authority, Broker, Kafka, Proxy};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use tokio::process::Command;
use uuid::Uuid;

use super::{event, kills};
use crate::support::PATIENCE;

const TOPIC: &str = "conformance";

/// A broker sends its clients to what it advertises, and that is the same for all tests; the proxy is another in each. So there is one
/// more in front, which leads to the test's.
struct Tested {
    server: Broker<Kafka>,
    front: Proxy,
    front_tls: Proxy,
    right: Authority,
    wrong: Authority,
}

impl Tested {
    async fn new() -> Result<Self> {
        let (right, wrong) = (Authority::new()?, Authority::new()?);
        let (front, front_tls) = (Proxy::start("127.0.0.1:1").await?, Proxy::start("127.0.0.1:1").await?);
        let service = Kafka::new()
            .with_login("shop", "p@ss", front.port())
            .with_tls(&right.issue("IP:127.0.0.1", 10)?, front_tls.port());
        let server = Broker::private(service).await?;
        make(&server.bootstrap(), TOPIC, 3, &[]).await?;
        Ok(Self { server, front, front_tls, right, wrong })
    }

    fn config(&self, way: &Way) -> KafkaConfig {
        let (front, front_tls) = (self.front.port(), self.front_tls.port());
        let (url, ca) = match way.door {
            Door::Plain => (format!("kafka://shop:p%40ss@127.0.0.1:{front}"), None),
            Door::WrongPassword => (format!("kafka://shop:{WRONG_PASSWORD}@127.0.0.1:{front}"), None),
            Door::Tls => (format!("kafka+ssl://127.0.0.1:{front_tls}"), Some(self.right.certificate())),
            Door::WrongAuthority => {
                (format!("kafka+ssl://127.0.0.1:{front_tls}"), Some(self.wrong.certificate()))
            }
        };
        KafkaConfig { ca, timeout: Span(way.patience), ..KafkaConfig::new(url) }
    }
}

impl Subject for Tested {
    fn open<'a>(&'a self, way: &'a Way) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async move {
            for front in [&self.front, &self.front_tls] {
                front.set_upstream(format!("127.0.0.1:{}", way.port));
            }
            let sink: Box<dyn Sink> = Box::new(KafkaSink::open(self.config(way)).await?);
            Ok(sink)
        })
    }

    fn upstream(&self, door: Door) -> Option<String> {
        match door {
            Door::Plain | Door::WrongPassword => Some(self.server.login_address()),
            Door::Tls | Door::WrongAuthority => Some(self.server.tls_address()),
        }
    }

    fn destination(&self) -> String {
        TOPIC.to_owned()
    }

    fn stored(&self) -> BoxFuture<'_, Result<Vec<Uuid>>> {
        Box::pin(async {
            Ok(stored(&self.server.bootstrap(), TOPIC).await?.into_iter().map(|stored| stored.id).collect())
        })
    }

    fn server(&self, what: Control) -> BoxFuture<'_, Result<()>> {
        Box::pin(what.done_to(&self.server))
    }

    /// A broker takes a megabyte unless it is told otherwise.
    fn oversize(&self) -> usize {
        2 << 20
    }

    fn unroutable(&self) -> String {
        "nowhere".to_owned()
    }

    fn kills(&self) -> usize {
        kills(3)
    }
}

#[tokio::test]
async fn fault_76_kafka_keeps_the_contract_through_kills() -> Result<()> {
    examine(&Tested::new().await?).await.assert_passed();
    Ok(())
}

/// A message that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stored {
    partition: i32,
    key: String,
    id: Uuid,
    headers: HashMap<String, String>,
}

/// What a topic has, partition by partition, by `kcat`, which is none of ours.
async fn stored(brokers: &str, topic: &str) -> Result<Vec<Stored>> {
    let said = Command::new("kcat")
        .args(["-b", brokers, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%p\t%k\t%h\n"])
        // A broker that has just come back takes its time.
        .args(["-X", "topic.metadata.refresh.interval.ms=1000"])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let said = tokio::time::timeout(Duration::from_mins(1), said).await.context("kcat does not end")??;
    ensure!(said.status.success(), "kcat: {}", String::from_utf8_lossy(&said.stderr));
    let mut stored = Vec::new();
    for line in String::from_utf8(said.stdout)?.lines() {
        let mut columns = line.splitn(3, '\t');
        let [Some(partition), Some(key), Some(headers)] = [columns.next(), columns.next(), columns.next()]
        else {
            anyhow::bail!("kcat said {line:?}");
        };
        let headers: HashMap<String, String> = headers
            .split(',')
            .filter_map(|header| header.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let id = headers.get("event_id").context("a message without an id")?.parse()?;
        stored.push(Stored { partition: partition.parse()?, key: key.to_owned(), id, headers });
    }
    // Partitions come as they like; inside one, in order.
    stored.sort_by_key(|stored| stored.partition);
    Ok(stored)
}

fn admin(brokers: &str) -> Result<AdminClient<DefaultClientContext>> {
    Ok(ClientConfig::new().set("bootstrap.servers", brokers).create()?)
}

/// Makes a topic.
async fn make(brokers: &str, topic: &str, partitions: i32, settings: &[(&str, &str)]) -> Result<()> {
    let mut new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
    for (name, value) in settings {
        new = new.set(name, value);
    }
    for made in admin(brokers)?.create_topics([&new], &options()).await? {
        made.map_err(|(topic, code)| anyhow::anyhow!("{topic}: {code}"))?;
    }
    // The controller has it; the broker hears of it a moment later.
    until_partitions(brokers, topic, usize::try_from(partitions)?).await
}

/// On a busy machine it may take more than one attempt.
async fn opened(config: &KafkaConfig) -> KafkaSink {
    let begun = Instant::now();
    loop {
        match KafkaSink::open(config.clone()).await {
            Ok(sink) => return sink,
            Err(why) => assert!(begun.elapsed() < PATIENCE, "{why:?}"),
        }
    }
}

fn options() -> AdminOptions {
    let patience = Some(Duration::from_secs(30));
    AdminOptions::new().operation_timeout(patience).request_timeout(patience)
}

/// A broker that all its clients reach through a proxy.
struct Proxied {
    proxy: Proxy,
    brokers: String,
    _server: Broker<Kafka>,
}

impl Proxied {
    async fn start() -> Result<Self> {
        let proxy = Proxy::start("127.0.0.1:1").await?;
        let server = Broker::private(Kafka::new().advertised_at(proxy.port())).await?;
        proxy.set_upstream(server.address());
        let brokers = format!("127.0.0.1:{}", proxy.port());
        Ok(Self { proxy, brokers, _server: server })
    }
}

/// How many partitions a topic has by now.
async fn partitions_of(brokers: &str, topic: &str) -> Result<usize> {
    let (admin, topic) = (admin(brokers)?, topic.to_owned());
    let asked = tokio::task::spawn_blocking(move || {
        let metadata = admin.inner().fetch_metadata(Some(&topic), Duration::from_secs(20))?;
        Ok(metadata.topics()[0].partitions().len())
    });
    asked.await?
}

/// Adds partitions until there are so many, and waits until that is known.
async fn add_partitions(brokers: &str, topic: &'static str, count: usize) -> Result<()> {
    let more = NewPartitions::new(topic, count);
    for added in admin(brokers)?.create_partitions([&more], &options()).await? {
        added.map_err(|(_, code)| anyhow::anyhow!("{code}"))?;
    }
    until_partitions(brokers, topic, count).await
}

async fn until_partitions(brokers: &str, topic: &str, count: usize) -> Result<()> {
    let begun = Instant::now();
    while partitions_of(brokers, topic).await? != count {
        ensure!(begun.elapsed() < Duration::from_mins(1), "the partitions are never there");
    }
    Ok(())
}

fn config(brokers: &str) -> KafkaConfig {
    KafkaConfig { timeout: Span(Duration::from_secs(20)), ..KafkaConfig::new(format!("kafka://{brokers}")) }
}

/// One of a certain size.
fn large(key: &str, bytes: usize) -> Record {
    Record { payload: format!(r#"{{"pad":"{}"}}"#, "x".repeat(bytes)), ..event(key) }
}

/// The ids of one key, as they were sent.
fn ids<'a>(sent: impl IntoIterator<Item = &'a Record>, key: &str) -> Vec<Uuid> {
    sent.into_iter().filter(|record| record.key.as_deref() == Some(key)).map(|record| record.id).collect()
}

/// The ids of one key, each where it came first.
fn firsts(stored: &[Stored], key: &str) -> Vec<Uuid> {
    let mut ids: Vec<Uuid> = Vec::new();
    for message in stored.iter().filter(|message| message.key == key) {
        if !ids.contains(&message.id) {
            ids.push(message.id);
        }
    }
    ids
}
