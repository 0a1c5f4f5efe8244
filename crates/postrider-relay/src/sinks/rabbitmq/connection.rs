//! One connection, its channels, and the exchange that it was made for.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{FutureExt as _, Stream, StreamExt as _};
use lapin::options::{ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::types::FieldTable;
use lapin::uri::AMQPUri;
use lapin::{Channel, Event};
use postrider::amqp::{self, ConnectError, End};
use tokio::time::timeout;

use super::config::{ExchangeKind, RabbitMqConfig};
use super::error::{has_other_arguments, is_forbidden, is_unreadable, no_exchange, silent, unavailable};
use crate::sink::{Unavailable, UnavailableKind};

/// A connection that is ready.
pub(super) struct Connection {
    inner: lapin::Connection,
    channels: Vec<Channel>,
    events: Pin<Box<dyn Stream<Item = Event> + Send>>,
    limit: Limit,
    /// A delivery was given up in its midst: some of it is still to be confirmed.
    is_interrupted: bool,
    /// Last: what is dropped before it may have something to say to the server, and this has the last word.
    _end: End,
}

/// The most bytes that the server takes, as far as it has told.
#[derive(Default)]
pub(super) struct Limit(AtomicU64);

impl Limit {
    pub(super) fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|most| *most > 0)
    }

    pub(super) fn learn(&self, most: u64) {
        self.0.store(most, Ordering::Relaxed);
    }
}

/// What a delivery works with.
pub(super) struct Parts<'a> {
    pub(super) inner: &'a lapin::Connection,
    pub(super) channels: &'a mut [Channel],
    pub(super) events: &'a mut Pin<Box<dyn Stream<Item = Event> + Send>>,
    pub(super) limit: &'a Limit,
    pub(super) is_interrupted: &'a mut bool,
}

impl Connection {
    /// Connects to the first server that lets it, and declares the exchange.
    pub(super) async fn open(config: &RabbitMqConfig) -> Result<Self, Unavailable> {
        let servers = amqp::servers(&config.url)
            .ok_or_else(|| Unavailable::new(UnavailableKind::Missing, amqp::NO_ADDRESS))?;
        let mut trouble = None;
        for server in servers {
            match timeout(config.timeout.0, Self::to(server, config)).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(why)) => trouble = Some(why),
                Err(_) => trouble = Some(silent("no server took a connection in time")),
            }
        }
        Err(trouble.unwrap_or_else(|| silent("there is no server to connect to")))
    }

    async fn to(server: AMQPUri, config: &RabbitMqConfig) -> Result<Self, Unavailable> {
        let (inner, end) = amqp::connect(server, config.ca.as_deref()).await.map_err(unreachable)?;
        let events: Pin<Box<dyn Stream<Item = Event> + Send>> = Box::pin(inner.events_listener());
        declare(&inner, config).await?;
        let mut channels = Vec::with_capacity(usize::from(config.channels));
        for _ in 0..config.channels {
            channels.push(channel(&inner).await.map_err(unavailable)?);
        }
        Ok(Self { inner, channels, events, limit: Limit::default(), is_interrupted: false, _end: end })
    }

    /// Whether it still is one, as far as anybody has noticed.
    pub(super) fn is_open(&self) -> bool {
        self.inner.status().connected() && self.channels.iter().all(|channel| channel.status().connected())
    }

    /// Whether it may still be asked to confirm what was given up.
    pub(super) fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }

    /// Why the server wants nothing now, if it said so.
    pub(super) fn blocked(&mut self) -> Option<Unavailable> {
        let mut reason = String::new();
        // What it has said since the last time.
        while let Some(Some(event)) = self.events.next().now_or_never() {
            if let Event::ConnectionBlocked(why) = event {
                reason = why;
            }
        }
        self.inner.status().blocked().then(|| is_blocked(&reason))
    }

    pub(super) fn parts(&mut self) -> Parts<'_> {
        let Self { inner, channels, events, limit, is_interrupted, _end } = self;
        Parts { inner, channels, events, limit, is_interrupted }
    }

    /// Says goodbye, to a server that listens.
    pub(super) async fn close(self, config: &RabbitMqConfig) {
        let _ = timeout(config.timeout.0, self.inner.close(200, "OK".into())).await;
    }
}

/// Waits until the server wants nothing any more.
pub(super) async fn until_blocked(events: &mut Pin<Box<dyn Stream<Item = Event> + Send>>) -> Unavailable {
    while let Some(event) = events.next().await {
        if let Event::ConnectionBlocked(reason) = event {
            return is_blocked(&reason);
        }
    }
    std::future::pending().await
}

fn is_blocked(reason: &str) -> Unavailable {
    let why = if reason.is_empty() { "an alarm" } else { reason };
    Unavailable::new(UnavailableKind::Blocked, format!("RabbitMQ takes no messages now: {why}"))
}

/// A channel that confirms.
pub(super) async fn channel(connection: &lapin::Connection) -> lapin::Result<Channel> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}

fn unreachable(error: ConnectError) -> Unavailable {
    match error {
        // What comes from a port with TLS, in place of a greeting, is an alert.
        ConnectError::Server(error) if is_unreadable(&error) => {
            Unavailable::new(UnavailableKind::Connection, format!("{error}; it may speak TLS: amqps://"))
        }
        ConnectError::Server(error) => unavailable(error),
        // What rustls says when something else answers: the port without TLS begins with a greeting of its own.
        ConnectError::Socket(error) if error.to_string().contains("InvalidContentType") => {
            Unavailable::new(UnavailableKind::Connection, format!("{error}; the port may not speak TLS"))
        }
        ConnectError::Socket(error) => {
            let is_file = error.kind() == std::io::ErrorKind::NotFound;
            let kind = if is_file { UnavailableKind::Missing } else { UnavailableKind::Connection };
            Unavailable::new(kind, error)
        }
    }
}

/// Makes the exchange if it is not there, and finds out whether it is the one that is meant. A user who may not declare anything can
/// still publish to one that is there, and so can everybody where it was declared with more than we ask for.
async fn declare(connection: &lapin::Connection, config: &RabbitMqConfig) -> Result<(), Unavailable> {
    let wanted = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    match declare_as(connection, config, wanted).await {
        Err(error) if is_forbidden(&error) || has_other_arguments(&error) => {
            let only_looking = ExchangeDeclareOptions { passive: true, ..wanted };
            declare_as(connection, config, only_looking).await
        }
        declared => declared,
    }
    .map_err(|error| no_exchange(error, &config.exchange))
}

/// On a channel of its own: one on which something failed is closed.
async fn declare_as(
    connection: &lapin::Connection,
    config: &RabbitMqConfig,
    options: ExchangeDeclareOptions,
) -> lapin::Result<()> {
    let kind = match config.kind {
        ExchangeKind::Fanout => lapin::ExchangeKind::Fanout,
        ExchangeKind::Topic => lapin::ExchangeKind::Topic,
        ExchangeKind::Direct => lapin::ExchangeKind::Direct,
        ExchangeKind::Headers => lapin::ExchangeKind::Headers,
    };
    let channel = connection.create_channel().await?;
    channel.exchange_declare(config.exchange.as_str().into(), kind, options, FieldTable::default()).await?;
    channel.close(200, "OK".into()).await
}
