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
    /// It may have cost others their life: it runs alone. Once is chance, but with its last attempt a neighbour of the culprit would be dead. The same rule
    /// is in `postrider.claim_band`.
    pub(super) fn is_suspect(&self) -> bool {
        self.lost > 1 || self.lost > 0 && self.job.attempt >= self.job.max_attempts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_suspect_after_two_losses_or_before_its_last_attempt_after_one() {
        let is_suspect = |lost, attempt| {
            let job = Job {
                id: 1,
                kind: String::new(),
                payload: String::new(),
                key: None,
                attempt,
                max_attempts: 3,
                created_at: OffsetDateTime::UNIX_EPOCH,
            };
            Claimed { claim: 1, lost, job }.is_suspect()
        };
        assert_eq!(
            [(0, 3), (1, 2), (1, 3), (2, 2)].map(|(lost, attempt)| is_suspect(lost, attempt)),
            [false, false, true, true]
        );
    }
}
