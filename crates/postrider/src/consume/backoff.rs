//! How long to wait before an event is tried again.

use std::time::Duration;

/// Pauses that grow, and an end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    /// After the first failure.
    pub first: Duration,
    /// Each pause is so many times the one before.
    pub factor: f64,
    /// None is longer.
    pub max: Duration,
    /// After so many failures in a row the event is dead.
    pub max_attempts: u32,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), factor: 2.0, max: Duration::from_mins(10), max_attempts: 10 }
    }
}

impl Backoff {
    /// The pause after so many failures, up to a tenth shorter: those who failed together need not come back together.
    pub(crate) fn pause(&self, failures: u32) -> Duration {
        let exponent = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX);
        let seconds = self.first.as_secs_f64() * self.factor.powi(exponent);
        let seconds = seconds.min(self.max.as_secs_f64());
        Duration::try_from_secs_f64(seconds * rand::random_range(0.9..=1.0)).unwrap_or(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest() {
        let backoff = Backoff { max: Duration::from_secs(5), ..Backoff::default() };
        let near = |failures, seconds: f64| {
            let pause = backoff.pause(failures).as_secs_f64();
            assert!(pause <= seconds && pause >= seconds * 0.9, "{failures}: {pause}");
        };
        near(1, 1.0);
        near(2, 2.0);
        near(3, 4.0);
        near(4, 5.0);
        near(u32::MAX, 5.0);
    }
}
