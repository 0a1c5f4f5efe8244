//! A consumer of the log without a broker in between.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::{Mutex, watch};

use super::caution::Caution;
use super::ear::Ear;
use super::patience::Patience;
use super::process::{EachEvent, Process, WholeBatch};
use super::worker::Worker;
use super::{Backoff, BoxError, Message, Outcome, Tx};
use crate::log::error::Result;
use crate::log::{Hint, Retention, Start};
use crate::schema;

/// What was committed: for those who count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// How many events.
    pub events: usize,
    /// How many of them were given up.
    pub dead: usize,
    /// From fetching them to the commit.
    pub took: Duration,
}

/// Hands every committed event to a handler, in order per key, in the transaction that also moves the cursor past it. The effect and
/// the cursor are committed together, so each event takes effect exactly once, whatever dies in between, and no inbox is needed.
///
/// Any number of processes may run the same consumer, in Rust or by `postrider.next_batch` in any language: they share its lanes. Its
/// role needs `postrider_consume`, and what the handler needs.
///
/// ```no_run
/// # async fn run(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use postrider::consume::{BoxError, Message, Outcome, Subscription, Tx};
///
/// let stop = async { drop(tokio::signal::ctrl_c().await) };
/// Subscription::new(pool, "search")
///     .run(stop, async |tx: &mut Tx, event: &Message| {
///         sqlx::query("insert into found (id, body) values ($1, $2)")
///             .bind(event.id)
///             .bind(&event.payload)
///             .execute(&mut **tx)
///             .await?;
///         Ok::<_, BoxError>(Outcome::Done)
///     })
///     .await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "it does nothing until it is run"]
pub struct Subscription {
    pub(super) pool: PgPool,
    pub(super) consumer: String,
    pub(super) start: Start,
    pub(super) batch: u32,
    pub(super) lease: Duration,
    pub(super) idle: (Duration, Duration),
    pub(super) hint: Hint,
    pub(super) retry: Backoff,
    pub(super) retention: Retention,
    pub(super) observe: Box<dyn Fn(Committed) + Send + Sync>,
    workers: usize,
}

impl Subscription {
    /// A consumer with this name. Handlers work in transactions of this pool, which needs a connection for each worker. Two more are opened
    /// beside it: one listens, one notes what is begun with.
    pub fn new(pool: PgPool, consumer: impl Into<String>) -> Self {
        Self {
            pool,
            consumer: consumer.into(),
            start: Start::default(),
            batch: 100,
            lease: Duration::from_secs(30),
            idle: (Duration::from_millis(5), Duration::from_secs(2)),
            hint: Hint::default(),
            retry: Backoff::default(),
            retention: Retention::default(),
            observe: Box::new(|_| {}),
            workers: 1,
        }
    }

    /// Where it begins if nobody has run it before.
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// The most events of one transaction.
    pub fn batch(mut self, events: u32) -> Self {
        self.batch = events;
        self
    }

    /// How many transactions at once, each with a lane of its own. They share one task: a handler should wait, not compute.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.max(1);
        self
    }

    /// How long a handler may say nothing to the database. After that the server ends its transaction, and the events go to somebody
    /// else: that is how the lanes of a frozen process come back.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// The first and the longest pause when there is nothing to do. A producer's commit ends it, so it may be long; where nobody can be woken
    /// (see [`hint`](Self::hint)) no pause is longer than 250 ms.
    pub fn idle(mut self, first: Duration, longest: Duration) -> Self {
        self.idle = (first, longest);
        self
    }

    /// Whether producers are asked to wake it, on a connection of its own that listens.
    pub fn hint(mut self, hint: Hint) -> Self {
        self.hint = hint;
        self
    }

    /// When an event that failed is tried again, and when it is given up.
    pub fn retry(mut self, retry: Backoff) -> Self {
        self.retry = retry;
        self
    }

    /// How long the log keeps delivered events, where no relay runs and the role may empty it (`postrider_relay`).
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Called after every commit.
    pub fn observe(mut self, observe: impl Fn(Committed) + Send + Sync + 'static) -> Self {
        self.observe = Box::new(observe);
        self
    }

    /// Hands over one event at a time until `stop` ends; what is being worked on then is finished. Connects again by itself; an error
    /// is one that needs a person.
    pub async fn run<H, E>(self, stop: impl Future<Output = ()>, handler: H) -> Result<()>
    where
        H: AsyncFn(&mut Tx, &Message) -> std::result::Result<Outcome, E>,
        E: Into<BoxError>,
    {
        self.run_with(stop, EachEvent(handler)).await
    }

    /// As [`run`](Self::run), but hands over the events of one lane together. If they fail they come again one by one, so that one bad
    /// event does not take the others with it.
    pub async fn run_batches<H, E>(self, stop: impl Future<Output = ()>, handler: H) -> Result<()>
    where
        H: AsyncFn(&mut Tx, &[Message]) -> std::result::Result<Outcome, E>,
        E: Into<BoxError>,
    {
        self.run_with(stop, WholeBatch(handler)).await
    }

    async fn begin(&self) -> Result<()> {
        let mut patience = Patience::new();
        while let Err(error) = self.subscribe().await {
            patience.wait(&self.consumer, error).await?;
        }
        Ok(())
    }

    async fn run_with(self, stop: impl Future<Output = ()>, process: impl Process) -> Result<()> {
        let mut stop = Box::pin(stop);
        tokio::select! {
            begun = self.begin() => begun?,
            () = &mut stop => return Ok(()),
        }
        let (stopping, stopped) = watch::channel(false);
        let ear = Ear::new(self.pool.clone(), self.consumer.clone(), self.hint, self.idle);
        let caution = Caution::new(self.consumer.clone(), self.pool.connect_options());
        let (caution, ear) = (Arc::new(caution), Arc::new(Mutex::new(ear)));
        let (this, process) = (Arc::new(self), Arc::new(process));
        // One type for all, not `dyn`: then the whole can be spawned wherever the handler can.
        let mut workers: Vec<_> = (0..this.workers)
            .map(|number| {
                let (this, process) = (Arc::clone(&this), Arc::clone(&process));
                let together = (Arc::clone(&caution), Arc::clone(&ear));
                Box::pin(Worker::new(this, process, together, stopped.clone(), number == 0).run())
            })
            .collect();
        let mut is_stopping = false;
        let mut first_error = Ok(());
        // Everything is moved into it: a future that borrows from its surroundings could not be spawned.
        poll_fn(move |context| {
            if !is_stopping && stop.as_mut().poll(context).is_ready() {
                is_stopping = true;
                stopping.send_replace(true);
            }
            workers.retain_mut(|worker| match worker.as_mut().poll(context) {
                Poll::Pending => true,
                Poll::Ready(ended) => {
                    // What stops one stops all; the others finish what they are at.
                    stopping.send_replace(true);
                    if first_error.is_ok() {
                        first_error = ended;
                    }
                    false
                }
            });
            if workers.is_empty() {
                Poll::Ready(std::mem::replace(&mut first_error, Ok(())))
            } else {
                Poll::Pending
            }
        })
        .await
    }

    async fn subscribe(&self) -> Result<()> {
        schema::check_version(&mut *self.pool.acquire().await?).await?;
        let start = match self.start {
            Start::Now => "now".to_owned(),
            Start::Earliest => "earliest".to_owned(),
            Start::At(time) => format!("epoch {}", time.unix_timestamp_nanos()),
        };
        let statement = match self.start {
            Start::At(_) => {
                "select postrider.subscribe($1, (to_timestamp(substr($2, 7)::numeric / 1000000000))::text)"
            }
            _ => "select postrider.subscribe($1, $2)",
        };
        sqlx::query(statement).bind(&self.consumer).bind(start).execute(&self.pool).await?;
        Ok(())
    }
}
