//! The wake-up protocol: how a reader falls asleep without missing the event that is committed at that moment.
//!
//! `NOTIFY` in every producer's transaction would serialise their commits, so a producer notifies only while some reader
//! sleeps, which it learns from two sequences it can read outside MVCC. A reader about to sleep takes a **ticket**
//! (`nextval(armed)`), then an xid of its own, and looks until every transaction older than that xid has ended: a writer
//! with an older xid may not have seen the ticket, one with a younger xid must have. Whoever receives ticket v, asleep or
//! awake, sets `disarmed` to at least v. Timers and shutdown never disarm.
//!
//! This file is the protocol alone, without a database, so that the tests can check every interleaving of it
//! (`tests/it/wake_model.rs`); [`bell`](super::bell) does what it asks for.

/// What the reader has to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// Read a round.
    Look,
    /// Take the next ticket and say until when it is good.
    TakeTicket,
    /// Begin a transaction of our own and take its xid.
    TakeXid,
    /// Set `disarmed` to at least this ticket.
    Disarm(u64),
    /// Nothing until a notification comes or a while has passed: older writers are still running.
    Watch,
    /// Nothing until a notification comes or the sleep is over.
    Sleep,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Event {
    /// A round was read: whether it had rows, and the xmin of its snapshot.
    Looked {
        /// Something was there.
        found: bool,
        /// Every transaction below has ended.
        xmin: u64,
    },
    /// The ticket.
    Ticket(u64),
    /// The xid.
    Xid(u64),
    /// `disarmed` was set.
    Disarmed,
    /// A producer's notification with the ticket it saw.
    Notified(u64),
    /// The while or the sleep is over.
    TimedOut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum State {
    /// Reading; not armed.
    Awake,
    /// Nothing was found: about to arm.
    Drowsy,
    /// The ticket is taken: an xid is needed.
    Ticketed,
    /// Armed: looks until every transaction below the xid has ended.
    Settling { xid: u64 },
    /// Armed, the last look found older writers still running.
    Watching { xid: u64 },
    /// Armed, nothing older runs, nothing was found.
    Asleep,
}

/// One reader's side of the protocol.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sleeper {
    state: State,
    /// The highest ticket that was received and not yet disarmed.
    to_disarm: Option<u64>,
}

impl Default for Sleeper {
    fn default() -> Self {
        Self { state: State::Awake, to_disarm: None }
    }
}

impl Sleeper {
    /// What to do next.
    pub fn next(&self) -> Action {
        if let Some(ticket) = self.to_disarm {
            return Action::Disarm(ticket);
        }
        match self.state {
            State::Awake | State::Settling { .. } => Action::Look,
            State::Drowsy => Action::TakeTicket,
            State::Ticketed => Action::TakeXid,
            State::Watching { .. } => Action::Watch,
            State::Asleep => Action::Sleep,
        }
    }

    /// The wish to sleep after a look that found nothing. Without it the reader goes on looking.
    pub fn doze(&mut self) {
        if self.state == State::Awake {
            self.state = State::Drowsy;
        }
    }

    /// Takes note of what happened.
    pub fn on(&mut self, event: Event) {
        self.state = match (self.state, event) {
            (_, Event::Notified(ticket)) => {
                self.to_disarm = self.to_disarm.max(Some(ticket));
                State::Awake
            }
            (state, Event::Disarmed) => {
                self.to_disarm = None;
                state
            }
            (State::Drowsy, Event::Ticket(_)) => State::Ticketed,
            (State::Ticketed, Event::Xid(xid)) | (State::Watching { xid }, Event::TimedOut) => {
                State::Settling { xid }
            }
            (State::Settling { .. }, Event::Looked { found: true, .. })
            | (State::Asleep, Event::TimedOut) => State::Awake,
            (State::Settling { xid }, Event::Looked { xmin, .. }) if xmin > xid => State::Asleep,
            (State::Settling { xid }, Event::Looked { .. }) => State::Watching { xid },
            (state, _) => state,
        };
    }

    /// Whether producers see our ticket.
    pub fn is_armed(&self) -> bool {
        matches!(
            self.state,
            State::Ticketed | State::Settling { .. } | State::Watching { .. } | State::Asleep
        )
    }
}

/// A producer's decision, the twin of `postrider.ring_bell()`: the ticket to notify, if any.
pub fn hint(armed: u64, disarmed: u64, now: u64, armed_until: u64) -> Option<u64> {
    (armed > disarmed && now < armed_until).then_some(armed)
}
