//! One transaction after another: fetch, handle, finish, commit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::{FromRow as _, Row as _};
use tokio::sync::{Mutex, OwnedRwLockReadGuard, watch};
use uuid::Uuid;

use super::blame::{is_of_the_database, is_of_the_effect};
use super::caution::{Care, Caution};
use super::ear::{Ear, Next};
use super::process::{Failure, Process};
use super::subscription::{Committed, Subscription};
use super::words::in_words;
use super::{Message, Tx};
use crate::inbox;
use crate::log::error::{Error, Result};
use crate::log::ring;

const BEGIN: &str = "begin isolation level read committed";
const SWEEP: Duration = Duration::from_mins(1);
/// For a database that is away.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

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
    /// Somebody has begun with its first event and never said more.
    is_suspect: bool,
    messages: Vec<Message>,
}

/// A batch that was found, in the company of what the others are working on.
type Found = (OwnedRwLockReadGuard<()>, Batch);

pub(super) struct Worker<P> {
    subscription: Arc<Subscription>,
    process: Arc<P>,
    caution: Arc<Caution>,
    ear: Arc<Mutex<Ear>>,
    stopped: watch::Receiver<bool>,
    /// One of them keeps the house.
    next_sweep: Option<Instant>,
    narrow: Option<Narrow>,
}

impl<P: Process> Worker<P> {
    pub(super) fn new(
        subscription: Arc<Subscription>,
        process: Arc<P>,
        (caution, ear): (Arc<Caution>, Arc<Mutex<Ear>>),
        stopped: watch::Receiver<bool>,
        is_keeper: bool,
    ) -> Self {
        let next_sweep = is_keeper.then(Instant::now);
        Self { subscription, process, caution, ear, stopped, next_sweep, narrow: None }
    }

    pub(super) async fn run(mut self) -> Result<()> {
        let mut failures = 0;
        while !*self.stopped.borrow() {
            if let Err(error) = self.sweep().await {
                tracing::warn!(%error, "the inbox and the log were not swept; that is tried again");
            }
            match self.turn().await {
                Ok(()) => failures = 0,
                Err(error) if error.is_transient() => {
                    tracing::warn!(%error, consumer = self.subscription.consumer, "a batch was given back; it is tried again");
                    failures += 1;
                    self.rest(
                        self.subscription.idle.0.saturating_mul(1 << failures.min(12)).min(LONGEST_PAUSE),
                    )
                    .await;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn rest(&mut self, pause: Duration) {
        let _ = tokio::time::timeout(pause, self.stopped.wait_for(|stopped| *stopped)).await;
    }

    /// Works on what there is, or sleeps.
    async fn turn(&mut self) -> Result<()> {
        let found = match self.look().await? {
            None => self.listen().await?,
            found => found,
        };
        let Some((company, batch)) = found else { return Ok(()) };
        self.work(company, batch).await?;
        // Not before: what somebody has rung for comes first.
        match self.ear.try_lock() {
            Ok(mut ear) => ear.hush().await,
            // Whoever has it does that.
            Err(_) => Ok(()),
        }
    }

    async fn look(&mut self) -> Result<Option<Found>> {
        let narrow = self.narrow;
        let events = narrow.map_or(self.subscription.batch, |narrow| narrow.events);
        self.narrow = narrow
            .filter(|narrow| narrow.rounds > 1)
            .map(|narrow| Narrow { rounds: narrow.rounds - 1, ..narrow });
        let company = self.caution.in_company().await;
        let Some(batch) = self.fetch(events, narrow.map(|narrow| narrow.lane)).await? else {
            // Somebody else may have the lane by now: back to the others.
            self.narrow = None;
            return Ok(None);
        };
        Ok(Some((company, batch)))
    }

    /// Until there is something, or it is stopped. One worker listens for all; when it has found something the next one does, and looks first.
    async fn listen(&mut self) -> Result<Option<Found>> {
        let (ear, mut stopped) = (Arc::clone(&self.ear), self.stopped.clone());
        let mut ear = tokio::select! {
            ear = ear.lock() => ear,
            _ = stopped.wait_for(|stopped| *stopped) => return Ok(None),
        };
        while !*self.stopped.borrow() {
            let heard = match ear.step().await {
                Ok(Next::Look) => match self.look().await {
                    Ok(found) => {
                        ear.looked(found.is_some());
                        if found.is_some() {
                            return Ok(found);
                        }
                        continue;
                    }
                    Err(error) => Err(error),
                },
                Ok(Next::Rest(longest)) => tokio::select! {
                    heard = ear.rest(longest) => heard,
                    _ = stopped.wait_for(|stopped| *stopped) => return Ok(None),
                },
                Ok(Next::Ask) => continue,
                Err(error) => Err(error),
            };
            match heard {
                Ok(true) => return Ok(None),
                // The house has to be kept in between.
                Ok(false) if self.next_sweep.is_some_and(|due| Instant::now() >= due) => return Ok(None),
                Ok(false) => {}
                Err(error) => {
                    ear.begin_anew();
                    return Err(error);
                }
            }
        }
        Ok(None)
    }

    async fn work(&mut self, company: OwnedRwLockReadGuard<()>, batch: Batch) -> Result<()> {
        let begun = Instant::now();
        let Some(first) = batch.messages.first() else { return Ok(()) };
        let (lane, event) = (batch.lane, first.id);
        match self.caution.about(lane, event, batch.is_suspect) {
            Care::Plain => self.handle(begun, batch, false).await,
            Care::Noted => {
                self.caution.note(lane, event, batch.messages.len(), false).await?;
                self.handle(begun, batch, false).await
            }
            Care::Alone => {
                // Others may be at work for long.
                batch.transaction.0.rollback().await?;
                drop(company);
                let _alone = self.caution.alone().await;
                let Some(batch) = self.fetch_again(1, lane, event).await? else { return Ok(()) };
                let failed = batch.messages.first().map_or(0, |first| first.attempts);
                // By this process, which lost the database over it and not its life.
                let is_counted = self.caution.has_noted(lane, event, true);
                if failed >= self.subscription.retry.max_attempts && !is_counted {
                    return self.bury(begun, batch, event, "the process ended each time".to_owned()).await;
                }
                self.caution.note(lane, event, 1, true).await?;
                self.handle(begun, batch, is_counted).await
            }
        }
    }

    /// `is_counted`: this try was in the count of its attempts already when it was fetched.
    async fn handle(&mut self, begun: Instant, mut batch: Batch, is_counted: bool) -> Result<()> {
        if let (true, Some(first)) = (is_counted, batch.messages.first_mut()) {
            first.attempts = first.attempts.saturating_sub(1);
        }
        match self.process.process(&mut batch.transaction, &batch.messages).await {
            Ok(dead) => {
                let Batch { transaction, token, lane, messages, .. } = batch;
                let events = messages.len();
                match self.finish(transaction, &token, &dead, !is_counted).await {
                    Ok(()) => {}
                    Err(error) if is_of_the_effect(&error) => {
                        let failure =
                            Failure { at: 0, is_known: events == 1, pause: None, why: error.into() };
                        return self.on_failure(lane, &messages, failure, Ok(())).await;
                    }
                    Err(error) => return Err(error),
                }
                self.caution.got_through(lane);
                let took = begun.elapsed();
                (self.subscription.observe)(Committed { events, dead: dead.len(), took });
                Ok(())
            }
            Err(failure) => {
                let Batch { transaction, lane, messages, .. } = batch;
                let rolled_back = transaction.0.rollback().await;
                self.on_failure(lane, &messages, failure, rolled_back).await
            }
        }
    }

    /// The lane once more, if nobody has taken it meanwhile and nothing has come late before this event.
    async fn fetch_again(&self, events: u32, lane: i32, event: Uuid) -> Result<Option<Batch>> {
        let Some(batch) = self.fetch(events, Some(lane)).await? else { return Ok(None) };
        if batch.messages.first().is_some_and(|first| first.id == event) {
            return Ok(Some(batch));
        }
        batch.transaction.0.rollback().await?;
        Ok(None)
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
        let (token, lane, is_suspect) =
            (first.try_get("token")?, first.try_get("lane")?, first.try_get("suspect")?);
        let messages = rows.iter().map(Message::from_row).collect::<sqlx::Result<_>>()?;
        Ok(Some(Batch { transaction, token, lane, is_suspect, messages }))
    }

    async fn finish(
        &self,
        mut transaction: Tx,
        token: &str,
        dead: &[(Uuid, String)],
        is_attempt: bool,
    ) -> Result<()> {
        for (event, reason) in dead {
            sqlx::query("select postrider.give_up($1, $2, $3, $4, $5)")
                .bind(&self.subscription.consumer)
                .bind(token)
                .bind(event)
                .bind(reason)
                .bind(is_attempt)
                .execute(&mut *transaction)
                .await?;
        }
        sqlx::query("select postrider.finish_batch($1, $2)")
            .bind(&self.subscription.consumer)
            .bind(token)
            .execute(&mut *transaction)
            .await?;
        transaction.0.commit().await?;
        Ok(())
    }

    async fn on_failure(
        &mut self,
        lane: i32,
        messages: &[Message],
        failure: Failure,
        rolled_back: sqlx::Result<()>,
    ) -> Result<()> {
        let Failure { at, is_known, pause, why } = failure;
        let why = match why.downcast::<sqlx::Error>() {
            // A deadlock, a lost connection: nothing that the event can help.
            Ok(error) => match Error::from(*error) {
                error if error.is_transient() => return Err(error),
                error => error.into(),
            },
            Err(wrapped) if is_of_the_database(&*wrapped) => {
                return Err(Error::Handler { said: in_words(&*wrapped) });
            }
            Err(other) => other,
        };
        // The connection may be the reason, and then there was nothing left to roll back.
        rolled_back?;
        if at > 0 || !is_known {
            // Those before it first, or all of them one by one.
            let narrow = if is_known {
                Narrow { lane, events: u32::try_from(at).unwrap_or(1), rounds: 1 }
            } else {
                Narrow { lane, events: 1, rounds: messages.len() }
            };
            self.narrow = Some(narrow);
            return Ok(());
        }
        let Some(message) = messages.first() else { return Ok(()) };
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
        // It has failed in words: nobody is suspected any more.
        self.caution.forget(lane);
        if failures.unsigned_abs() >= retry.max_attempts {
            self.give_up(lane, message.id, reason).await?;
        }
        self.narrow = None;
        Ok(())
    }

    /// The last attempt has failed: dead, if it still is the next one of its lane.
    async fn give_up(&self, lane: i32, event: Uuid, reason: String) -> Result<()> {
        let begun = Instant::now();
        match self.fetch_again(1, lane, event).await? {
            Some(batch) => self.bury(begun, batch, event, reason).await,
            None => Ok(()),
        }
    }

    /// Dead, in the transaction that moves past it.
    async fn bury(&self, begun: Instant, batch: Batch, event: Uuid, reason: String) -> Result<()> {
        tracing::warn!(consumer = self.subscription.consumer, %event, reason, "an event is given up");
        let Batch { transaction, token, lane, .. } = batch;
        self.finish(transaction, &token, &[(event, reason)], false).await?;
        self.caution.got_through(lane);
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
