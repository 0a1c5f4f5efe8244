//! A consumer behind a broker: every event takes effect exactly once, however often it is delivered.
//!
//! ```no_run
//! # #[cfg(feature = "redis")]
//! # async fn run(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! use postrider::consume::{BoxError, Outcome, Tx};
//! use postrider::consumer::{Consumer, Event};
//! use postrider::consumers::redis::Redis;
//!
//! #[derive(serde::Deserialize)]
//! struct Order {
//!     cents: i64,
//! }
//!
//! async fn book(tx: &mut Tx, event: Event<Order>) -> Result<Outcome, BoxError> {
//!     let book = sqlx::query("update totals set cents = cents + $1").bind(event.payload.cents);
//!     book.execute(&mut **tx).await?;
//!     Ok(Outcome::Done)
//! }
//!
//! let stop = async { drop(tokio::signal::ctrl_c().await) };
//! let orders = Redis::new("redis://127.0.0.1", ["events:order"]);
//! Consumer::new(pool, "totals", orders).run(stop, book).await?;
//! # Ok(())
//! # }
//! ```
//!
//! For each message: the inbox is asked in the handler's transaction, the handler has its effect there, the transaction is committed, and
//! then the broker is told. Whatever dies in between, the message comes again, and the inbox knows it.
//!
//! A broker is one [`Source`]; those that are here are in [`consumers`](crate::consumers), each behind its feature.

mod attempts;
mod decode;
mod desk;
mod event;
mod handle;
mod house;
mod letters;
mod memory;
mod run;
mod source;
mod telemetry;

pub use event::Event;
pub use source::{Deliveries, Delivery, Grave, Link, Message, Opened, Source, Terms, Trouble};

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use sqlx::PgPool;
use tokio::sync::Semaphore;

use crate::consume::{Backoff, BoxError, Outcome, Tx};
use crate::log;
use letters::Refusals;
use run::Loop;
use telemetry::Telemetry;

/// A message that waits for its next attempt is held, and no broker lets it be held for ever: RabbitMQ closes a channel after 30 minutes.
const LONGEST_PAUSE: Duration = Duration::from_mins(10);

/// Why a consumer ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database needs a person.
    #[error(transparent)]
    Database(#[from] log::Error),
    /// The broker needs a person.
    #[error("the broker needs attention: {0}")]
    Broker(#[from] Trouble),
    /// An event could take effect twice.
    #[error(
        "a message may come again for {} s, and the inbox remembers it for {} s: let it remember longer (`postrider inbox keep`), or the broker keep less",
        .keeps.as_secs(),
        .remembers.as_secs()
    )]
    Forgetful {
        /// How long a message may wait in the broker.
        keeps: Duration,
        /// How long the inbox remembers it at least.
        remembers: Duration,
    },
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}

/// What the parts of a consumer have in common.
struct Shared {
    pool: PgPool,
    consumer: String,
    concurrency: usize,
    retry: Backoff,
    drain: Duration,
    lease: Duration,
    filter: Box<dyn Fn(&Event) -> bool + Send + Sync>,
    observe: Box<dyn Fn(&Event) + Send + Sync>,
    telemetry: Telemetry,
    refusals: Refusals,
}

/// Hands the events of a broker to a handler. See the [module](self).
///
/// Events of one key are handled one after the other and in the order of delivery, others side by side. An event that fails is tried
/// again after a pause, and later ones of its key wait. One that is hopeless (it cannot be decoded, the handler says so, its attempts are
/// used up, or it has ended the process that often) is kept with the dead letters: the body as it came, and the reason. An event that came
/// before and may have ended a process is tried by itself, so that the others that were in hand are not counted with it.
#[must_use = "it does nothing until it is run"]
pub struct Consumer<S> {
    source: S,
    prefetch: u32,
    shared: Shared,
}

impl<S: Source> Consumer<S> {
    /// A consumer with this name: that of its inbox, and of what is its own in the broker. Handlers work in transactions of this pool,
    /// which needs a connection for each that is at work, and one more.
    pub fn new(pool: PgPool, consumer: impl Into<String>, source: S) -> Self {
        let consumer = consumer.into();
        let telemetry = Telemetry::new(&consumer, source.kind());
        let shared = Shared {
            pool,
            consumer,
            concurrency: 4,
            retry: Backoff::default(),
            drain: Duration::from_secs(10),
            lease: Duration::from_mins(5),
            filter: Box::new(|_| true),
            observe: Box::new(|_| {}),
            telemetry,
            refusals: Refusals::default(),
        };
        Self { source, prefetch: 100, shared }
    }

    /// The most messages that are in hand: at work, waiting for their turn, or for their next attempt.
    pub fn prefetch(mut self, messages: u16) -> Self {
        self.prefetch = u32::from(messages.max(1));
        self
    }

    /// How many events are handled side by side. They share one task: a handler should wait, not compute.
    pub fn concurrency(mut self, events: usize) -> Self {
        self.shared.concurrency = events.max(1);
        self
    }

    /// When an event that failed is tried again, and when it is given up. No pause is longer than ten minutes.
    pub fn retry(mut self, retry: Backoff) -> Self {
        self.shared.retry = retry;
        self
    }

    /// How long what was begun may take to end when the consumer is stopped.
    pub fn drain(mut self, longest: Duration) -> Self {
        self.shared.drain = longest;
        self
    }

    /// How long a handler may say nothing to the database, five minutes if nothing is said. The server takes who is silent for longer for
    /// frozen and ends its transaction: whoever else has got the event by then waits for that.
    pub fn lease(mut self, silence: Duration) -> Self {
        self.shared.lease = silence.max(Duration::from_secs(1));
        self
    }

    /// Only these are handled; the others are acknowledged at once and leave no trace in the inbox.
    pub fn filter(mut self, filter: impl Fn(&Event) -> bool + Send + Sync + 'static) -> Self {
        self.shared.filter = Box::new(filter);
        self
    }

    /// Called after every commit, before the broker is told.
    pub fn observe(mut self, observe: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.shared.observe = Box::new(observe);
        self
    }

    /// Handles events until `stop` ends. Then what was begun is finished, and what was not is given back. Connects again by itself, to
    /// the broker and to the database; an error is one that needs a person.
    pub async fn run<H, T, E>(self, stop: impl Future<Output = ()>, handler: H) -> Result<(), Error>
    where
        H: AsyncFn(&mut Tx, Event<T>) -> Result<Outcome, E>,
        T: DeserializeOwned,
        E: Into<BoxError>,
    {
        let mut stop = pin!(stop);
        tokio::select! {
            suffices = memory::suffices(&self.shared, self.source.keeps()) => suffices?,
            () = &mut stop => return Ok(()),
        }
        let room = Arc::new(Semaphore::new(self.prefetch as usize));
        let terms = Terms { consumer: self.shared.consumer.clone(), prefetch: self.prefetch, room };
        let running = Loop::new(&self.shared, &self.source, &terms).run(stop, &handler);
        tokio::select! {
            ended = running => ended,
            never = house::keep(&self.shared) => match never {},
        }
    }
}
