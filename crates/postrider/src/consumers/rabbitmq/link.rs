//! What is said to the server about messages in hand.

use lapin::options::{BasicAckOptions, BasicNackOptions, BasicPublishOptions};
use lapin::{Channel, Confirmation, Connection};
use std::time::Duration;
use tokio::task::JoinHandle;

use super::{message, trouble};
use crate::amqp::End;
use crate::consumer::{Grave, Link, Message, Trouble};

/// A connection to RabbitMQ.
pub struct RabbitMqLink {
    pub(super) connection: Connection,
    pub(super) channel: Channel,
    pub(super) dead_letters: Channel,
    /// That of the dead letters.
    pub(super) exchange: String,
    pub(super) timeout: Duration,
    pub(super) pump: JoinHandle<()>,
    /// Last: what is dropped before it may have something to say to the server.
    pub(super) _end: End,
}

impl Drop for RabbitMqLink {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

impl RabbitMqLink {
    async fn publish(&self, letter: &Message, grave: &Grave<'_>) -> lapin::Result<Confirmation> {
        let properties = message::dead_letter(letter, grave);
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let exchange = self.exchange.as_str().into();
        let channel = &self.dead_letters;
        channel.basic_publish(exchange, "".into(), options, &letter.body, properties).await?.await
    }
}

impl Link for RabbitMqLink {
    type Receipt = u64;

    async fn acknowledge(&self, receipt: &u64) -> Result<(), Trouble> {
        self.channel.basic_ack(*receipt, BasicAckOptions::default()).await.map_err(trouble)
    }

    async fn bury(&self, message: &Message, grave: &Grave<'_>) -> Result<(), Trouble> {
        let published = tokio::time::timeout(self.timeout, self.publish(message, grave)).await;
        let confirmed =
            published.map_err(|_| Trouble::away("RabbitMQ did not confirm a dead letter in time"))?;
        match confirmed.map_err(trouble)? {
            Confirmation::Ack(None) => Ok(()),
            // Returned: no queue took it.
            Confirmation::Ack(Some(_)) | Confirmation::Nack(_) | Confirmation::NotRequested => Err(
                Trouble::away(format!("no queue behind the exchange {:?} took a dead letter", self.exchange)),
            ),
        }
    }

    async fn give_back(&self, receipts: &[u64]) -> Result<(), Trouble> {
        let options = BasicNackOptions { requeue: true, ..BasicNackOptions::default() };
        for receipt in receipts {
            self.channel.basic_nack(*receipt, options).await.map_err(trouble)?;
        }
        Ok(())
    }

    async fn close(&self) {
        self.pump.abort();
        let _ = self.connection.close(200, "OK".into()).await;
    }
}
