//! What was committed, what arrived, and how long it took.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use postrider_testkit::{Ledger, Receipts, Report};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::published::Published;

/// The load's own events are in the ledger from the start. Yours are known from the log itself. What counts as delivered is what is in
/// the file.
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
    shown: HashSet<Uuid>,
    filed: HashSet<Uuid>,
    /// Committed, and not in the file yet; since when.
    owed: HashMap<Uuid, Instant>,
    yours: HashSet<Uuid>,
}

/// An event on the screen.
#[derive(Clone, Copy)]
pub(crate) struct Shown {
    /// How long it was under way: since its COMMIT was sent, or, if it is yours, since its transaction began.
    pub(crate) lag: Duration,
    pub(crate) is_yours: bool,
    /// It was shown before: after a crash the same event may come twice.
    pub(crate) is_again: bool,
}

impl Books {
    /// An event is written; what follows is COMMIT or ROLLBACK.
    pub(crate) fn written(&self, id: Uuid, key: &str, number: u64) {
        self.ledger.attempt(id, key, number);
        self.state().written.insert(id, (number, Instant::now()));
    }

    /// COMMIT has returned. The event may have arrived already.
    pub(crate) fn committed(&self, id: Uuid) {
        self.ledger.commit(id);
        let mut state = self.state();
        if !state.filed.contains(&id) {
            state.owed.insert(id, Instant::now());
        }
    }

    /// An event has come out of a relay's standard output.
    pub(crate) fn show(&self, event: &Published, at: Instant) -> Shown {
        let mut state = self.state();
        let is_again = !state.shown.insert(event.id);
        if let Some(&(_, commit)) = state.written.get(&event.id) {
            return Shown { lag: at.saturating_duration_since(commit), is_yours: false, is_again };
        }
        let age = OffsetDateTime::now_utc() - event.at;
        Shown { lag: age.try_into().unwrap_or_default(), is_yours: true, is_again }
    }

    /// An event is in the file.
    pub(crate) fn file(&self, event: &Published) {
        let mut state = self.state();
        state.filed.insert(event.id);
        state.owed.remove(&event.id);
        match state.written.get(&event.id) {
            Some(&(number, _)) => self.receipts.record(0, event.id, &event.key, number),
            // No order is asked of what you write: a key of its own for each.
            None => self.receipts.record(0, event.id, &event.id.to_string(), 0),
        }
    }

    /// The load's events that are committed.
    pub(crate) fn count_committed(&self) -> usize {
        self.ledger.committed()
    }

    /// Different events in the file.
    pub(crate) fn count_filed(&self) -> usize {
        self.state().filed.len()
    }

    /// Lines in the file beyond the first of each event.
    pub(crate) fn count_repeated(&self) -> usize {
        self.receipts.len() - self.count_filed()
    }

    /// What is committed and not in the file yet.
    pub(crate) fn owed(&self) -> HashSet<Uuid> {
        self.state().owed.keys().copied().collect()
    }

    /// How many of these are not in the file.
    pub(crate) fn count_missing(&self, ids: &HashSet<Uuid>) -> usize {
        let state = self.state();
        ids.iter().filter(|id| !state.filed.contains(id)).count()
    }

    /// How long the oldest committed event has been waiting.
    pub(crate) fn longest_wait(&self) -> Duration {
        self.state().owed.values().min().map(Instant::elapsed).unwrap_or_default()
    }

    /// Enters what you wrote, so that the check covers it: all that the log held before the last reading (`owed`), and of what came
    /// later (`log` is the log after it) what was received.
    pub(crate) fn note_yours(&self, owed: &HashSet<Uuid>, log: &HashSet<Uuid>) {
        let mut state = self.state();
        let late = log.iter().filter(|id| state.filed.contains(id));
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

    /// What was committed against what is in the file.
    pub(crate) fn close(&self) -> Report {
        self.ledger.check(&self.receipts)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
