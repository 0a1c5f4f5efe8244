//! What a reader does when it cannot read: connect again, or say why it ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::RngExt as _;

use super::{Command, Driver};
use crate::log::error::Error;

impl Driver {
    /// The connection is of no use any more, and so is every cursor in memory that it read.
    pub(super) async fn fail(&mut self, error: &Error) {
        self.end_settling().await;
        if error.is_too_slow() && self.link.is_some() {
            self.slow_rounds += 1;
        }
        self.drop_link();
        if let Error::RoundTooLarge { bytes } = error {
            self.pages.expect(*bytes);
        }
        // A lease that ran out while a round was read says the same as no answer.
        if error.is_too_slow() || matches!(error, Error::LeaseLost { .. }) {
            self.options.page = (self.options.page / 4).max(1);
            if self.options.page == 1 {
                self.pages.expect(self.options.batch_bytes.get());
            }
        }
        self.trouble = Some(Arc::from(error.to_string()));
        self.show();
        self.failures = self.failures.saturating_add(1);
        tracing::warn!(sink = self.options.sink, %error, attempt = self.failures, "reading failed; connecting again");
        let at = Instant::now() + pause_after(self.failures);
        self.connect_at = Some(self.connect_at.map_or(at, |planned| planned.max(at)));
    }

    /// Tells the reader, and everybody who waits for an answer meanwhile: it may not ask for more before it has settled what it has.
    pub(super) async fn end(&mut self, error: Error) {
        self.end_settling().await;
        self.drop_link();
        self.trouble = Some(Arc::from(error.to_string()));
        self.show();
        let gone = || Error::ReaderEnded { sink: self.options.sink.clone() };
        let mut error = Some(error);
        while let Some(said) = error.take() {
            tokio::select! {
                permit = self.batches.reserve() => {
                    if let Ok(permit) = permit {
                        permit.send(Err(said));
                    }
                    continue;
                }
                command = self.commands.recv() => match command {
                    Some(Command::Settle(settle)) => drop(settle.reply.send(Err(gone()))),
                    Some(Command::Close { reply }) => {
                        let _ = reply.send(Ok(()));
                        return;
                    }
                    None => return,
                },
            }
            error = Some(said);
        }
    }

    pub(super) fn drop_link(&mut self) {
        self.link = None;
        self.ready = None;
        self.turn = None;
        self.idle_rounds = 0;
        self.resting_until = None;
    }
}

/// The pause before connecting again, after so many failures in a row (from 1). Many that failed together should not come back together.
pub(super) fn pause_after(failures: u32) -> Duration {
    const FIRST: Duration = Duration::from_millis(20);
    const LONGEST: Duration = Duration::from_secs(5);
    let pause = FIRST.saturating_mul(1_u32 << failures.saturating_sub(1).min(16)).min(LONGEST);
    pause.mul_f64(rand::rng().random_range(0.5..1.0))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn fault_9_pauses_grow_to_a_limit_and_are_not_the_same_for_all() {
        for failures in 1..100 {
            let longest = Duration::from_millis(20 << failures.min(9_u32).saturating_sub(1))
                .min(Duration::from_secs(5));
            let pauses: BTreeSet<Duration> = (0..20).map(|_| pause_after(failures)).collect();
            assert!(
                pauses.iter().all(|pause| (longest / 2..=longest).contains(pause)),
                "{failures}: {pauses:?}"
            );
            assert!(pauses.len() > 1, "{failures}: {pauses:?}");
        }
    }
}
