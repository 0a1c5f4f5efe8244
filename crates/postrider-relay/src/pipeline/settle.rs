//! Settling: when, and what follows from it.

use std::time::{Duration, Instant};

use postrider::log::{self, Error};

use super::Pipeline;
use super::window::{Settling, Window};

/// Progress is stored this often while events flow, and sooner when half of the window is waiting for it. Every storing is a commit that
/// others who commit pay for too.
const OFTEN: Duration = Duration::from_millis(50);

/// The rhythm of settling.
#[derive(Debug)]
pub(super) struct Settlements {
    last: Instant,
}

impl Default for Settlements {
    fn default() -> Self {
        Self { last: Instant::now() }
    }
}

impl Settlements {
    /// When it is time by the clock.
    pub(super) fn due(&self, window: &Window) -> Option<Instant> {
        window.can_settle().then(|| self.last + OFTEN)
    }
}

/// A settlement that has come back.
pub(super) struct Settled {
    settling: Settling,
    /// The keys of what was parked with it.
    parked: Vec<Option<String>>,
    begun: Instant,
    result: log::error::Result<log::Settled>,
}

impl Pipeline {
    pub(super) fn start_settling(&mut self) {
        if self.settling.is_some() || !self.window.can_settle() {
            return;
        }
        let half = self.settings.max_in_flight as usize / 2;
        let is_time = self.settlements.due(&self.window).is_some_and(|due| due <= Instant::now());
        if !is_time && self.window.unsettled() < half.max(1) && !self.is_draining() {
            return;
        }
        let strict = self.is_strict();
        let (settlement, settling) = self.window.settlement(strict);
        let parked = settlement.parking.events.iter().map(|event| event.record.key.clone()).collect();
        let settler = self.reader.settler();
        let begun = Instant::now();
        self.settlements.last = begun;
        self.settling = Some(Box::pin(async move {
            let result = settler.settle(settlement).await;
            Settled { settling, parked, begun, result }
        }));
    }

    pub(super) fn on_settled(&mut self, settled: Settled) -> log::error::Result<()> {
        let Settled { settling, parked, begun, result } = settled;
        let parks = !parked.is_empty();
        for key in parked.into_iter().flatten() {
            self.held.on_parked(&key);
        }
        match result {
            Ok(stored) => {
                self.telemetry.settled(settling.events, begun.elapsed());
                self.window.on_settled(&settling);
                if !stored.lost.is_empty() {
                    self.keep(|batch, lane| !stored.lost.contains(&lane) || !settling.speaks_of(batch, lane));
                    tracing::warn!(sink = self.settings.name, lanes = ?stored.lost, "another relay holds these lanes now");
                }
                if parks {
                    // It may be due at once, if what it was to wait for is gone already.
                    self.retries.look_at(Instant::now());
                }
                Ok(())
            }
            // The reader connects again and reads everything again that is not stored.
            Err(error) if error.is_transient() => {
                tracing::warn!(sink = self.settings.name, %error, "what was delivered could not be settled and is delivered again");
                self.forget_lost();
                Ok(())
            }
            Err(Error::ReaderEnded { .. }) => {
                self.keep(|_, _| false);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
