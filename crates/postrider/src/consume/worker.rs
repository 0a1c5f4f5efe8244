//! One transaction after another: fetch, handle, finish, commit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::{FromRow as _, Row as _};
use tokio::sync::watch;
use uuid::Uuid;

use super::process::{Failure, Process};
use super::subscription::{Committed, Subscription};
use super::{Message, Tx};
use crate::inbox;
use crate::log::error::{Error, Result};
use crate::log::ring;

const BEGIN: &str = "begin isolation level read committed";
const SWEEP: Duration = Duration::from_mins(1);

/// Smaller batches of one lane, to get past a failure.
#[derive(Debug, Clone, Copy)]
struct Narrow {
    lane: i32,
    events: u32,
    rounds: usize,
}

/// A batch in hand.
struct Batch {
    transaction: Tx,
    token: String,
    lane: i32,
    messages: Vec<Message>,
}

/// What a round came to.
enum Round {
    Nothing,
    Committed,
    /// It is tried again at once, in smaller batches.
    Narrowed,
    /// Its lane rests.
    Postponed,
}

pub(super) struct Worker<P> {
    subscription: Arc<Subscription>,
    process: Arc<P>,
    stopped: watch::Receiver<bool>,
    /// One of them keeps the house.
    next_sweep: Option<Instant>,
    narrow: Option<Narrow>,
}

impl<P: Process> Worker<P> {
    pub(super) fn new(
        subscription: Arc<Subscription>,
        process: Arc<P>,
        stopped: watch::Receiver<bool>,
        is_keeper: bool,
    ) -> Self {
        let next_sweep = is_keeper.then(Instant::now);
        Self { subscription, process, stopped, next_sweep, narrow: None }
    }

    pub(super) async fn run(mut self) -> Result<()> {
        let (first, longest) = self.subscription.idle;
        let mut pause = first;
        while !*self.stopped.borrow() {
            if let Err(error) = self.sweep().await {
                tracing::warn!(%error, "the inbox and the log were not swept; that is tried again");
            }
            match self.round().await {
                Ok(Round::Committed | Round::Postponed | Round::Narrowed) => pause = first,
                Ok(Round::Nothing) => {
                    self.rest(pause).await;
                    pause = (pause * 2).min(longest);
                }
                Err(error) if error.is_transient() => {
                    tracing::warn!(%error, consumer = self.subscription.consumer, "a batch was given back; it is tried again");
                    pause = (pause * 2).clamp(first, Duration::from_secs(5));
                    self.rest(pause).await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn rest(&mut self, pause: Duration) {
        let _ = tokio::time::timeout(pause, self.stopped.wait_for(|stopped| *stopped)).await;
    }

    async fn round(&mut self) -> Result<Round> {
        let begun = Instant::now();
        let narrow = self.narrow;
        let events = narrow.map_or(self.subscription.batch, |narrow| narrow.events);
        self.narrow = narrow
            .filter(|narrow| narrow.rounds > 1)
            .map(|narrow| Narrow { rounds: narrow.rounds - 1, ..narrow });
        let Some(mut batch) = self.fetch(events, narrow.map(|narrow| narrow.lane)).await? else {
            // Somebody else may have the lane by now: back to the others.
            self.narrow = None;
            return Ok(Round::Nothing);
        };
        match self.process.process(&mut batch.transaction, &batch.messages).await {
            Ok(dead) => {
                let committed = batch.messages.len();
                self.finish(batch, &dead).await?;
                (self.subscription.observe)(Committed {
                    events: committed,
                    dead: dead.len(),
                    took: begun.elapsed(),
                });
                Ok(Round::Committed)
            }
            Err(failure) => self.on_failure(batch, failure).await,
        }
    }

    async fn fetch(&self, events: u32, lane: Option<i32>) -> Result<Option<Batch>> {
        let mut transaction = Tx(self.subscription.pool.begin_with(BEGIN).await?);
        let rows = sqlx::query("select * from postrider.next_batch($1, $2, make_interval(secs => $3), $4)")
            .bind(&self.subscription.consumer)
            .bind(i32::try_from(events).unwrap_or(i32::MAX))
            .bind(self.subscription.lease.as_secs_f64())
            .bind(lane)
            .fetch_all(&mut *transaction)
            .await?;
        let Some(first) = rows.first() else {
            transaction.0.rollback().await?;
            return Ok(None);
        };
        let (token, lane) = (first.try_get("token")?, first.try_get("lane")?);
        let messages = rows.iter().map(Message::from_row).collect::<sqlx::Result<_>>()?;
        Ok(Some(Batch { transaction, token, lane, messages }))
    }

    async fn finish(&self, mut batch: Batch, dead: &[(Uuid, String)]) -> Result<()> {
        for (event, reason) in dead {
            sqlx::query("select postrider.give_up($1, $2, $3, $4)")
                .bind(&self.subscription.consumer)
                .bind(&batch.token)
                .bind(event)
                .bind(reason)
                .execute(&mut *batch.transaction)
                .await?;
        }
        sqlx::query("select postrider.finish_batch($1, $2)")
            .bind(&self.subscription.consumer)
            .bind(&batch.token)
            .execute(&mut *batch.transaction)
            .await?;
        batch.transaction.0.commit().await?;
        Ok(())
    }

    async fn on_failure(&mut self, batch: Batch, failure: Failure) -> Result<Round> {
        let Batch { transaction, lane, messages, .. } = batch;
        let Failure { at, is_known, pause, why } = failure;
        // The connection may be the reason, and then there is nothing left to roll back.
        let rolled_back = transaction.0.rollback().await;
        let why = match why.downcast::<sqlx::Error>() {
            // A deadlock, a lost connection: nothing that the event can help.
            Ok(error) => match Error::from(*error) {
                error if error.is_transient() => return Err(error),
                error => error.into(),
            },
            Err(other) => other,
        };
        rolled_back?;
        if at > 0 || !is_known {
            // Those before it first, or all of them one by one.
            let narrow = if is_known {
                Narrow { lane, events: u32::try_from(at).unwrap_or(1), rounds: 1 }
            } else {
                Narrow { lane, events: 1, rounds: messages.len() }
            };
            self.narrow = Some(narrow);
            return Ok(Round::Narrowed);
        }
        let Some(message) = messages.first() else { return Ok(Round::Nothing) };
        let reason = in_words(&*why);
        let retry = self.subscription.retry;
        let pause = pause.unwrap_or_else(|| retry.pause(message.attempts + 1));
        tracing::warn!(
            consumer = self.subscription.consumer, event = %message.id, attempts = message.attempts + 1, reason, ?pause,
            "an event failed and is tried again"
        );
        let failures: i32 =
            sqlx::query_scalar("select postrider.postpone($1, $2, $3, $4, make_interval(secs => $5))")
                .bind(&self.subscription.consumer)
                .bind(lane)
                .bind(message.id)
                .bind(&reason)
                .bind(pause.min(Duration::from_hours(24)).as_secs_f64())
                .fetch_one(&self.subscription.pool)
                .await?;
        if failures.unsigned_abs() >= retry.max_attempts {
            self.give_up(lane, message.id, reason).await?;
        }
        self.narrow = None;
        Ok(Round::Postponed)
    }

    /// The last attempt has failed: dead in the transaction that moves past it, if it still is the next one of its lane.
    async fn give_up(&self, lane: i32, event: Uuid, reason: String) -> Result<()> {
        let Some(batch) = self.fetch(1, Some(lane)).await? else { return Ok(()) };
        if batch.messages.first().is_none_or(|first| first.id != event) {
            batch.transaction.0.rollback().await?;
            return Ok(());
        }
        let begun = Instant::now();
        self.finish(batch, &[(event, reason)]).await?;
        (self.subscription.observe)(Committed { events: 1, dead: 1, took: begun.elapsed() });
        Ok(())
    }

    /// What a relay does once a minute is done here, too, as far as the role may: there may be no relay.
    async fn sweep(&mut self) -> Result<()> {
        let now = Instant::now();
        if self.next_sweep.is_none_or(|due| now < due) {
            return Ok(());
        }
        self.next_sweep = Some(now + SWEEP);
        let mut connection = self.subscription.pool.acquire().await?;
        inbox::turn(&mut connection, None).await?;
        let may_turn: bool = sqlx::query_scalar(
            "select has_table_privilege('postrider.events_0', 'truncate') and has_table_privilege('postrider.ring', 'update')",
        )
        .fetch_one(&mut *connection)
        .await?;
        if may_turn {
            ring::turn(&mut connection, self.subscription.retention).await?;
            ring::turn_progress(&mut connection).await?;
        }
        Ok(())
    }
}

/// An error with its causes.
fn in_words(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let mut words: Vec<String> = causes.map(ToString::to_string).collect();
    words.dedup();
    words.join(": ")
}
