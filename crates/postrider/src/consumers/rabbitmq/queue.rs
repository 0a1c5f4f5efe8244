//! What is the consumer's own: its queue, and where its dead letters are kept.

use std::time::Duration;

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, Error, ErrorKind, ExchangeKind};

use super::{ACCESS_REFUSED, RabbitMq};

/// Attempts are counted by us: the server counts for everything that was in hand when a process ended, so a limit of its own would give
/// up neighbours. It has one of 20 from version 4 on, and older ones do not know of -1.
const NO_LIMIT: i32 = 1_000_000_000;

/// The exchange and the queue of the dead letters of a consumer.
pub(super) fn dead(consumer: &str) -> String {
    format!("{consumer}.dead")
}

pub(super) async fn declare(connection: &Connection, source: &RabbitMq, consumer: &str) -> lapin::Result<()> {
    declare_exchange(connection, source).await?;
    let channel = connection.create_channel().await?;
    let dead = dead(consumer);
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    channel
        .exchange_declare(dead.as_str().into(), ExchangeKind::Fanout, durable, FieldTable::default())
        .await?;
    let kept = arguments(source, source.keep_dead);
    declare_queue(&channel, &dead, kept).await?;
    bind(&channel, &dead, &dead, "").await?;

    let mut own = arguments(source, source.keep);
    set(&mut own, "x-dead-letter-exchange", AMQPValue::LongString(dead.into()));
    if source.is_quorum {
        set(&mut own, "x-delivery-limit", AMQPValue::LongInt(NO_LIMIT));
        // Else what expires is gone if the server ends before it has arrived there. It asks for the other.
        set(&mut own, "x-dead-letter-strategy", AMQPValue::LongString("at-least-once".into()));
        set(&mut own, "x-overflow", AMQPValue::LongString("reject-publish".into()));
    }
    if source.is_single {
        set(&mut own, "x-single-active-consumer", AMQPValue::Boolean(true));
    }
    declare_queue(&channel, consumer, own).await?;
    for key in &source.bindings {
        bind(&channel, consumer, &source.exchange, key).await?;
    }
    channel.close(200, "OK".into()).await
}

/// On a channel of its own: one on which something failed is closed. Who may not declare it can bind to one that is there.
async fn declare_exchange(connection: &Connection, source: &RabbitMq) -> lapin::Result<()> {
    let declare = async |passive: bool| {
        let channel = connection.create_channel().await?;
        let options = ExchangeDeclareOptions { durable: true, passive, ..ExchangeDeclareOptions::default() };
        let name = source.exchange.as_str().into();
        channel.exchange_declare(name, source.kind.clone(), options, FieldTable::default()).await?;
        channel.close(200, "OK".into()).await
    };
    match declare(false).await {
        Err(error) if is_forbidden(&error) => declare(true).await,
        declared => declared,
    }
}

fn is_forbidden(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(said) if said.get_id() == ACCESS_REFUSED)
}

fn arguments(source: &RabbitMq, keep: Duration) -> FieldTable {
    let mut arguments = FieldTable::default();
    let kind = if source.is_quorum { "quorum" } else { "classic" };
    set(&mut arguments, "x-queue-type", AMQPValue::LongString(kind.into()));
    let keep = i64::try_from(keep.as_millis()).unwrap_or(i64::MAX);
    set(&mut arguments, "x-message-ttl", AMQPValue::LongLongInt(keep));
    arguments
}

fn set(arguments: &mut FieldTable, name: &'static str, value: AMQPValue) {
    arguments.insert(name.into(), value);
}

async fn declare_queue(channel: &Channel, name: &str, arguments: FieldTable) -> lapin::Result<()> {
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(name.into(), options, arguments).await?;
    Ok(())
}

async fn bind(channel: &Channel, queue: &str, exchange: &str, key: &str) -> lapin::Result<()> {
    let options = QueueBindOptions::default();
    channel.queue_bind(queue.into(), exchange.into(), key.into(), options, FieldTable::default()).await
}
