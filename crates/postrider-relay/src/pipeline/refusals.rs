//! Refusals: what is stored about them, and what the log of the relay says.

use std::time::{Duration, Instant};

use postrider::log::Record;
use postrider::log::parking::Refused;

use super::{Pipeline, backoff};
use crate::sink::Refusal;

/// Of a sink that refuses thousands in a second one is shown, and the number of the others.
const EVERY: Duration = Duration::from_secs(1);

/// What was said of refusals, so that they do not flood the log.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    said_at: Option<Instant>,
    unsaid: u32,
}

impl Refusals {
    /// Whether this one is shown, and how many were not since the last.
    fn shown(&mut self, now: Instant) -> Option<u32> {
        if self.said_at.is_some_and(|said_at| now.duration_since(said_at) < EVERY) {
            self.unsaid = self.unsaid.saturating_add(1);
            return None;
        }
        self.said_at = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }

    /// How many were not shown, once no other has come that would have said so.
    fn left(&mut self, now: Instant) -> Option<u32> {
        let is_time = self.said_at.is_none_or(|said_at| now.duration_since(said_at) >= EVERY);
        if self.unsaid == 0 || !is_time {
            return None;
        }
        self.said_at = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

impl Pipeline {
    /// Says at last how many refusals were not shown.
    pub(super) fn tell_refusals(&mut self, now: Instant) {
        if let Some(events) = self.refusals.left(now) {
            tracing::warn!(
                sink = self.settings.name,
                events,
                "more events were refused than are named here; `postrider dead list --parked` has all of them"
            );
        }
    }

    /// At the end there is no later.
    pub(super) fn tell_last_refusals(&mut self) {
        self.tell_refusals(Instant::now() + EVERY);
    }

    /// What is stored about a refusal, after so many attempts.
    pub(super) fn refused(&mut self, record: &Record, refusal: &Refusal, attempts: u32) -> Refused {
        let policy = refusal.kind.policy();
        let retry_in = backoff::next_attempt(&self.settings.retry, attempts);
        self.telemetry.refused(refusal.kind);
        if retry_in.is_none() {
            self.telemetry.dead(1);
        }
        // Without the reason, which may quote the event: no payload is in any log. The database has it.
        if let Some(unsaid) = self.refusals.shown(Instant::now()) {
            let then = if retry_in.is_some() { "it is parked and tried again" } else { "it is dead" };
            tracing::warn!(
                sink = self.settings.name,
                id = %record.id,
                r#type = record.r#type,
                attempt = attempts,
                then,
                what = policy.what,
                advice = policy.advice,
                others_unsaid = unsaid,
                "an event was refused"
            );
        }
        Refused { kind: policy.code.to_owned(), reason: refusal.reason.clone(), retry_in }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_a_second_is_shown_with_the_number_of_the_others() {
        let mut refusals = Refusals::default();
        let begin = Instant::now();
        assert_eq!(refusals.shown(begin), Some(0));
        assert_eq!(refusals.shown(begin), None);
        assert_eq!(refusals.shown(begin + EVERY / 2), None);
        assert_eq!(refusals.shown(begin + EVERY), Some(2));
        assert_eq!(refusals.shown(begin + 3 * EVERY), Some(0));
    }

    #[test]
    fn those_that_were_not_shown_are_counted_at_last() {
        let mut refusals = Refusals::default();
        let begin = Instant::now();
        assert_eq!(refusals.left(begin), None);
        refusals.shown(begin);
        assert_eq!(refusals.left(begin + EVERY), None, "it was shown");
        refusals.shown(begin);
        refusals.shown(begin);
        assert_eq!(refusals.left(begin + EVERY / 2), None, "the next one may say it");
        assert_eq!(refusals.left(begin + EVERY), Some(2));
        assert_eq!(refusals.left(begin + 2 * EVERY), None);
        // And so it is with those that follow.
        assert_eq!(refusals.shown(begin + EVERY * 3 / 2), None);
        assert_eq!(refusals.left(begin + 2 * EVERY), Some(1));
    }
}
