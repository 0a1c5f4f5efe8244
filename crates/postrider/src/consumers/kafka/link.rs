//! What is said to the brokers about messages in hand.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::{CommitMode, Consumer as _, StreamConsumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{FutureProducer, FutureRecord};
use tokio::task::JoinHandle;

use super::context::Context;
use super::tracker::{Partition, Tracker};
use super::{message, trouble};
use crate::consumer::{Grave, Link, Message, Trouble};

/// By which a message is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaReceipt {
    pub(super) partition: Partition,
    pub(super) offset: i64,
}

/// A member of a group.
pub struct KafkaLink {
    pub(super) consumer: Arc<StreamConsumer<Context>>,
    pub(super) tracker: Arc<Tracker>,
    pub(super) producer: FutureProducer,
    pub(super) dead_letters: String,
    pub(super) timeout: Duration,
    /// How long the topics keep messages, if the cluster has told.
    pub(super) keeps: Option<Duration>,
    pub(super) pump: JoinHandle<()>,
}

impl Drop for KafkaLink {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

impl Link for KafkaLink {
    type Receipt = KafkaReceipt;

    fn keeps(&self) -> Option<Duration> {
        self.keeps
    }

    async fn acknowledge(&self, receipt: &KafkaReceipt) -> Result<(), Trouble> {
        let KafkaReceipt { partition, offset } = receipt;
        let Some(next) = self.tracker.settle(partition, *offset) else { return Ok(()) };
        // The offset that is stored is the last that is settled.
        match self.consumer.store_offset(&partition.0, partition.1, next - 1) {
            // The partition is somebody else's by now, who finds it in the inbox.
            Err(KafkaError::StoreOffset(RDKafkaErrorCode::State | RDKafkaErrorCode::UnknownPartition))
            | Ok(()) => Ok(()),
            Err(error) => Err(trouble(error)),
        }
    }

    async fn bury(&self, message: &Message, grave: &Grave<'_>) -> Result<(), Trouble> {
        let headers = message::dead_letter(message, grave);
        let mut letter: FutureRecord<'_, str, [u8]> =
            FutureRecord::to(&self.dead_letters).payload(message.body.as_slice()).headers(headers);
        if let Some(key) = &message.key {
            letter = letter.key(key.as_str());
        }
        self.producer.send(letter, self.timeout).await.map_err(|(error, _)| trouble(error))?;
        Ok(())
    }

    async fn give_back(&self, _: &[KafkaReceipt]) -> Result<(), Trouble> {
        // They lie behind what is committed.
        Ok(())
    }

    async fn close(&self) {
        self.pump.abort();
        let consumer = Arc::clone(&self.consumer);
        let committed = tokio::task::spawn_blocking(move || {
            // What was stored, not what was received.
            consumer.commit_consumer_state(CommitMode::Sync)?;
            consumer.unsubscribe();
            Ok::<_, KafkaError>(())
        });
        if let Ok(Err(error)) = committed.await
            && error.rdkafka_error_code() != Some(RDKafkaErrorCode::NoOffset)
        {
            tracing::debug!(%error, "the last offsets were not committed; what they are about is in the inbox");
        }
    }
}
