//! A RabbitMQ queue that is the consumer's own.

mod link;
mod message;
mod pump;
mod queue;

use std::path::PathBuf;
use std::time::Duration;

use lapin::options::{BasicConsumeOptions, BasicQosOptions, ConfirmSelectOptions};
use lapin::types::FieldTable;
use lapin::{Connection, Error, ErrorKind};
use tokio::sync::mpsc;

use super::DEAD_LETTERS;
use crate::amqp::{self, ConnectError, End};
use crate::consumer::{Deliveries, Source, Terms, Trouble};
pub use lapin::ExchangeKind;
pub use link::RabbitMqLink;
use pump::Pump;

/// An exchange of a RabbitMQ server.
///
/// The consumer declares a durable queue of its own name and binds it; whoever publishes does not know. It is a quorum queue unless
/// [`classic`](Self::classic) is asked for. What stays in it for longer than a day, and what anybody rejects, goes through the exchange
/// `CONSUMER.dead` to the queue `CONSUMER.dead`, where dead letters are kept for a week.
#[derive(Clone)]
#[must_use = "a source does nothing until a consumer runs on it"]
pub struct RabbitMq {
    url: String,
    ca: Option<PathBuf>,
    exchange: String,
    kind: ExchangeKind,
    bindings: Vec<String>,
    is_quorum: bool,
    is_single: bool,
    keep: Duration,
    keep_dead: Duration,
    timeout: Duration,
}

impl RabbitMq {
    /// `amqp://USER:PASSWORD@HOST:PORT/VHOST`, over TLS with `amqps://`, or several with commas; and the exchange that events are published to, a fanout unless said otherwise. It is declared
    /// as the sink does it, so that either may come first.
    pub fn new(url: impl Into<String>, exchange: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            ca: None,
            exchange: exchange.into(),
            kind: ExchangeKind::Fanout,
            bindings: vec![String::new()],
            is_quorum: true,
            is_single: false,
            keep: Duration::from_hours(24),
            keep_dead: DEAD_LETTERS,
            timeout: Duration::from_secs(10),
        }
    }

    /// A file with the certificates of the authorities that are trusted over TLS, in PEM. Without it, those of the system.
    pub fn ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca = Some(file.into());
        self
    }

    /// What kind of exchange it is, and by which keys the queue is bound to it.
    pub fn bound<N: Into<String>>(mut self, kind: ExchangeKind, keys: impl IntoIterator<Item = N>) -> Self {
        self.kind = kind;
        self.bindings = keys.into_iter().map(Into::into).collect();
        self
    }

    /// A classic queue in place of a quorum queue.
    pub fn classic(mut self) -> Self {
        self.is_quorum = false;
        self
    }

    /// One process at a time gets messages, the others stand by: the order per key holds with any number of them.
    pub fn single_active(mut self) -> Self {
        self.is_single = true;
        self
    }

    /// How long a message may wait in the queue before it goes to the dead letters. Set when the queue is made.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }

    /// How long dead letters are kept. Set when their queue is made.
    pub fn keep_dead(mut self, keep: Duration) -> Self {
        self.keep_dead = keep;
        self
    }

    /// How long the server may take to answer.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// To the first server that lets it.
    async fn connect(&self) -> Result<(Connection, End), Trouble> {
        let servers = amqp::servers(&self.url).ok_or_else(|| Trouble::wrong(amqp::NO_ADDRESS))?;
        let mut last = Trouble::away("there is no server to connect to");
        for server in servers {
            match tokio::time::timeout(self.timeout, amqp::connect(server, self.ca.as_deref())).await {
                Ok(Ok(connected)) => return Ok(connected),
                Ok(Err(error)) => last = unreachable(error),
                Err(_) => last = Trouble::away("no server took a connection in time"),
            }
        }
        Err(last)
    }

    async fn consume(
        &self,
        terms: &Terms,
        connection: Connection,
        end: End,
    ) -> lapin::Result<(RabbitMqLink, Deliveries<u64>)> {
        queue::declare(&connection, self, &terms.consumer).await?;
        let dead_letters = connection.create_channel().await?;
        dead_letters.confirm_select(ConfirmSelectOptions::default()).await?;
        let channel = connection.create_channel().await?;
        let prefetch = u16::try_from(terms.prefetch).unwrap_or(u16::MAX);
        channel.basic_qos(prefetch, BasicQosOptions::default()).await?;
        let queue = terms.consumer.as_str().into();
        let consuming = channel
            .basic_consume(queue, "".into(), BasicConsumeOptions::default(), FieldTable::default())
            .await?;
        let (outlet, deliveries) = mpsc::channel(terms.prefetch as usize);
        let pump = tokio::spawn(Pump::new(channel.clone(), consuming, terms, outlet).run());
        let exchange = queue::dead(&terms.consumer);
        let timeout = self.timeout;
        Ok((
            RabbitMqLink { connection, channel, dead_letters, exchange, timeout, pump, _end: end },
            deliveries,
        ))
    }
}

impl Source for RabbitMq {
    type Link = RabbitMqLink;

    fn kind(&self) -> &'static str {
        "rabbitmq"
    }

    fn keeps(&self) -> Option<Duration> {
        // What nobody took in time lies with the dead letters, until somebody moves it back.
        Some(self.keep.saturating_add(self.keep_dead))
    }

    async fn open(&self, terms: &Terms) -> Result<(RabbitMqLink, Deliveries<u64>), Trouble> {
        let (connection, end) = self.connect().await?;
        match tokio::time::timeout(self.timeout, self.consume(terms, connection, end)).await {
            Ok(opened) => opened.map_err(trouble),
            Err(_) => Err(Trouble::away("RabbitMQ did not answer in time")),
        }
    }
}

/// Codes of AMQP 0.9.1 that no waiting helps against.
const ACCESS_REFUSED: u16 = 403;
const PRECONDITION_FAILED: u16 = 406;

fn unreachable(error: ConnectError) -> Trouble {
    match error {
        ConnectError::Server(error) => trouble(error),
        ConnectError::Socket(error) if error.kind() == std::io::ErrorKind::NotFound => Trouble::wrong(error),
        ConnectError::Socket(error) => Trouble::away(error),
    }
}

fn trouble(error: Error) -> Trouble {
    let is_wrong = match error.kind() {
        ErrorKind::ProtocolError(said) => [ACCESS_REFUSED, PRECONDITION_FAILED].contains(&said.get_id()),
        _ => false,
    };
    if is_wrong { Trouble::wrong(error) } else { Trouble::away(error) }
}
