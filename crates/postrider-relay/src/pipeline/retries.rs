//! Where retrying parked events stands: what is due, what was tried, when the database is asked again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use postrider::log::Error;
use postrider::log::parking::{Attempt, Due};
use uuid::Uuid;

use super::backoff;
use super::deliver::chain;

/// How often the database is asked for news: a pause, an event that somebody wants tried again.
pub(super) const NEWS: Duration = Duration::from_secs(1);
/// What has failed so often in a row is told.
const TROUBLE: u32 = 2;

#[derive(Debug)]
pub(super) struct Retries {
    /// Fetched and not tried yet.
    pub(super) due: Vec<Due>,
    /// The lanes we held when they were fetched, with the epoch in which each had come to us.
    pub(super) tenures: BTreeMap<i16, i64>,
    /// Tried and not stored yet.
    pub(super) attempts: Vec<Attempt>,
    /// When to look whether something is due.
    pub(super) look_at: Option<Instant>,
    pub(super) news_at: Instant,
    /// Questions that failed in a row.
    pub(super) failures: u32,
    /// Outcomes that could not be stored, in a row, and when that is tried again. Counted apart: what cannot be stored must not keep
    /// questions from being asked, on which all other keys wait.
    pub(super) unstored: u32,
    pub(super) store_at: Instant,
    /// Whether the errand on its way stores outcomes.
    pub(super) storing: bool,
    /// What is wrong, once it is no passing thing.
    pub(super) trouble: Option<String>,
    /// The reader's, when it was last seen.
    pub(super) connection: Option<Uuid>,
    /// Whether what was fetched is being tried.
    pub(super) trying: bool,
    /// Whether something that was due could not be sent.
    pub(super) owing: bool,
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            due: Vec::new(),
            tenures: BTreeMap::new(),
            attempts: Vec::new(),
            look_at: None,
            news_at: Instant::now(),
            failures: 0,
            unstored: 0,
            store_at: Instant::now(),
            storing: false,
            trouble: None,
            connection: None,
            trying: false,
            owing: false,
        }
    }
}

impl Retries {
    /// Of a new reader: what was tried before and is not stored yet.
    pub(super) fn with(attempts: Vec<Attempt>) -> Self {
        Self { attempts, ..Self::default() }
    }

    pub(super) fn into_attempts(self) -> Vec<Attempt> {
        self.attempts
    }

    pub(super) fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// What is due, as far as it is in lanes that were held all the while: what others had in between they may have delivered. The
    /// first `most` of them; the others are fetched again.
    pub(super) fn take_due(&mut self, tenures: &BTreeMap<i16, i64>, most: usize) -> Option<Vec<Due>> {
        if most == 0 {
            return None;
        }
        let mut due = std::mem::take(&mut self.due);
        due.retain(|due| {
            let lane = due.record.lane;
            tenures.contains_key(&lane) && tenures.get(&lane) == self.tenures.get(&lane)
        });
        due.truncate(most);
        if due.is_empty() {
            self.look_at(Instant::now() + NEWS);
            return None;
        }
        self.trying = true;
        Some(due)
    }

    /// Whether something is due, as far as is known.
    pub(super) fn is_owing(&self) -> bool {
        self.owing || self.has_due()
    }

    /// How many were tried whose outcome is not stored yet.
    pub(super) fn unresolved(&self) -> usize {
        self.attempts.len()
    }

    pub(super) fn look_at(&mut self, when: Instant) {
        self.look_at = Some(self.look_at.map_or(when, |planned| planned.min(when)));
    }

    pub(super) fn look_in(&mut self, due_in: Option<Duration>) {
        if let Some(due_in) = due_in {
            self.look_at(Instant::now() + due_in);
        }
    }

    /// When an errand is to be run.
    pub(super) fn next_look(&self) -> Instant {
        let look = self.look_at.filter(|_| !self.is_busy());
        look.map_or(self.news_at, |look| look.min(self.news_at))
    }

    /// The database is there again if the reader has just connected to it: what failed need not wait any longer.
    pub(super) fn on_connection(&mut self, connection: Option<Uuid>) {
        if connection.is_some()
            && std::mem::replace(&mut self.connection, connection) != connection
            && (self.failures > 0 || self.unstored > 0)
        {
            (self.failures, self.unstored) = (0, 0);
            (self.news_at, self.store_at) = (Instant::now(), Instant::now());
        }
    }

    /// Whether nothing is waiting to be stored.
    pub(super) fn is_resolved(&self) -> bool {
        self.attempts.is_empty()
    }

    /// Why parked events cannot be asked about, or what came of them not be stored.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// What failed once may be over by itself. True where it is not, and nobody was told.
    pub(super) fn on_failure(&mut self, error: &Error) -> bool {
        let failures = if self.storing { &mut self.unstored } else { &mut self.failures };
        *failures += 1;
        let (failures, again) = (*failures, Instant::now() + backoff::pause(&backoff::RECONNECT, *failures));
        let what = if self.storing {
            self.store_at = again;
            "what came of parked events cannot be stored"
        } else {
            self.news_at = again;
            "parked events cannot be asked about"
        };
        failures >= TROUBLE && self.trouble.replace(format!("{what}: {}", chain(error))).is_none()
    }

    /// True where somebody was told that it failed.
    pub(super) fn on_success(&mut self) -> bool {
        let failures = if self.storing { &mut self.unstored } else { &mut self.failures };
        *failures = 0;
        self.unstored < TROUBLE && self.failures < TROUBLE && self.trouble.take().is_some()
    }

    pub(super) fn is_busy(&self) -> bool {
        self.trying || !self.due.is_empty() || !self.attempts.is_empty()
    }
}
