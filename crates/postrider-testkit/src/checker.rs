//! The books: what was committed against what a sink received.

mod receipts;
mod report;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use uuid::Uuid;

pub use receipts::Receipts;
pub use report::{Offenders, Report};

/// What a test did to the database: every event it tried to write and how its transaction ended.
///
/// Events are known by id; a key and a number that rises by any steps with each event of that key say in
/// which order they must arrive. Cheap enough for millions; share it by reference among tasks.
#[derive(Default)]
pub struct Ledger {
    entries: Mutex<HashMap<Uuid, Entry>>,
    /// Kept beside, because load loops ask for it in every turn.
    committed: AtomicUsize,
}

struct Entry {
    key: Box<str>,
    number: u64,
    fate: Fate,
}

/// How the event's transaction ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Not, or by rollback. Delivering it is an invention.
    Attempted,
    /// The connection died during COMMIT: it may or may not be there.
    InDoubt,
    Committed,
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Self {
        Self::default()
    }

    /// An event is about to be written. Unless its commit follows, it must never be delivered.
    pub fn attempt(&self, id: Uuid, key: &str, number: u64) {
        let entry = Entry { key: key.into(), number, fate: Fate::Attempted };
        self.entries().insert(id, entry);
    }

    /// The event's COMMIT has returned: from now on it must be delivered.
    ///
    /// # Panics
    /// If the event was never attempted: the test is wrong.
    pub fn commit(&self, id: Uuid) {
        self.decide(id, Fate::Committed);
    }

    /// The connection died during COMMIT: whether the event is there is unknown, and either is right.
    ///
    /// # Panics
    /// If the event was never attempted: the test is wrong.
    pub fn in_doubt(&self, id: Uuid) {
        self.decide(id, Fate::InDoubt);
    }

    /// How many events are known to be committed.
    pub fn committed(&self) -> usize {
        self.committed.load(Ordering::Relaxed)
    }

    /// Compares with what one sink received.
    pub fn check(&self, receipts: &Receipts) -> Report {
        report::compare(&self.entries(), &receipts.deliveries())
    }

    fn decide(&self, id: Uuid, fate: Fate) {
        let mut entries = self.entries();
        let entry = entries.get_mut(&id).unwrap_or_else(|| panic!("event {id} was never attempted"));
        if fate == Fate::Committed && entry.fate != Fate::Committed {
            self.committed.fetch_add(1, Ordering::Relaxed);
        }
        entry.fate = fate;
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<Uuid, Entry>> {
        // A panic elsewhere must not hide its cause behind a poisoned lock.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
