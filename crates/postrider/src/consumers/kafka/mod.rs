//! Kafka topics, by a consumer group.

mod context;
mod link;
mod message;
mod pump;
mod retention;
mod tap;
mod tracker;

use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::FutureProducer;
use tokio::sync::mpsc;

use super::DEAD_LETTERS;
use crate::consumer::{Deliveries, Source, Terms, Trouble};
use context::Context;
pub use link::{KafkaLink, KafkaReceipt};
use pump::Pump;
use tap::Partitions;
use tracker::Tracker;

/// So many times as many messages as are in hand may lie between the oldest of a partition that is not settled and the newest. It is what
/// a process that ends leaves to be read again.
const SPREAD: u32 = 4;

/// Topics of a Kafka cluster.
///
/// The consumer is a group of its name. Offsets are committed when everything before them is settled, a moment after that. Dead letters are
/// messages of the topic `CONSUMER.dead`, which is made if it is not there.
///
/// Kafka does not say whether a message was delivered before, so the first of every partition after it was assigned are handled one by one.
#[derive(Clone)]
#[must_use = "a source does nothing until a consumer runs on it"]
pub struct Kafka {
    brokers: String,
    topics: Vec<String>,
    settings: Vec<(String, String)>,
    start: &'static str,
    dead_letters: Option<String>,
    keep_dead: Duration,
    timeout: Duration,
}

impl Kafka {
    /// `HOST:PORT,HOST:PORT`, and the topics that the events are in; one that begins with `^` is a regular expression.
    pub fn new<N: Into<String>>(brokers: impl Into<String>, topics: impl IntoIterator<Item = N>) -> Self {
        Self {
            brokers: brokers.into(),
            topics: topics.into_iter().map(Into::into).collect(),
            settings: Vec::new(),
            start: "earliest",
            dead_letters: None,
            keep_dead: DEAD_LETTERS,
            timeout: Duration::from_secs(10),
        }
    }

    /// A setting of librdkafka: `security.protocol`, `sasl.password`, `ssl.ca.location`.
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// The name of this process among those of the consumer, the same after it was started again: then its partitions are its own again
    /// at once, in place of after its session has run out.
    pub fn instance(self, name: impl Into<String>) -> Self {
        self.set("group.instance.id", name)
    }

    /// A group that is new begins with what is written from now on, in place of all that is there.
    pub fn from_now(mut self) -> Self {
        self.start = "latest";
        self
    }

    /// The topic of the dead letters, and how long it keeps them if it is made here.
    pub fn dead_letters(mut self, topic: impl Into<String>, keep: Duration) -> Self {
        (self.dead_letters, self.keep_dead) = (Some(topic.into()), keep);
        self
    }

    /// How long the brokers may take to answer.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    fn client(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        client
            .set("client.id", "postrider")
            .set("bootstrap.servers", &self.brokers)
            .set("socket.keepalive.enable", "true")
            .set("reconnect.backoff.ms", "50")
            .set("reconnect.backoff.max.ms", "1000")
            .set("allow.auto.create.topics", "false")
            .set_log_level(RDKafkaLogLevel::Warning);
        client
    }

    fn with_settings(&self, mut client: ClientConfig) -> ClientConfig {
        for (name, value) in &self.settings {
            client.set(name, value);
        }
        client
    }

    fn consumer(&self, terms: &Terms, context: Context) -> Result<StreamConsumer<Context>, KafkaError> {
        let mut client = self.client();
        client
            .set("group.id", &terms.consumer)
            .set("auto.offset.reset", self.start)
            // What is settled is stored by us, and committed soon after.
            .set("enable.auto.commit", "true")
            .set("enable.auto.offset.store", "false")
            .set("auto.commit.interval.ms", "200")
            // All partitions go and come again together, from where the group stands.
            .set("partition.assignment.strategy", "range")
            .set("session.timeout.ms", "10000")
            .set("fetch.wait.max.ms", "100")
            .set("queued.min.messages", "1000");
        let consumer: StreamConsumer<Context> = self.with_settings(client).create_with_context(context)?;
        let topics: Vec<&str> = self.topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics)?;
        Ok(consumer)
    }

    /// Settings that only a consumer has are of no use to the others.
    fn helper(&self) -> ClientConfig {
        let mut client = self.client();
        for (name, value) in self.settings.iter().filter(|(name, _)| !name.starts_with("group.")) {
            client.set(name, value);
        }
        client
    }

    async fn make_dead_letters(
        &self,
        admin: &AdminClient<DefaultClientContext>,
        options: &AdminOptions,
        topic: &str,
    ) -> Result<(), KafkaError> {
        let keep = self.keep_dead.as_millis().to_string();
        let new = NewTopic::new(topic, 1, TopicReplication::Fixed(-1)).set("retention.ms", &keep);
        for made in admin.create_topics([&new], options).await? {
            match made {
                Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                // It may be there, and we may write to it.
                Err((_, error)) => {
                    tracing::warn!(topic, %error, "the topic of the dead letters cannot be made");
                }
            }
        }
        Ok(())
    }
}

impl Source for Kafka {
    type Link = KafkaLink;

    fn kind(&self) -> &'static str {
        "kafka"
    }

    async fn open(&self, terms: &Terms) -> Result<(KafkaLink, Deliveries<KafkaReceipt>), Trouble> {
        let dead_letters = self.dead_letters.clone().unwrap_or_else(|| format!("{}.dead", terms.consumer));
        let admin: AdminClient<DefaultClientContext> = self.helper().create().map_err(trouble)?;
        let options = AdminOptions::new().request_timeout(Some(self.timeout));
        self.make_dead_letters(&admin, &options, &dead_letters).await.map_err(trouble)?;
        let keeps = retention::longest(&admin, &options, &self.topics).await;
        let mut client = self.helper();
        client
            .set("enable.idempotence", "true")
            .set("message.timeout.ms", self.timeout.as_millis().to_string());
        let producer: FutureProducer = client.create().map_err(trouble)?;
        let context = Context::default();
        let assignments = context.assignments();
        let consumer = Arc::new(self.consumer(terms, context).map_err(trouble)?);
        let tracker = Arc::new(Tracker::new(i64::from(terms.prefetch * SPREAD)));
        let (outlet, deliveries) = mpsc::channel(terms.prefetch as usize);
        let tap = Partitions { consumer: Arc::clone(&consumer), assignments };
        let pump = tokio::spawn(Pump::new(tap, Arc::clone(&tracker), terms, outlet).run());
        let timeout = self.timeout;
        Ok((KafkaLink { consumer, tracker, producer, dead_letters, timeout, keeps, pump }, deliveries))
    }
}

fn trouble(error: KafkaError) -> Trouble {
    use RDKafkaErrorCode::{
        Authentication, GroupAuthorizationFailed, SaslAuthenticationFailed, TopicAuthorizationFailed,
    };
    let wrong =
        [Authentication, GroupAuthorizationFailed, SaslAuthenticationFailed, TopicAuthorizationFailed];
    match &error {
        KafkaError::ClientConfig(..) | KafkaError::ClientCreation(_) => Trouble::wrong(error),
        _ if error.rdkafka_error_code().is_some_and(|code| wrong.contains(&code)) => Trouble::wrong(error),
        _ => Trouble::away(error),
    }
}
