//! Parked events of the lanes that this relay holds: when they are tried again, and what came of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use postrider::log::error::Result;
use postrider::log::parking::{Attempt, Due, Tried};
use postrider::log::{Error, Record};
use uuid::Uuid;

use super::Pipeline;
use super::errand::{self, Errand};
use super::outlet::Sent;
use super::retries::NEWS;
use super::window::Part;

/// Parked events are fetched and tried so many at a time.
const PAGE: u32 = 100;

/// What one delivery carries.
pub(super) enum Work {
    /// What was read.
    Log(Vec<Part>),
    /// What was parked and is due.
    Parked(Vec<Due>),
}

impl Work {
    pub(super) fn records(&self) -> Vec<&Record> {
        match self {
            Self::Log(parts) => parts.iter().flat_map(Part::records).collect(),
            Self::Parked(due) => due.iter().map(|due| &due.record).collect(),
        }
    }

    pub(super) fn lanes(&self) -> BTreeSet<i16> {
        match self {
            Self::Log(parts) => parts.iter().map(Part::lane).collect(),
            Self::Parked(due) => due.iter().map(|due| due.record.lane).collect(),
        }
    }
}

impl Pipeline {
    /// Asks the database for what is needed most.
    pub(super) fn start_errand(&mut self) {
        if self.errand.is_some() {
            return;
        }
        self.retries.on_connection(self.reader.connection());
        let now = Instant::now();
        let (desk, holder) = (self.desk.clone(), self.reader.holder());
        if self.is_draining() && self.retries.unstored > 0 {
            // It is tried again by whoever comes next.
            self.retries.attempts.clear();
        }
        self.retries.storing =
            !self.retries.attempts.is_empty() && self.may_resolve() && now >= self.retries.store_at;
        if self.retries.storing {
            self.errand = Some(errand::resolve(desk, holder, self.retries.attempts.clone()));
        } else if self.is_draining() || (self.retries.failures > 0 && now < self.retries.news_at) {
            // Nothing new is begun.
        } else if let Some(known) = self.doubtful.clone() {
            self.errand = Some(errand::taken_back(desk, holder, known));
        } else if let Some(unknown) = self.unknown_lanes() {
            self.errand = Some(errand::held(desk, holder, unknown));
        } else if now >= self.retries.news_at {
            self.retries.news_at = now + NEWS;
            let lanes = self.retry_lanes().into_keys().collect();
            self.errand = Some(errand::news(desk, holder, lanes, self.is_strict()));
        } else if !self.retries.is_busy()
            && self.paused == Some(false)
            && self.retries.look_at.is_some_and(|at| now >= at)
        {
            self.retries.look_at = None;
            self.errand = Some(self.fetch_due());
        }
    }

    /// The lanes whose parked events we may try, with the epoch in which each came to us.
    fn retry_lanes(&self) -> BTreeMap<i16, i64> {
        let retiring = self.reader.retiring();
        let mut lanes = self.reader.tenures();
        lanes.retain(|lane, _| !retiring.contains(lane));
        lanes
    }

    fn fetch_due(&mut self) -> errand::Running {
        self.retries.tenures = self.retry_lanes();
        let lanes: Vec<i16> = self.retries.tenures.keys().copied().collect();
        // Kept from here on, not from when it comes back: one that is given up in between would be tried by two.
        self.reader.keep(lanes.iter().copied().collect());
        let most = PAGE.min(self.settings.max_in_flight.div_ceil(2));
        errand::due(self.desk.clone(), self.reader.holder(), lanes, self.is_strict(), most)
    }

    /// Outcomes count only for who holds the lane. After a loss it comes back in a moment.
    fn may_resolve(&self) -> bool {
        self.is_draining() || !self.reader.lanes().is_empty()
    }

    /// Lanes of which it is not known yet what is parked.
    fn unknown_lanes(&self) -> Option<Vec<(i16, i64)>> {
        let unknown: Vec<(i16, i64)> =
            self.window.batches().flat_map(|batch| self.held.unknown(batch)).collect();
        (self.is_strict() && !unknown.is_empty()).then_some(unknown)
    }

    pub(super) fn on_errand(&mut self, done: Result<Errand>) -> Result<()> {
        if done.is_ok() && self.retries.on_success() {
            tracing::info!(sink = self.settings.name, "the database answers about parked events again");
        }
        match done {
            Ok(Errand::News { paused, due_in }) => {
                self.paused = Some(paused);
                self.retries.look_in(due_in);
            }
            // The reader begins anew, and creates it.
            Ok(Errand::Forgotten) => {
                return Err(Error::SinkForgotten { sink: self.settings.name.clone() });
            }
            Ok(Errand::Due(due)) => {
                // Kept until the outcome is stored: nobody else may try them meanwhile.
                self.reader.keep(due.iter().map(|due| due.record.lane).collect());
                self.retries.due = due;
            }
            Ok(Errand::NothingDue { due_in }) => {
                self.retries.owing = false;
                self.reader.keep(BTreeSet::new());
                self.retries.look_in(due_in);
            }
            Ok(Errand::Resolved(free)) => {
                self.retries.attempts.clear();
                self.reader.keep(BTreeSet::new());
                self.held.free(&free);
                // More may be behind what was just delivered.
                self.retries.look_at(Instant::now());
            }
            Ok(Errand::TakenBack(gone)) => {
                self.doubtful = None;
                self.on_taken_back(gone);
            }
            Ok(Errand::Held(lanes, keys)) => self.held.load(&lanes, keys),
            Err(error) if error.is_transient() => {
                if !self.retries.is_busy() {
                    self.reader.keep(BTreeSet::new());
                }
                // While the database is away the reader says so, and louder.
                if self.retries.on_failure(&error) && self.reader.trouble().is_none() {
                    tracing::warn!(
                        sink = self.settings.name,
                        %error,
                        "the database does not answer about parked events, and with strict ordering others may wait for that; trying again"
                    );
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Events were delivered that a failover has taken back.
    fn on_taken_back(&self, events: Vec<Uuid>) {
        if events.is_empty() {
            tracing::info!(
                sink = self.settings.name,
                "after a failover: everything that was delivered lately is there"
            );
            return;
        }
        tracing::error!(
            sink = self.settings.name,
            count = events.len(),
            ids = ?events.iter().take(20).collect::<Vec<_>>(),
            "a failover took back events that were delivered already: the server that was promoted never had them. Tell who received \
             them; log.standbys makes the relay wait until a standby has an event"
        );
        self.telemetry.taken_back(events.len());
        self.face.on_taken_back(events);
    }

    /// Parked events were tried again.
    pub(super) fn on_retried(&mut self, due: &[Due], sent: Vec<Sent>) {
        self.retries.trying = false;
        self.retries.owing = sent.iter().any(|sent| matches!(sent, Sent::Unsent));
        for (due, sent) in due.iter().zip(sent) {
            let outcome = match sent {
                Sent::Delivered => {
                    self.face.on_delivered(1);
                    Tried::Delivered
                }
                Sent::Filtered => Tried::Filtered,
                Sent::Refused(refusal) => {
                    Tried::Refused(self.refused(&due.record, &refusal, due.attempts + 1))
                }
                Sent::Behind | Sent::Unsent => continue,
            };
            self.retries.attempts.push(Attempt { id: due.record.id, outcome });
        }
        if self.retries.attempts.is_empty() {
            self.reader.keep(BTreeSet::new());
            self.retries.look_at(Instant::now() + NEWS);
        }
    }
}
