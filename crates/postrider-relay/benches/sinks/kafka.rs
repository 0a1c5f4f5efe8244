//! Kafka, one broker. The bare loop is an idempotent producer with the settings of the sink, which waits for every delivery report.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use postrider_testkit::{Broker as Server, Kafka};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::{ClientContext, DefaultClientContext};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _, StreamConsumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{Header, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};

use crate::bare::{Bare, CONTENT_TYPE, TYPE};
use crate::compare::{Broker, Variant};
use crate::outage::{Heard, Listener};

const PARTITIONS: i32 = 6;
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Measured {
    pub(crate) server: Server<Kafka>,
    /// Each run has a topic of its own: one that is removed is gone only after a while.
    topic: AtomicU32,
}

impl Measured {
    fn client(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", self.server.bootstrap());
        client
    }

    pub(crate) fn topic(&self) -> String {
        format!("bench-{}", self.topic.load(Ordering::Relaxed))
    }

    /// A topic with nothing in it.
    pub(crate) async fn create(&self, topic: &str) -> Result<()> {
        let admin: AdminClient<DefaultClientContext> = self.client().create()?;
        let new = NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(1));
        for made in admin.create_topics(&[new], &AdminOptions::new()).await? {
            made.map_err(|(name, code)| anyhow::anyhow!("{name}: {code}"))?;
        }
        Ok(())
    }

    pub(crate) async fn remove(&self, topic: &str) -> Result<()> {
        let admin: AdminClient<DefaultClientContext> = self.client().create()?;
        admin.delete_topics(&[topic], &AdminOptions::new()).await?;
        Ok(())
    }

    /// Somebody who counts the messages of a topic.
    pub(crate) fn counter(&self, topic: &str) -> Result<Counter> {
        Ok(Counter { consumer: Arc::new(self.client().create()?), topic: topic.to_owned() })
    }
}

/// Counts the messages of a topic, by its watermarks.
pub(crate) struct Counter {
    consumer: Arc<BaseConsumer>,
    topic: String,
}

impl Counter {
    pub(crate) async fn count(&self) -> Result<u64> {
        let (consumer, topic) = (Arc::clone(&self.consumer), self.topic.clone());
        tokio::task::spawn_blocking(move || {
            let mut count = 0;
            for partition in 0..PARTITIONS {
                let (low, high) = watermarks(&consumer, &topic, partition)?;
                count += u64::try_from(high - low)?;
            }
            Ok(count)
        })
        .await?
    }
}

/// A partition that was made a moment ago may have no leader yet.
fn watermarks(consumer: &BaseConsumer, topic: &str, partition: i32) -> KafkaResult<(i64, i64)> {
    let begun = Instant::now();
    loop {
        match consumer.fetch_watermarks(topic, partition, PATIENCE) {
            Err(KafkaError::MetadataFetch(
                RDKafkaErrorCode::NotLeaderForPartition | RDKafkaErrorCode::LeaderNotAvailable,
            )) if begun.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(20)),
            fetched => return fetched,
        }
    }
}

impl Broker for Measured {
    const NAME: &'static str = "kafka";
    const GOAL: f64 = 0.8;
    const EVENTS: u32 = 600_000;
    const VARIANTS: &'static [Variant] = &[
        Variant::new("linger 1 ms, as the sink", 1, 10_000),
        Variant::new("linger 5 ms, the library's default", 5, 100_000),
        Variant::new("linger 20 ms", 20, 100_000),
    ];

    async fn start() -> Result<Self> {
        let server = Server::private(Kafka::new().for_measuring()).await?;
        let broker = Self { server, topic: AtomicU32::new(0) };
        broker.create(&broker.topic()).await?;
        Ok(broker)
    }

    fn sink(&self) -> String {
        format!("kafka: {{ url: 'kafka://{}' }}, route: {}", self.server.bootstrap(), self.topic())
    }

    fn url(&self) -> String {
        format!("{}/{}", self.server.bootstrap(), self.topic())
    }

    async fn empty(&self) -> Result<()> {
        self.remove(&self.topic()).await?;
        self.topic.fetch_add(1, Ordering::Relaxed);
        self.create(&self.topic()).await
    }

    async fn count(&self) -> Result<u64> {
        self.counter(&self.topic())?.count().await
    }

    /// Here `channels` is the linger, in milliseconds.
    async fn publish(&self, variant: &Variant, messages: Bare) -> Result<()> {
        let mut client = self.client();
        client
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("linger.ms", variant.channels.to_string())
            .set("queue.buffering.max.messages", variant.in_flight.to_string());
        let topic = self.topic();
        tokio::task::spawn_blocking(move || publish(&client, &topic, messages)).await?
    }
}

/// Counts what was delivered.
#[derive(Default, Clone)]
struct Reports {
    delivered: Arc<AtomicUsize>,
    failed: Arc<Mutex<Option<KafkaError>>>,
}

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        match result {
            Ok(_) => _ = self.delivered.fetch_add(1, Ordering::Relaxed),
            Err((error, _)) => {
                *self.failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(error.clone());
            }
        }
    }
}

fn publish(client: &ClientConfig, topic: &str, messages: Bare) -> Result<()> {
    let reports = Reports::default();
    let producer: ThreadedProducer<Reports> = client.create_with_context(reports.clone())?;
    let mut sent = 0;
    for message in messages {
        let headers = OwnedHeaders::new_with_capacity(3)
            .insert(Header { key: "event_id", value: Some(&message.id) })
            .insert(Header { key: "event_type", value: Some(TYPE) })
            .insert(Header { key: "content-type", value: Some(CONTENT_TYPE) });
        let mut record =
            BaseRecord::to(topic).key(message.key.as_str()).payload(message.body.as_slice()).headers(headers);
        while let Err((error, back)) = producer.send(record) {
            let is_full = error.rdkafka_error_code() == Some(RDKafkaErrorCode::QueueFull);
            ensure!(is_full, "{error}");
            std::thread::sleep(Duration::from_micros(200));
            record = back;
        }
        sent += 1;
    }
    producer.flush(PATIENCE)?;
    if let Some(error) = reports.failed.lock().ok().and_then(|mut failed| failed.take()) {
        bail!("a message was not delivered: {error}");
    }
    let delivered = reports.delivered.load(Ordering::Relaxed);
    ensure!(delivered == sent, "{delivered} of {sent} were delivered");
    Ok(())
}

impl Listener for Measured {
    async fn listen(&self, heard: Heard) -> Result<()> {
        let mut client = self.client();
        client.set("group.id", "bench").set("auto.offset.reset", "earliest").set("fetch.wait.max.ms", "5");
        let consumer: StreamConsumer = client.create()?;
        consumer.subscribe(&[&self.topic()])?;
        loop {
            let message = consumer.recv().await?;
            heard.note(Self::NAME, message.payload().context("a message without a body")?);
        }
    }

    async fn crash(&self) -> Result<()> {
        self.server.crash().await
    }

    async fn revive(&self) -> Result<()> {
        self.server.start().await
    }
}
