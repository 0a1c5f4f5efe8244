//! A job as a handler gets it.

use time::OffsetDateTime;

/// A job that is this worker's for now.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Job<T> {
    /// Its id, the same in every attempt.
    pub id: i64,
    /// What to do.
    pub kind: String,
    /// With what.
    pub payload: T,
    /// What it must not run beside.
    pub key: Option<String>,
    /// Which attempt this is, from 1.
    pub attempt: i16,
    /// How many there will be at most.
    pub max_attempts: i16,
    /// When it was enqueued: the start of that transaction.
    pub created_at: OffsetDateTime,
}

/// As it comes from the database.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) claim: i64,
    /// In how many attempts the worker vanished.
    pub(super) lost: i16,
    pub(super) job: Job<String>,
}

impl Claimed {
    /// It may have cost others their life: it runs alone.
    pub(super) fn is_suspect(&self) -> bool {
        self.lost > 1
    }
}
