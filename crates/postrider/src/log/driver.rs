//! The task behind a reader: it drives the wake-up protocol, keeps the lease, reads ahead and settles.

mod failing;
mod looking;
mod resting;
mod storing;
mod waiting;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::bell::{self, Silence};
use super::error::{Error, Result};
use super::lanes::Settling;
use super::lease;
use super::link::Link;
use super::page_size::PageSize;
use super::parking::{Holder, Parking};
use super::reader::{Batch, ReaderOptions, Settled, SharedWishes};
use super::report::Report;
use super::room::Room;
use super::servers::Servers;
use super::settling::{Ended, Running};
use super::sink::Start;
use super::turns::Turn;
use super::wake::{Action, Event, Sleeper};

/// A round gets this many times two as long as the database usually may take.
const MOST_SLOW_ROUNDS: u32 = 4;

/// What a reader asks of its task.
#[derive(Debug)]
pub(super) enum Command {
    Settle(Settle),
    Close { reply: oneshot::Sender<Result<()>> },
}

/// Store how far each lane is delivered.
#[derive(Debug)]
pub(super) struct Settle {
    pub(super) sink: String,
    pub(super) link: Uuid,
    pub(super) cursors: Vec<(i16, Settling)>,
    pub(super) parking: Parking,
    pub(super) reply: oneshot::Sender<Result<Settled>>,
}

/// What a reader can see of its task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct State {
    /// With the epoch in which each came to it.
    pub(super) lanes: BTreeMap<i16, i64>,
    /// Those it is about to give up.
    pub(super) retiring: Vec<i16>,
    pub(super) silence: Option<Silence>,
    pub(super) link: Option<Uuid>,
    pub(super) timeline: Option<i64>,
    pub(super) lease_ends: Option<Instant>,
    pub(super) settled_position: Option<i64>,
    pub(super) trouble: Option<Arc<str>>,
    pub(super) shortened: u64,
}

pub(super) struct Driver {
    database: Servers,
    options: ReaderOptions,
    holder: Holder,
    link: Option<Link>,
    /// On its way, through the link's second connection.
    settling: Option<Running>,
    /// A settling whose end was seen while waiting.
    ended: Option<Ended>,
    /// Read and not yet taken.
    ready: Option<Batch>,
    batches: mpsc::Sender<Result<Batch>>,
    commands: mpsc::Receiver<Command>,
    /// A command that ended a wait.
    pending: Option<Command>,
    state: watch::Sender<State>,
    failures: u32,
    /// How often in a row storing has failed, and when to connect again after it.
    unsettled: u32,
    connect_at: Option<Instant>,
    /// The page that was asked for; rounds that take too long are read with smaller ones.
    usual_page: u32,
    /// How often in a row a round has taken too long all the same.
    slow_rounds: u32,
    pages: PageSize,
    room: Room,
    /// To read a large event; waited for, or come.
    turn: Option<Turn>,
    /// The last round found nothing but what is too large to be read without it.
    only_large: bool,
    idle_rounds: u32,
    /// The end of the pause or sleep it is in.
    resting_until: Option<Instant>,
    ticket_ends: Instant,
    /// A bell ended the rest, and nothing was read since.
    rung: bool,
    /// Why it could not read the last time.
    trouble: Option<Arc<str>>,
    /// Slots that it emptied before their time.
    shortened: u64,
    wishes: SharedWishes,
    /// What the reader says of itself.
    report: watch::Receiver<Report>,
}

impl Driver {
    pub(super) async fn connect(
        database: Servers,
        options: ReaderOptions,
        batches: mpsc::Sender<Result<Batch>>,
        commands: mpsc::Receiver<Command>,
        state: watch::Sender<State>,
        wishes: SharedWishes,
        report: watch::Receiver<Report>,
    ) -> Result<Self> {
        let reader = Uuid::now_v7();
        let patience = match options.start {
            // The log may have to be walked once.
            Start::At(_) => options.patience * 3,
            Start::Now | Start::Earliest => options.patience,
        };
        let connecting = Link::connect(&database, &options, reader, &wishes, &report);
        let link = in_time(patience, Box::pin(connecting)).await?;
        let driver = Self {
            database,
            usual_page: options.page,
            slow_rounds: 0,
            pages: PageSize::default(),
            room: Room::new(options.batch_bytes.clone()),
            turn: None,
            only_large: false,
            options,
            holder: Holder { sink: link.tenure.sink, reader },
            link: Some(link),
            settling: None,
            ended: None,
            ready: None,
            batches,
            commands,
            pending: None,
            state,
            failures: 0,
            unsettled: 0,
            connect_at: None,
            idle_rounds: 0,
            resting_until: None,
            ticket_ends: Instant::now(),
            rung: false,
            trouble: None,
            shortened: 0,
            wishes,
            report,
        };
        driver.show();
        Ok(driver)
    }

    pub(super) fn holder(&self) -> Holder {
        self.holder
    }

    /// Runs until the reader is closed or dropped, or something happens that needs a person.
    pub(super) async fn run(mut self) {
        loop {
            let command = match self.pending.take() {
                Some(command) => Some(command),
                None => self.commands.try_recv().ok(),
            };
            match command {
                Some(Command::Settle(settle)) => {
                    self.end_settling().await;
                    self.begin_settling(settle);
                    continue;
                }
                Some(Command::Close { reply }) => {
                    self.end_settling().await;
                    let _ = reply.send(self.close().await);
                    return;
                }
                None => {}
            }
            if self.ended.is_some() || self.settling.as_ref().is_some_and(JoinHandle::is_finished) {
                self.end_settling().await;
            }
            if let Some(at) = self.connect_at {
                tokio::select! {
                    () = tokio::time::sleep_until(at.into()) => self.connect_at = None,
                    command = self.commands.recv() => {
                        self.pending = command;
                        continue;
                    }
                }
            }
            self.on_news();
            match self.step_in_time().await {
                Ok(()) => self.failures = 0,
                Err(error) if error.is_transient() => self.fail(&error).await,
                Err(error) => return self.end(error).await,
            }
            self.show();
        }
    }

    fn on_news(&mut self) {
        if self.report.has_changed().unwrap_or_default()
            && let Some(link) = &mut self.link
        {
            self.report.mark_unchanged();
            link.hasten(&self.options);
        }
    }

    /// A server that is gone without a word would hold us for as long as the kernel goes on sending again.
    async fn step_in_time(&mut self) -> Result<()> {
        // Waits for a bell or a command end by themselves, with the next heartbeat at the latest.
        let duty = self.link.as_ref().map(Link::next_duty).unwrap_or_default();
        // One event alone may take longer than an answer usually may, and has to come all the same.
        let patience = self.options.patience * (1 << self.slow_rounds.min(MOST_SLOW_ROUNDS)) + duty;
        in_time(patience, self.step()).await
    }

    /// One step: at most one statement of the protocol, or one wait.
    async fn step(&mut self) -> Result<()> {
        if self.link.is_none() {
            self.connect_again().await?;
        }
        let Some(link) = &mut self.link else { return Ok(()) };
        link.heed_freed();
        if link.next_duty().is_zero() && self.settling.is_some() {
            return self.outlast_settling().await;
        }
        let alive = link.keep_alive(&self.options, self.holder.reader, &self.wishes, &self.report).await;
        self.shortened += std::mem::take(&mut link.shortened);
        if alive? {
            // New lanes may have been waiting for a while: look before resting any longer.
            self.idle_rounds = 0;
            self.resting_until = None;
            link.sleeper = Sleeper::default();
            if let Some(batch) = &mut self.ready {
                batch.pages.retain(|lane, (place, _)| link.lanes.holds(*lane, *place));
            }
            self.ready.take_if(|batch| batch.is_empty());
        }
        if self.ready.is_some() {
            return self.hand_over().await;
        }
        if link.lanes.is_empty() {
            return self.rest(self.options.idle.1).await;
        }
        let (shortest, longest) = self.options.idle;
        if self.room.is_full() {
            return self.wait_for_room().await;
        }
        if link.has_large() {
            let turn = self.turn.get_or_insert_with(|| self.room.queue());
            if self.only_large && !turn.has_come() {
                return self.wait_for_turn().await;
            }
        }
        match link.sleeper.next() {
            Action::Look => return self.look().await,
            Action::TakeTicket => {
                self.ticket_ends = Instant::now() + longest;
                let ticket = bell::take_ticket(&mut link.connection, longest + shortest).await?;
                link.sleeper.on(Event::Ticket(ticket));
            }
            Action::TakeXid => {
                let xid = bell::take_xid(&mut link.connection).await?;
                link.lanes.bound_by(xid, u64::MAX);
                link.sleeper.on(Event::Xid(xid));
            }
            // One look more than the protocol asks for never hurts, and what rang is in hand before disarming has committed.
            Action::Disarm(_) if self.rung => {
                if let Some((pages, _)) = self.read().await? {
                    self.rung = false;
                    if !pages.is_empty() {
                        self.on_found(pages);
                    }
                }
            }
            Action::Disarm(ticket) => {
                bell::disarm(&mut link.connection, ticket).await?;
                link.sleeper.on(Event::Disarmed);
            }
            // A transaction that is open for long keeps us watching: producers must go on seeing a ticket that is good.
            Action::Watch if Instant::now() >= self.ticket_ends => {
                link.sleeper = Sleeper::default();
                link.sleeper.doze();
            }
            Action::Watch => return self.rest(self.pause()).await,
            // Never longer than producers heed the ticket.
            Action::Sleep => {
                return self.rest(self.ticket_ends.saturating_duration_since(Instant::now())).await;
            }
        }
        Ok(())
    }

    async fn connect_again(&mut self) -> Result<()> {
        let (database, reader) = (&self.database, self.holder.reader);
        let connecting = Link::connect(database, &self.options, reader, &self.wishes, &self.report);
        let mut link = in_time(self.options.patience, Box::pin(connecting)).await?;
        // Another one of the same name: whoever asks for what is parked, or settles, would mean the one that is gone.
        if link.tenure.sink != self.holder.sink {
            // Whoever reads it next need not wait for a lease to run out.
            let _ = lease::release(&mut link.connection, reader).await;
            return Err(Error::SinkForgotten { sink: self.options.sink.clone() });
        }
        self.link = Some(link);
        self.trouble = None;
        Ok(())
    }

    async fn close(&mut self) -> Result<()> {
        match &mut self.link {
            Some(link) => lease::release(&mut link.connection, self.holder.reader).await,
            None => Ok(()),
        }
    }

    fn show(&self) {
        let state = self.link.as_ref().map(|link| State {
            lanes: link.lanes.tenures(),
            retiring: link.lanes.retiring().to_vec(),
            silence: link.bell.silence(),
            link: Some(link.id),
            timeline: Some(link.timeline),
            lease_ends: Some(link.lease_ends()),
            settled_position: link.lanes.settled_position(),
            trouble: self.trouble.clone(),
            shortened: self.shortened,
        });
        let state = state.unwrap_or_else(|| State {
            trouble: self.trouble.clone(),
            shortened: self.shortened,
            ..State::default()
        });
        self.state.send_if_modified(|shown| {
            let changed = *shown != state;
            *shown = state;
            changed
        });
    }
}

/// Does not wait for longer than that.
async fn in_time<T>(patience: Duration, awaited: impl Future<Output = Result<T>>) -> Result<T> {
    let in_time = tokio::time::timeout(patience, awaited).await;
    in_time.unwrap_or_else(|_| Err(Error::NoAnswer { seconds: patience.as_secs() }))
}
