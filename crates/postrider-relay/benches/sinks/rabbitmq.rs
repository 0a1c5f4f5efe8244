//! `RabbitMQ`, with a durable queue. The bare loop publishes persistent, mandatory messages and waits for confirmations.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions, QueuePurgeOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ExchangeKind};
use postrider_testkit::bench::{Bench, Figure, Goal};
use postrider_testkit::{Broker as Server, PostgresServer, RabbitMq};
use tokio::task::JoinSet;

use crate::backlog::Backlog;
use crate::bare::{Bare, CONTENT_TYPE, TYPE};
use crate::compare::{Broker, Variant};
use crate::outage::{Heard, Listener};
use crate::relay::Relay;

const QUEUE: &str = "bench";
const EXCHANGE: &str = "events";

pub(crate) struct Measured(Server<RabbitMq>);

impl Measured {
    async fn connection(&self) -> Result<Connection> {
        Ok(Connection::connect(&self.0.url(), ConnectionProperties::default()).await?)
    }

    /// An exchange, and the queue bound to it with this key.
    async fn declare(&self, exchange: &str, kind: ExchangeKind, key: &str) -> Result<()> {
        let channel = self.connection().await?.create_channel().await?;
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        channel.exchange_declare(exchange.into(), kind, durable, FieldTable::default()).await?;
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(QUEUE.into(), durable, FieldTable::default()).await?;
        let bind = QueueBindOptions::default();
        channel.queue_bind(QUEUE.into(), exchange.into(), key.into(), bind, FieldTable::default()).await?;
        Ok(())
    }
}

impl Broker for Measured {
    const NAME: &'static str = "rabbitmq";
    const GOAL: f64 = 0.9;
    const VARIANTS: &'static [Variant] = &[
        Variant::new("1 channel", 1, 1000),
        Variant::new("2 channels", 2, 500),
        Variant::new("4 channels", 4, 250),
        Variant::new("8 channels", 8, 125),
    ];

    async fn start() -> Result<Self> {
        let broker = Self(Server::private(RabbitMq::new()).await?);
        broker.declare(EXCHANGE, ExchangeKind::Fanout, "").await?;
        Ok(broker)
    }

    fn sink(&self) -> String {
        format!("rabbitmq: {{ url: '{}' }}", self.0.url())
    }

    fn url(&self) -> String {
        self.0.url()
    }

    async fn empty(&self) -> Result<()> {
        let channel = self.connection().await?.create_channel().await?;
        channel.queue_purge(QUEUE.into(), QueuePurgeOptions::default()).await?;
        Ok(())
    }

    async fn count(&self) -> Result<u64> {
        let channel = self.connection().await?.create_channel().await?;
        let look = QueueDeclareOptions { passive: true, durable: true, ..QueueDeclareOptions::default() };
        let queue = channel.queue_declare(QUEUE.into(), look, FieldTable::default()).await?;
        Ok(u64::from(queue.message_count()))
    }

    async fn publish(&self, variant: &Variant, messages: Bare) -> Result<()> {
        let connection = self.connection().await?;
        let mut publishers = JoinSet::new();
        for messages in messages.split(variant.channels) {
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            publishers.spawn(publish(channel, messages, variant.in_flight));
        }
        while let Some(ended) = publishers.join_next().await {
            ended??;
        }
        // Everything is confirmed; its channels may be closing by themselves.
        let _ = connection.close(200, "OK".into()).await;
        Ok(())
    }
}

async fn publish(channel: Channel, messages: Bare, most: usize) -> Result<()> {
    let options = BasicPublishOptions { mandatory: true, immediate: false };
    let mut under_way = FuturesUnordered::new();
    for message in messages {
        if under_way.len() == most {
            confirmed(&under_way.next().await.context("nothing is under way")??)?;
        }
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_content_type(CONTENT_TYPE.into())
            .with_type(TYPE.into())
            .with_message_id(message.id.into());
        let confirmation =
            channel.basic_publish(EXCHANGE.into(), TYPE.into(), options, &message.body, properties).await?;
        under_way.push(confirmation);
    }
    while let Some(confirmation) = under_way.next().await {
        confirmed(&confirmation?)?;
    }
    Ok(())
}

fn confirmed(confirmation: &Confirmation) -> Result<()> {
    ensure!(matches!(confirmation, Confirmation::Ack(None)), "it was not taken: {confirmation:?}");
    Ok(())
}

impl Listener for Measured {
    async fn listen(&self, heard: Heard) -> Result<()> {
        let connection = self.connection().await?;
        let channel = connection.create_channel().await?;
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let mut messages =
            channel.basic_consume(QUEUE.into(), "bench".into(), options, FieldTable::default()).await?;
        while let Some(message) = messages.next().await {
            heard.note(Self::NAME, &message?.data);
        }
        anyhow::bail!("RabbitMQ has closed the channel")
    }

    async fn crash(&self) -> Result<()> {
        self.0.crash().await
    }

    async fn revive(&self) -> Result<()> {
        self.0.start().await
    }
}

/// One in ten has nowhere to go: it is parked, and everything else is in the queue.
pub(crate) async fn unroutable(server: &PostgresServer, bench: &mut Bench) -> Result<()> {
    const NAME: &str = "rabbitmq 3 wrong marks, 10 % unroutable";
    if !bench.wants(NAME) {
        return Ok(());
    }
    let broker = Measured::start().await?;
    broker.declare("mixed", ExchangeKind::Direct, TYPE).await?;
    let events = bench.size(200_000, 5_000);
    let backlog = Backlog::fill(server, events).await?;
    let lost = "update postrider.events set type = 'nobody.listens' where seq % 10 = 0";
    let mut connection = backlog.database.connect().await?;
    let unroutable = sqlx::query(lost).execute(&mut connection).await?.rows_affected();
    let sink = format!(
        "rabbitmq: {{ url: '{}', exchange: mixed, kind: direct }}, route: '{{type}}', ordering: relaxed, retry: {{ max_attempts: 1 }}",
        broker.0.url()
    );
    Relay::new(&backlog.database)?.drain(&sink, events).await?;
    let parked: Vec<(String, i64)> = sqlx::query_as("select type, count(*) from postrider.parked group by 1")
        .fetch_all(&mut connection)
        .await?;
    let parked_of = |is_lost: bool| {
        let of = parked.iter().filter(|(name, _)| (name == "nobody.listens") == is_lost);
        u64::try_from(of.map(|(_, count)| *count).sum::<i64>()).unwrap_or_default()
    };
    // A moment: the queue counts what it has confirmed.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let queued = broker.count().await?;
    let routable = u64::from(events) - unroutable;
    let wrong = unroutable.abs_diff(parked_of(true)) + parked_of(false) + routable.abs_diff(queued);
    println!("{events} events, {unroutable} unroutable: {} parked, {queued} in the queue", parked_of(true));
    bench.add(Figure::measured(NAME, "events", f64::from(u32::try_from(wrong)?)).goal(Goal::AtMost(0.0)));
    Ok(())
}
