//! Jobs of a kind that this worker has no handler for. Another one may have it: a newer one, while a deployment is under way.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::Outcome;
use super::unsettled::Ended;

/// How long such a job is left for others. Each time costs a claim and a row, and a deployment takes minutes.
const LATER: Duration = Duration::from_secs(30);

/// The kinds that it has been said of.
#[derive(Debug, Default)]
pub(super) struct Strangers(Mutex<HashSet<String>>);

impl Strangers {
    /// Whether a kind is met for the first time.
    fn is_news(&self, kind: &str) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !known.contains(kind) && known.insert(kind.to_owned())
    }
}

/// It is tried later, and loses no attempt: what an old worker does not know must not be dead by that.
pub(super) fn not_ours(strangers: &Strangers, kind: &str) -> Ended {
    if strangers.is_news(kind) {
        tracing::warn!(
            kind,
            "this worker has no handler for jobs of this kind; they are left for others, and looked at again and again"
        );
    }
    Ended::Said(Ok(Outcome::Snooze(LATER)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_news_once() {
        let strangers = Strangers::default();
        let news = ["a", "b", "a", "b", "c"].map(|kind| strangers.is_news(kind));
        assert_eq!(news, [true, true, false, false, true]);
    }
}
