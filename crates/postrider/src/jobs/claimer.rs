//! Claiming, and sleeping while there is nothing to claim.

use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{PgConnection, Row as _};
use tokio::sync::{mpsc, watch};
use uuid::Uuid;

use super::error::{Error, Result};
use super::job::{Claimed, Job};
use super::link::Link;
use crate::log::bell::{self, Bell, Heard, Hint};
use crate::log::wake::{Action, Event, Sleeper};

const CHANNEL: &str = "postrider_jobs";
const CLAIM: &str = "select claim, id, kind, payload::text, key, attempt, max_attempts, lost, created_at
    from postrider.claim_jobs($1, $2, worker => $3, lease => make_interval(secs => $4), begins => true)";
/// While older writers are running that may not have seen the ticket.
const WATCH: Duration = Duration::from_millis(5);

/// Asks for jobs.
#[derive(Debug)]
pub(super) struct Want(pub(super) usize);

/// Jobs, and under which name they were claimed.
#[derive(Debug)]
pub(super) struct Brought {
    pub(super) claimant: Uuid,
    pub(super) jobs: Vec<Claimed>,
}

pub(super) struct Claimer {
    pub(super) link: Link,
    pub(super) options: PgConnectOptions,
    pub(super) queues: Vec<String>,
    pub(super) idle: Duration,
    /// Where it is not the queue's own.
    pub(super) lease: Option<Duration>,
    pub(super) hint: Hint,
    pub(super) claimant: watch::Sender<Uuid>,
    /// What went wrong after something had been claimed, which is brought first.
    pub(super) failed: Option<Error>,
    pub(super) stopping: watch::Receiver<bool>,
}

impl Claimer {
    /// Claims whenever it is asked to, until nobody asks any more.
    pub(super) async fn run(mut self, mut wants: mpsc::Receiver<Want>, brought: mpsc::Sender<Brought>) {
        let mut bell = None;
        let mut sleeper = Sleeper::default();
        while let Some(Want(most)) = wants.recv().await {
            let jobs = loop {
                match self.step(&mut bell, &mut sleeper, most).await {
                    Ok(jobs) if !jobs.is_empty() => break jobs,
                    Ok(_) => {}
                    Err(error) => {
                        sleeper = Sleeper::default();
                        self.lost(&error).await;
                    }
                }
                if *self.stopping.borrow() || brought.is_closed() {
                    return;
                }
            };
            let claimant = *self.claimant.borrow();
            if brought.send(Brought { claimant, jobs }).await.is_err() {
                return;
            }
            if let Some(error) = self.failed.take() {
                sleeper = Sleeper::default();
                self.lost(&error).await;
            }
        }
    }

    /// A claim that was committed and not answered must run out: what is claimed from now on has another name, and of the old one only what is
    /// known is renewed.
    async fn lost(&mut self, error: &Error) {
        self.claimant.send_replace(Uuid::now_v7());
        self.link.lost(error).await;
    }

    async fn step(
        &mut self,
        bell: &mut Option<Bell>,
        sleeper: &mut Sleeper,
        most: usize,
    ) -> Result<Vec<Claimed>> {
        let connection = self.link.get().await?;
        if bell.is_none() {
            *bell = Some(Bell::hang_on(CHANNEL, &self.options, connection, self.hint).await?);
        }
        let Some(bell) = bell else { return Ok(Vec::new()) };
        match sleeper.next() {
            Action::Look => {
                // Whoever is awake disarms too, or everybody who enqueues would go on notifying.
                if let Heard::Ticket(ticket) = bell.wait(Duration::ZERO).await? {
                    sleeper.on(Event::Notified(ticket));
                    return Ok(Vec::new());
                }
                // Before looking: what commits in between is seen by the look.
                let xmin = if sleeper.is_armed() { oldest_running(connection).await? } else { 0 };
                let name = *self.claimant.borrow();
                let (jobs, failed) = claim(connection, &self.queues, most, name, self.lease).await?;
                self.failed = failed;
                sleeper.on(Event::Looked { found: !jobs.is_empty(), xmin });
                if jobs.is_empty() {
                    sleeper.doze();
                }
                return Ok(jobs);
            }
            Action::TakeTicket => {
                if bell.silence().is_some() || !bell::may_arm(connection).await? {
                    let pause = due_in(connection, &self.queues).await?.min(self.idle);
                    rest(bell, pause, &mut self.stopping).await?;
                    *sleeper = Sleeper::default();
                    return Ok(Vec::new());
                }
                let ticket: i64 = sqlx::query_scalar("select postrider.take_job_ticket($1)")
                    .bind(self.idle.as_secs_f64() + 1.0)
                    .fetch_one(connection)
                    .await?;
                sleeper.on(Event::Ticket(ticket.unsigned_abs()));
            }
            Action::TakeXid => sleeper.on(Event::Xid(bell::take_xid(connection).await?)),
            Action::Disarm(ticket) => {
                sqlx::query("select postrider.disarm_jobs($1)")
                    .bind(i64::try_from(ticket).unwrap_or(i64::MAX))
                    .execute(connection)
                    .await?;
                sleeper.on(Event::Disarmed);
            }
            Action::Watch => sleeper.on(rest(bell, WATCH, &mut self.stopping).await?),
            Action::Sleep => {
                let pause = due_in(connection, &self.queues).await?.min(self.idle);
                sleeper.on(rest(bell, pause, &mut self.stopping).await?);
            }
        }
        Ok(Vec::new())
    }
}

/// Until a ticket comes, the time is over, or the worker stops.
async fn rest(bell: &mut Bell, longest: Duration, stopping: &mut watch::Receiver<bool>) -> Result<Event> {
    let heard = tokio::select! {
        heard = bell.wait(longest) => heard?,
        _ = stopping.wait_for(|is_stopping| *is_stopping) => Heard::Nothing,
    };
    Ok(match heard {
        Heard::Ticket(ticket) => Event::Notified(ticket),
        Heard::Nothing | Heard::Broken => Event::TimedOut,
    })
}

async fn oldest_running(connection: &mut PgConnection) -> Result<u64> {
    let xmin: String = sqlx::query_scalar("select pg_snapshot_xmin(pg_current_snapshot())::text")
        .fetch_one(connection)
        .await?;
    Ok(xmin.parse().unwrap_or(0))
}

/// How long until something that waits is due.
async fn due_in(connection: &mut PgConnection, queues: &[String]) -> Result<Duration> {
    let seconds: Option<f64> =
        sqlx::query_scalar("select postrider.next_job_at($1)").bind(queues).fetch_one(connection).await?;
    Ok(seconds.map_or(Duration::MAX, |seconds| Duration::from_secs_f64(seconds.clamp(0.001, 86_400.0))))
}

async fn claim(
    connection: &mut PgConnection,
    queues: &[String],
    most: usize,
    claimant: Uuid,
    lease: Option<Duration>,
) -> Result<(Vec<Claimed>, Option<Error>)> {
    let mut jobs = Vec::new();
    for queue in queues {
        let most = i32::try_from(most.saturating_sub(jobs.len())).unwrap_or(i32::MAX).min(10_000);
        if most < 1 {
            break;
        }
        let claimed = sqlx::query(CLAIM)
            .bind(queue)
            .bind(most)
            .bind(claimant)
            .bind(lease.map(|lease| lease.as_secs_f64().max(1.0)))
            .fetch_all(&mut *connection)
            .await;
        let rows = match claimed {
            Ok(rows) => rows,
            // What was claimed of other queues is in hand, and this one is asked again.
            Err(error) if !jobs.is_empty() => return Ok((jobs, Some(error.into()))),
            Err(error) => return Err(error.into()),
        };
        for row in rows {
            jobs.push(Claimed {
                claim: row.try_get(0)?,
                lost: row.try_get(7)?,
                job: Job {
                    id: row.try_get(1)?,
                    kind: row.try_get(2)?,
                    payload: row.try_get(3)?,
                    key: row.try_get(4)?,
                    attempt: row.try_get(5)?,
                    max_attempts: row.try_get(6)?,
                    created_at: row.try_get(8)?,
                },
            });
        }
    }
    Ok((jobs, None))
}
