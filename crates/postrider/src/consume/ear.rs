//! Asleep until somebody rings: one worker of a subscription at a time.

use std::time::Duration;

use sqlx::PgPool;

use crate::log::bell::{self, Bell, Heard, Hint, Silence};
use crate::log::error::Result;
use crate::log::progress::parse_xid;
use crate::log::wake::{Action, Event, Sleeper};

/// After work it is looked this often at the shortest interval before anybody sleeps: work tends to follow work, and a ticket costs a commit.
const SHORT_PAUSES: u32 = 8;
/// Without a bell nobody may sleep for long.
const LONGEST_UNTOLD: Duration = Duration::from_millis(250);
/// While older writers are running that may not have seen the ticket.
const WATCH: Duration = Duration::from_millis(5);

/// What a worker with nothing to do has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Look, and say what was there.
    Look,
    /// Wait for the bell, but no longer than this.
    Rest(Duration),
    /// Ask again.
    Ask,
}

/// The bell, and how far its holder has fallen asleep.
pub(super) struct Ear {
    pool: PgPool,
    consumer: String,
    hint: Hint,
    idle: (Duration, Duration),
    bell: Option<Bell>,
    sleeper: Sleeper,
    /// How often nothing was there since something was.
    idle_looks: u32,
    /// Of the look that is about to be made: every writer below has ended.
    xmin: u64,
}

impl Ear {
    pub(super) fn new(pool: PgPool, consumer: String, hint: Hint, idle: (Duration, Duration)) -> Self {
        let sleeper = Sleeper::default();
        Self { pool, consumer, hint, idle, bell: None, sleeper, idle_looks: 0, xmin: 0 }
    }

    /// One statement of the protocol at most.
    pub(super) async fn step(&mut self) -> Result<Next> {
        let mut connection = self.pool.acquire().await?;
        let (_, longest) = self.idle;
        if self.bell.is_none() {
            let options = self.pool.connect_options();
            let bell = Bell::hang(&options, &mut connection, self.hint).await?;
            if let Some(silence) = bell.silence() {
                let consumer = self.consumer.as_str();
                tracing::info!(consumer, %silence, "nobody wakes this consumer: it looks for itself");
            }
            self.bell = Some(bell);
        }
        match self.sleeper.next() {
            Action::Look => {
                self.xmin = 0;
                if self.sleeper.is_armed() {
                    // Before looking: what commits in between is seen by the look.
                    let xmin: String =
                        sqlx::query_scalar("select pg_snapshot_xmin(pg_current_snapshot())::text")
                            .fetch_one(&mut *connection)
                            .await?;
                    self.xmin = parse_xid(&xmin)?;
                }
                return Ok(Next::Look);
            }
            Action::TakeTicket if self.can_sleep() && bell::may_arm(&mut connection).await? => {
                let ticket = bell::take_ticket(&mut connection, longest + Duration::from_secs(1)).await?;
                self.sleeper.on(Event::Ticket(ticket));
            }
            Action::TakeTicket => {
                self.sleeper = Sleeper::default();
                let doublings = self.idle_looks.saturating_sub(SHORT_PAUSES).min(16);
                let pause = self.idle.0.saturating_mul(1 << doublings).min(longest).min(LONGEST_UNTOLD);
                return Ok(Next::Rest(pause));
            }
            Action::TakeXid => {
                let xid = bell::take_xid(&mut connection).await?;
                self.sleeper.on(Event::Xid(xid));
            }
            Action::Disarm(ticket) => {
                bell::disarm(&mut connection, ticket).await?;
                self.sleeper.on(Event::Disarmed);
            }
            Action::Watch => return Ok(Next::Rest(WATCH)),
            Action::Sleep => {
                let due: Option<f64> = sqlx::query_scalar("select postrider.next_batch_at($1)")
                    .bind(&self.consumer)
                    .fetch_one(&mut *connection)
                    .await?;
                let due =
                    due.map_or(longest, |seconds| Duration::from_secs_f64(seconds.clamp(0.001, 86_400.0)));
                return Ok(Next::Rest(due.min(longest)));
            }
        }
        Ok(Next::Ask)
    }

    /// What the look brought.
    pub(super) fn looked(&mut self, found: bool) {
        self.sleeper.on(Event::Looked { found, xmin: self.xmin });
        if found {
            self.idle_looks = 0;
        } else if !self.sleeper.is_armed() {
            self.idle_looks = self.idle_looks.saturating_add(1);
            self.sleeper.doze();
        }
    }

    /// Waits; whether somebody rang.
    pub(super) async fn rest(&mut self, longest: Duration) -> Result<bool> {
        let Some(bell) = &mut self.bell else { return Ok(false) };
        match bell.wait(longest).await? {
            Heard::Ticket(ticket) => {
                self.sleeper.on(Event::Notified(ticket));
                self.idle_looks = 0;
                return Ok(true);
            }
            Heard::Nothing => self.sleeper.on(Event::TimedOut),
            // What was rung in between is gone: begin anew, with a look.
            Heard::Broken => self.begin_anew(),
        }
        Ok(false)
    }

    /// Who rang is told that somebody is awake; otherwise every producer would go on ringing.
    pub(super) async fn hush(&mut self) -> Result<()> {
        if let Action::Disarm(ticket) = self.sleeper.next() {
            bell::disarm(&mut *self.pool.acquire().await?, ticket).await?;
            self.sleeper.on(Event::Disarmed);
        }
        Ok(())
    }

    /// The database was away: nothing that it said counts any more.
    pub(super) fn begin_anew(&mut self) {
        self.sleeper = Sleeper::default();
        self.idle_looks = 0;
    }

    fn can_sleep(&self) -> bool {
        let silence: Option<Silence> = self.bell.as_ref().and_then(Bell::silence);
        silence.is_none() && self.idle_looks > SHORT_PAUSES
    }
}
