//! Waiting for a database that is away when a consumer begins.

use std::time::Duration;

use crate::log::error::{Error, Result};

const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// One that is away at the beginning is waited for as it is later; what needs a person is said at once.
pub(crate) struct Patience {
    pause: Duration,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self { pause: Duration::from_millis(50) }
    }

    /// Waits before another attempt, if one may help.
    pub(crate) async fn wait(&mut self, consumer: &str, error: Error) -> Result<()> {
        if !error.is_transient() {
            return Err(error);
        }
        tracing::warn!(consumer, %error, "the database is away; trying again");
        tokio::time::sleep(self.pause.mul_f64(rand::random_range(0.5..=1.0))).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}
