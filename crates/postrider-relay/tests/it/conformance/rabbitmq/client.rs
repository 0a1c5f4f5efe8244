//! Somebody else at the same server: makes queues and reads them.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use futures_util::StreamExt as _;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicGetOptions, ExchangeDeclareOptions, ExchangeDeleteOptions,
    QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};

/// Arguments of a queue: texts and numbers.
pub type Table = &'static [(&'static str, Argument)];

#[derive(Clone, Copy)]
pub enum Argument {
    Text(&'static str),
    Number(i32),
}

pub const CLASSIC: Table = &[];
pub const QUORUM: Table = &[("x-queue-type", Argument::Text("quorum"))];

pub struct Client {
    connection: Connection,
    pub channel: Channel,
}

/// A message that was read.
pub struct Read {
    pub id: String,
    pub routing_key: String,
    pub properties: BasicProperties,
}

impl Client {
    pub async fn connect(url: &str) -> Result<Self> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        Ok(Self { connection, channel })
    }

    pub async fn close(self) {
        let _ = self.connection.close(200, "OK".into()).await;
    }

    pub async fn exchange(&self, name: &str, kind: ExchangeKind) -> Result<()> {
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        Ok(self.channel.exchange_declare(name.into(), kind, options, FieldTable::default()).await?)
    }

    pub async fn delete_exchange(&self, name: &str) -> Result<()> {
        Ok(self.channel.exchange_delete(name.into(), ExchangeDeleteOptions::default()).await?)
    }

    /// A durable one.
    pub async fn queue(&self, name: &str, arguments: Table) -> Result<()> {
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        self.queue_as(name, durable, arguments).await
    }

    pub async fn queue_as(&self, name: &str, options: QueueDeclareOptions, arguments: Table) -> Result<()> {
        let arguments: BTreeMap<ShortString, AMQPValue> = arguments
            .iter()
            .map(|(name, value)| {
                let value = match value {
                    Argument::Text(text) => AMQPValue::LongString((*text).into()),
                    Argument::Number(number) => AMQPValue::LongInt(*number),
                };
                ((*name).into(), value)
            })
            .collect();
        self.channel.queue_declare(name.into(), options, arguments.into()).await?;
        Ok(())
    }

    pub async fn bind(&self, queue: &str, exchange: &str, key: &str) -> Result<()> {
        let (options, none) = (QueueBindOptions::default(), FieldTable::default());
        Ok(self.channel.queue_bind(queue.into(), exchange.into(), key.into(), options, none).await?)
    }

    /// Takes out everything there is, in order.
    pub async fn drain(&self, queue: &str) -> Result<Vec<Read>> {
        let mut read = self.drain_counted(queue).await?;
        // What came since, or was on its way to the reader when it stopped.
        let channel = self.connection.create_channel().await?;
        while let Some(message) = channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await? {
            read.push(one(&message.delivery)?);
        }
        Ok(read)
    }

    /// As many as the queue says that it has, on a channel of its own: what was sent beyond that goes back when it is closed.
    async fn drain_counted(&self, queue: &str) -> Result<Vec<Read>> {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let found = self.channel.queue_declare(queue.into(), passive, FieldTable::default()).await?;
        let count = usize::try_from(found.message_count())?;
        let mut read = Vec::with_capacity(count);
        let channel = self.connection.create_channel().await?;
        let (options, none) = (BasicConsumeOptions::default(), FieldTable::default());
        let mut consumer = channel.basic_consume(queue.into(), "reader".into(), options, none).await?;
        while read.len() < count {
            let delivery = consumer.next().await.context("the queue ended")??;
            read.push(one(&delivery)?);
            // A quorum queue sends 2,000 at most that were not acknowledged.
            if read.len() == count || read.len() % 500 == 0 {
                delivery.ack(BasicAckOptions { multiple: true }).await?;
            }
        }
        channel.close(200, "OK".into()).await?;
        Ok(read)
    }

    /// The first so many.
    pub async fn take(&self, queue: &str, count: usize) -> Result<Vec<Read>> {
        let mut read = Vec::with_capacity(count);
        while read.len() < count {
            let got = self.channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await?;
            match got {
                Some(message) => read.push(one(&message.delivery)?),
                None => break,
            }
        }
        Ok(read)
    }
}

fn one(delivery: &Delivery) -> Result<Read> {
    let id = delivery.properties.message_id().as_ref().context("a message without an id")?;
    Ok(Read {
        id: id.to_string(),
        routing_key: delivery.routing_key.to_string(),
        properties: delivery.properties.clone(),
    })
}
