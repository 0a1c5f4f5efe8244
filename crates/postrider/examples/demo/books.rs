//! What was written, what arrived, and how long it took.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postrider::log::Record;
use postrider_testkit::{Ledger, Receipts, Report};
use time::OffsetDateTime;
use uuid::Uuid;

/// The load's own events are in the ledger from the start. Yours are known from the log itself.
#[derive(Default)]
pub(crate) struct Books {
    ledger: Ledger,
    receipts: Receipts,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The load's events: the number of each within its key, and when its COMMIT was sent.
    written: HashMap<Uuid, (u64, Instant)>,
    received: HashSet<Uuid>,
    yours: HashSet<Uuid>,
}

/// How long an event was under way, and whose it is.
#[derive(Clone, Copy)]
pub(crate) enum Lag {
    /// Since its COMMIT was sent.
    Load(Duration),
    /// Since its transaction began: we were not there when it committed.
    Yours(Duration),
}

impl Books {
    /// An event is written; what follows is COMMIT or ROLLBACK.
    pub(crate) fn written(&self, id: Uuid, key: &str, number: u64) {
        self.ledger.attempt(id, key, number);
        self.state().written.insert(id, (number, Instant::now()));
    }

    /// COMMIT has returned.
    pub(crate) fn committed(&self, id: Uuid) {
        self.ledger.commit(id);
    }

    /// An event has arrived.
    pub(crate) fn receive(&self, record: &Record, at: Instant) -> Lag {
        let mut state = self.state();
        state.received.insert(record.id);
        if let Some(&(number, commit)) = state.written.get(&record.id) {
            self.receipts.record(0, record.id, record.key.as_deref().unwrap_or_default(), number);
            return Lag::Load(at.saturating_duration_since(commit));
        }
        // No order is asked of what you write: a key of its own for each.
        self.receipts.record(0, record.id, &record.id.to_string(), 0);
        let age = OffsetDateTime::now_utc() - record.created_at;
        Lag::Yours(age.try_into().unwrap_or_default())
    }

    /// Whether all these have arrived.
    pub(crate) fn have_received(&self, ids: &HashSet<Uuid>) -> bool {
        ids.is_subset(&self.state().received)
    }

    /// Enters what you wrote, so that the check covers it: all that the log held before the last reading (`owed`), and of what came
    /// later (`log` is the log after it) what was received.
    pub(crate) fn note_yours(&self, owed: &HashSet<Uuid>, log: &HashSet<Uuid>) {
        let mut state = self.state();
        let late = log.iter().filter(|id| state.received.contains(id));
        let yours: HashSet<Uuid> =
            owed.iter().chain(late).filter(|id| !state.written.contains_key(id)).copied().collect();
        for &id in &yours {
            self.ledger.attempt(id, &id.to_string(), 0);
            self.ledger.commit(id);
        }
        state.yours = yours;
    }

    /// How many events were not of the load.
    pub(crate) fn yours(&self) -> usize {
        self.state().yours.len()
    }

    /// What was committed against what arrived.
    pub(crate) fn close(&self) -> Report {
        self.ledger.check(&self.receipts)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
