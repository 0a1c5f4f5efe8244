//! Messages of Kafka topics.

mod address;
mod client;
mod config;
mod context;
mod durability;
mod error;
mod headers;
mod opened;
mod partition;
mod producer;
mod round;
mod tally;
mod topics;

pub use config::{Compression, CreateTopics, KafkaConfig, Mechanism};
pub(super) use durability::durability;
pub(super) use topics::check_topic;

use super::rounds::{Stops, rounds};
use crate::sink::{BoxFuture, Message, Outcome, Report, Sink, Unavailable};
use opened::Opened;
use producer::Producer;
use topics::Topics;

/// Where events go by default: a topic for each first part of a type.
pub(super) const ROUTE: &str = "{type.0}";

/// Sends each event to its partition and waits until all the brokers that keep it have confirmed it.
///
/// The producer is idempotent: while it lives, a partition has its messages in order, each once, whatever happens to connections and
/// brokers. It lives until it fails for good, or does not get its answers in time. Then another takes over what is not confirmed.
pub struct KafkaSink {
    config: KafkaConfig,
    producer: Option<Producer>,
    topics: Topics,
    /// By this producer.
    opened: Opened,
    /// The most bytes in one set. Brokers may take less than they do by default.
    set: usize,
    /// For events without a key: they go to one partition per batch, another each time.
    turn: u32,
    /// A delivery was dropped in its midst: the producer may have some of it.
    is_interrupted: bool,
}

impl KafkaSink {
    /// Connects.
    pub async fn open(config: KafkaConfig) -> Result<Self, Unavailable> {
        let producer = Producer::open(&config, client::SET).await?;
        Ok(Self::new(config, producer))
    }

    fn new(config: KafkaConfig, producer: Producer) -> Self {
        Self {
            config,
            producer: Some(producer),
            topics: Topics::default(),
            opened: Opened::default(),
            set: client::SET,
            turn: 0,
            is_interrupted: false,
        }
    }

    async fn deliver_all(
        &mut self,
        batch: &[Message<'_>],
        outcomes: &mut [Outcome],
    ) -> Result<(), Unavailable> {
        let mut stops = Stops::default();
        self.turn = self.turn.wrapping_add(1);
        for round in rounds(batch) {
            self.carry(batch, &round, outcomes, &mut stops).await?;
        }
        Ok(())
    }

    /// Ends the producer, and everything that it still has.
    async fn give_up(&mut self) {
        self.opened.clear();
        if let Some(producer) = self.producer.take() {
            producer.end().await;
        }
    }
}

impl Sink for KafkaSink {
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report> {
        Box::pin(async move {
            if std::mem::replace(&mut self.is_interrupted, true) {
                self.give_up().await;
            }
            let mut outcomes = vec![Outcome::NotSent; batch.len()];
            let unavailable = self.deliver_all(batch, &mut outcomes).await.err();
            if unavailable.is_some() {
                self.give_up().await;
            }
            self.is_interrupted = false;
            Report { outcomes, unavailable }
        })
    }

    fn close(mut self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        // Nothing is in flight between two batches.
        Box::pin(async move {
            self.give_up().await;
            Ok(())
        })
    }
}
