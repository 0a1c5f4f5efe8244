//! Messages of a RabbitMQ exchange.

mod address;
mod config;
mod connection;
mod durability;
mod error;
mod lane;
mod management;
mod message;
mod queue;
mod routes;

pub use config::{ExchangeKind, RabbitMqConfig, Unroutable};
pub(super) use durability::durability;

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::chains::chains;
use crate::sink::{BoxFuture, Message, Outcome, Report, Sink, Unavailable};
use connection::{Connection, Parts, until_blocked};
use lane::{Round, Trouble};
use message::largest_headers;

/// The routing key by default: what a topic exchange is bound by. A fanout exchange does not look at it.
pub(super) const ROUTE: &str = "{type}";

/// Publishes to an exchange, over several channels, and waits for the server to confirm.
pub struct RabbitMqSink {
    config: RabbitMqConfig,
    connection: Option<Connection>,
    /// How many events of the last delivery nobody was there to take, and were let go.
    dropped: AtomicU64,
    /// The server minded an event of the last delivery, and the connection was lost before it was found out which: the next one goes one by
    /// one.
    is_unclear: AtomicBool,
}

impl RabbitMqSink {
    /// Connects, and declares the exchange.
    pub async fn open(config: RabbitMqConfig) -> Result<Self, Unavailable> {
        let connection = Connection::open(&config).await?;
        let (dropped, is_unclear) = (AtomicU64::new(0), AtomicBool::new(false));
        Ok(Self { config, connection: Some(connection), dropped, is_unclear })
    }

    async fn deliver_all(
        &mut self,
        batch: &[Message<'_>],
        outcomes: &Mutex<Vec<Outcome>>,
    ) -> Result<(), Trouble> {
        // One that was lost while nobody looked.
        self.connection.take_if(|connection| !connection.is_open());
        // It keeps what it was sent before, in order, and goes on with it when it can: sending more would be for nothing.
        if let Some(why) = self.connection.as_mut().and_then(Connection::blocked) {
            return Err(Trouble::Waits(why));
        }
        // What comes back as unroutable is handed out by lapin with whichever confirmation is next, also with one of a delivery that was given
        // up, which nobody reads: an event that nobody has would count as delivered. So that connection is not published on again. There is no
        // cheaper way: `wait_for_confirms` waits for the last one only, and they come in any order; and a channel that is closed while lapin
        // still has messages for it takes the connection along. It is kept for as long as it is blocked, to hear when that is over: the
        // server takes new connections all the time, and a new one would be blocked by the first message only.
        self.connection.take_if(|connection| connection.is_interrupted());
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(Connection::open(&self.config).await.map_err(Trouble::Lost)?),
        };
        let Parts { inner, channels, events, limit, is_interrupted } = connection.parts();
        let (config, dropped, is_unclear) = (&self.config, &self.dropped, &self.is_unclear);
        let round = Round {
            config,
            connection: inner,
            limit,
            largest_headers: largest_headers(inner.configuration().frame_max()),
            batch,
            outcomes,
            dropped,
            is_over: AtomicBool::new(false),
            is_careful: is_unclear.swap(false, Ordering::Relaxed),
            is_unclear,
        };
        let shares = shares(batch, channels.len());
        // Until everything is answered, and so also if this is dropped.
        *is_interrupted = true;
        let ended = tokio::select! {
            biased;
            ends = round.carry_all(channels, shares) => {
                *is_interrupted = false;
                worst(ends.into_iter().filter_map(Result::err))
            }
            why = until_blocked(events) => Err(Trouble::Waits(why)),
        };
        // With the connection as it was, whom the server minded is found out before the delivery ends.
        if !matches!(ended, Err(Trouble::Lost(_))) {
            is_unclear.store(false, Ordering::Relaxed);
        }
        ended
    }
}

/// A connection that was lost comes before anything else there is to say.
fn worst(troubles: impl Iterator<Item = Trouble>) -> Result<(), Trouble> {
    troubles
        .reduce(|one, other| if matches!(one, Trouble::Lost(_)) { one } else { other })
        .map_or(Ok(()), Err)
}

/// The places of a batch, by channel: the events of one key together and in order, and a key always on the same channel.
fn shares(batch: &[Message<'_>], channels: usize) -> Vec<Vec<VecDeque<usize>>> {
    let mut shares: Vec<Vec<VecDeque<usize>>> = vec![Vec::new(); channels];
    for chain in chains(batch) {
        let place = chain[0];
        let key = batch[place].record.key.as_deref();
        let channel = key.map_or(place % channels, |key| channel_of(key, channels));
        shares[channel].push(chain.into());
    }
    shares
}

fn channel_of(key: &str, channels: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    usize::try_from(hasher.finish() % channels as u64).unwrap_or_default()
}

impl Sink for RabbitMqSink {
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report> {
        Box::pin(async move {
            self.dropped.store(0, Ordering::Relaxed);
            let outcomes = Mutex::new(vec![Outcome::NotSent; batch.len()]);
            let trouble = self.deliver_all(batch, &outcomes).await.err();
            let unavailable = trouble.map(|trouble| match trouble {
                Trouble::Waits(why) => why,
                Trouble::Lost(why) => {
                    self.connection = None;
                    why
                }
            });
            let outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
            Report { outcomes, unavailable }
        })
    }

    fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        Box::pin(async move {
            // Nothing is in flight between two batches. One that was given up is not waited for.
            if let Some(connection) = self.connection.filter(|connection| !connection.is_interrupted()) {
                connection.close(&self.config).await;
            }
            Ok(())
        })
    }
}
