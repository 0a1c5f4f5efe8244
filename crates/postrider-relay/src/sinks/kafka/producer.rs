//! One producer: the client library, its threads, and what is on its way.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::{BaseRecord, Producer as _, PurgeConfig, ThreadedProducer};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout_at};

use super::client;
use super::config::KafkaConfig;
use super::context::Context;
use super::error::{Trouble, silent, wrong};
use super::headers::headers;
use super::tally::Answer;
use crate::sink::{Message, Unavailable};

/// The client library's, with its own threads.
pub(super) type Threaded = ThreadedProducer<Context>;

/// How long one question to the brokers is waited for before it is looked what may be wrong.
const LOOK: Duration = Duration::from_millis(500);

/// A producer that has reached a broker.
pub(super) struct Producer {
    /// Only while it is dropped there is none.
    threaded: Option<Arc<Threaded>>,
    context: Arc<Context>,
}

impl Producer {
    /// Connects. `set` is the most bytes that go to a partition in one set.
    pub(super) async fn open(config: &KafkaConfig, set: usize) -> Result<Self, Unavailable> {
        let producer = Self::start(config, set).await?;
        let deadline = Instant::now() + config.timeout.0;
        producer.ask(deadline, |threaded, patience| threaded.client().fetch_cluster_id(patience)).await?;
        Ok(producer)
    }

    /// One that has not reached anybody yet.
    async fn start(config: &KafkaConfig, set: usize) -> Result<Self, Unavailable> {
        let settings = client::producer(config, set)?;
        // It reads certificates, and starts threads.
        let made =
            spawn_blocking(move || settings.create_with_context::<_, Threaded>(Context::default())).await;
        let threaded = made.map_err(|error| wrong(error.to_string()))?;
        // The settings are ours; what can be wrong are the files that they name.
        let threaded = threaded.map_err(|error| wrong(format!("cannot set up the client: {error}")))?;
        let context = Arc::clone(threaded.context());
        Ok(Self { threaded: Some(Arc::new(threaded)), context })
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    /// Asks the brokers something until they answer, the time is over, or it is clear that they will not.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        deadline: Instant,
        question: impl Fn(&Threaded, Duration) -> Option<T> + Send + Sync + 'static,
    ) -> Result<T, Unavailable> {
        let question = Arc::new(question);
        let mut patience = LOOK;
        loop {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            let threaded = self.threaded.clone();
            let (question, slice) = (Arc::clone(&question), patience.min(left));
            let asked =
                spawn_blocking(move || threaded.and_then(|threaded| question(&threaded, slice))).await;
            if let Ok(Some(answer)) = asked {
                return Ok(answer);
            }
            if Instant::now() >= deadline || self.context.has_trouble(Trouble::leaves_nobody) {
                return Err(self.why_silent("Kafka did not answer in time"));
            }
            // It may have failed at once, with the connection that it went by.
            sleep(LOOK / 10).await;
            patience *= 2;
        }
    }

    /// Whether it has stopped for good. Asked of the library, whose word of it may come behind the answers.
    pub(super) fn is_fatal(&self) -> bool {
        let threaded = self.threaded.as_ref();
        self.context.is_fatal() || threaded.is_none_or(|threaded| threaded.client().fatal_error().is_some())
    }

    /// A batch of so many messages begins.
    pub(super) fn begin(&self, messages: usize) {
        // Of long ago.
        let _ = self.context.take_trouble();
        self.context.tally().begin(messages);
    }

    /// Hands a message to the library, which copies it. Waits where its queue is full.
    pub(super) async fn hand_over(
        &self,
        message: &Message<'_>,
        partition: i32,
        place: usize,
        deadline: Instant,
    ) -> Result<(), RDKafkaErrorCode> {
        loop {
            match self.send(message, partition, place) {
                Err(RDKafkaErrorCode::QueueFull) => {
                    self.context.tally().want_room();
                    if timeout_at(deadline.into(), self.context.news.notified()).await.is_err() {
                        return Err(RDKafkaErrorCode::TimedOutQueue);
                    }
                }
                handed_over => return handed_over,
            }
        }
    }

    fn send(&self, message: &Message<'_>, partition: i32, place: usize) -> Result<(), RDKafkaErrorCode> {
        let Some(threaded) = &self.threaded else { return Err(RDKafkaErrorCode::Fatal) };
        let ticket = self.context.tally().ticket(place).number();
        let mut record: BaseRecord<'_, str, [u8], usize> =
            BaseRecord::with_opaque_to(&message.destination, ticket)
                .partition(partition)
                .payload(message.body.as_slice())
                .headers(headers(message));
        record.key = message.record.key.as_deref();
        threaded.send(record).map_err(|(error, _)| {
            self.context.tally().take_back();
            error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown)
        })
    }

    /// Why there is no confirmation.
    pub(super) fn why_unconfirmed(&self) -> Unavailable {
        self.why_silent("Kafka did not confirm in time")
    }

    fn why_silent(&self, what: &str) -> Unavailable {
        self.context.take_trouble().map_or_else(|| silent(what), |trouble| trouble.in_silence(what))
    }

    /// Waits until everything that was sent is answered, the time is over, or waiting is of no use. What is known then.
    pub(super) async fn answers(&self, deadline: Instant) -> Vec<Answer> {
        self.context.tally().complete();
        loop {
            if self.context.tally().is_answered() || self.context.has_trouble(Trouble::is_lasting) {
                break;
            }
            let news = timeout_at(deadline.into(), self.context.news.notified());
            if self.is_fatal() {
                // What is on its way may still be confirmed. What comes back to the queue is not sent any more, and not answered either.
                self.purge(PurgeConfig::default().queue());
                tokio::select! {
                    news = news => if news.is_err() { break },
                    () = sleep(LOOK / 10) => {}
                }
            } else if news.await.is_err() {
                break;
            }
        }
        self.context.tally().answers()
    }

    fn purge(&self, what: PurgeConfig) {
        if let Some(threaded) = &self.threaded {
            threaded.purge(what);
        }
    }

    /// Drops whatever it still has, and ends its connections. They must not send anything behind those of the next producer.
    pub(super) async fn end(mut self) {
        let threaded = self.threaded.take();
        // Nothing is left to be done if it panics.
        let _ = spawn_blocking(move || drop(threaded)).await;
    }
}

/// The library waits for its threads, and others have work for this one.
impl Drop for Producer {
    fn drop(&mut self) {
        if let Some(threaded) = self.threaded.take() {
            std::thread::spawn(move || drop(threaded));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::KafkaSink;
    use super::*;

    /// Not only out of sight: its threads have ended, so that nothing it still has is sent behind what the next one sends.
    #[tokio::test]
    async fn a_producer_that_was_given_up_is_gone() {
        // Nobody listens there.
        let config = KafkaConfig::new("kafka://127.0.0.1:1");
        let producer = Producer::start(&config, client::SET).await.unwrap();
        let context = Arc::clone(&producer.context);
        let mut sink = KafkaSink::new(config, producer);
        sink.give_up().await;
        // The library lets go of it when it has ended.
        assert_eq!(Arc::strong_count(&context), 1);
    }
}
