//! Pauses that grow, with jitter.

use std::time::Duration;

use rand::RngExt as _;

use crate::settings::Retry;

/// The pause after so many failures in a row (from 1), somewhere between half and all of what the schedule says: many that failed
/// together should not come back together.
pub(super) fn pause(retry: &Retry, failures: u32) -> Duration {
    let exponent = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX);
    let seconds = retry.first.as_secs_f64() * retry.factor.powi(exponent);
    let longest = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).min(retry.max);
    longest.mul_f64(rand::rng().random_range(0.5..=1.0))
}

/// When a refused event is tried again, or `None` if that was the last time.
pub(super) fn next_attempt(retry: &Retry, attempts: u32) -> Option<Duration> {
    (attempts < retry.max_attempts).then(|| pause(retry, attempts))
}

/// For a sink or a database that cannot be reached.
pub(super) const RECONNECT: Retry = Retry {
    max_attempts: u32::MAX,
    first: Duration::from_millis(100),
    factor: 2.0,
    max: Duration::from_secs(15),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit_and_end_with_the_last_attempt() {
        let retry = Retry::default();
        for failures in 1..100_u32 {
            let longest = Duration::from_secs(1 << failures.min(11).saturating_sub(1)).min(retry.max);
            let pause = pause(&retry, failures);
            assert!(pause <= longest && pause >= longest / 2, "{failures}: {pause:?}");
        }
        assert!(next_attempt(&retry, 9).is_some());
        assert!(next_attempt(&retry, 10).is_none());
    }
}
