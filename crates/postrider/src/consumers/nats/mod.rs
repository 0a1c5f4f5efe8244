//! NATS `JetStream`, by a durable pull consumer.

mod connection;
mod link;
mod message;
mod pump;

use std::path::PathBuf;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream;
use tokio::sync::mpsc;

use super::DEAD_LETTERS;
use crate::consumer::{Deliveries, Source, Terms, Trouble};
pub use link::{NatsLink, NatsReceipt};
use pump::Pump;

/// A stream of `JetStream`.
///
/// The consumer is a durable pull consumer of its name, which any number of processes share. Dead letters are kept in the stream
/// `CONSUMER-dead`, under the subject `dead.CONSUMER`; the message itself is terminated, which the server announces under
/// `$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.STREAM.CONSUMER`.
#[derive(Clone)]
#[must_use = "a source does nothing until a consumer runs on it"]
pub struct Nats {
    url: String,
    credentials: Option<PathBuf>,
    ca: Option<PathBuf>,
    stream: String,
    subject: String,
    start: DeliverPolicy,
    ack_wait: Duration,
    keep_dead: Duration,
    replicas: usize,
    timeout: Duration,
}

impl Nats {
    /// `nats://USER:PASSWORD@HOST:PORT`, or several with commas; over TLS with `tls://`; and the stream that the events are in.
    pub fn new(url: impl Into<String>, stream: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            credentials: None,
            ca: None,
            stream: stream.into(),
            subject: String::new(),
            start: DeliverPolicy::All,
            ack_wait: Duration::from_secs(30),
            keep_dead: DEAD_LETTERS,
            replicas: 1,
            timeout: Duration::from_secs(10),
        }
    }

    /// Only what has this subject, `events.order.>`.
    pub fn subject(mut self, subject: impl Into<String>) -> Self {
        self.subject = subject.into();
        self
    }

    /// A file with a user's JWT and seed, as `nsc` writes it.
    pub fn credentials(mut self, file: impl Into<PathBuf>) -> Self {
        self.credentials = Some(file.into());
        self
    }

    /// A file with the certificates of the authorities that are trusted over TLS, in PEM. Without it, those of the system.
    pub fn ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca = Some(file.into());
        self
    }

    /// A consumer that is new begins with what is published from now on, in place of all that the stream has.
    pub fn from_now(mut self) -> Self {
        self.start = DeliverPolicy::New;
        self
    }

    /// How long a process may say nothing of a message before it is delivered to another. A process that works on one says so three times
    /// as often.
    pub fn ack_wait(mut self, silence: Duration) -> Self {
        self.ack_wait = silence.max(Duration::from_millis(30));
        self
    }

    /// How long each dead letter is kept, and on how many servers.
    pub fn dead_letters(mut self, keep: Duration, replicas: usize) -> Self {
        (self.keep_dead, self.replicas) = (keep, replicas);
        self
    }

    /// How long the server may take to answer.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    fn consumer(&self, terms: &Terms) -> pull::Config {
        pull::Config {
            durable_name: Some(terms.consumer.clone()),
            deliver_policy: self.start,
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.ack_wait,
            filter_subject: self.subject.clone(),
            // Attempts are counted by us: the server counts for everything that was in hand when a process ended.
            max_deliver: -1,
            max_ack_pending: 20_000,
            ..pull::Config::default()
        }
    }

    fn dead_letters_of(&self, consumer: &str) -> stream::Config {
        stream::Config {
            name: format!("{consumer}-dead"),
            subjects: vec![subject(consumer)],
            storage: stream::StorageType::File,
            max_age: self.keep_dead,
            num_replicas: self.replicas,
            ..stream::Config::default()
        }
    }
}

fn subject(consumer: &str) -> String {
    format!("dead.{consumer}")
}

impl Source for Nats {
    type Link = NatsLink;

    fn kind(&self) -> &'static str {
        "nats"
    }

    async fn open(&self, terms: &Terms) -> Result<(NatsLink, Deliveries<NatsReceipt>), Trouble> {
        if terms.consumer.contains(|c: char| ".*>/\\".contains(c) || c.is_whitespace()) {
            return Err(Trouble::wrong(
                "a name of a consumer in NATS has no blanks, dots, stars, slashes or >",
            ));
        }
        let (context, down) = connection::connect(self).await?;
        let stream = context
            .get_stream(&self.stream)
            .await
            .map_err(|error| connection::no_stream(error, &self.stream))?;
        let consumer = stream.create_consumer(self.consumer(terms)).await.map_err(Trouble::away)?;
        let dead_letters = self.dead_letters_of(&terms.consumer);
        context.get_or_create_stream(dead_letters).await.map_err(Trouble::away)?;
        let (outlet, deliveries) = mpsc::channel(terms.prefetch as usize);
        let pump = Pump::new(context.clone(), consumer, terms, down, outlet);
        let max_age = stream.cached_info().config.max_age;
        let link = NatsLink::new(context, self, terms, max_age, tokio::spawn(pump.run()));
        Ok((link, deliveries))
    }
}
