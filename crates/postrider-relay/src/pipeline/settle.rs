//! Settling: when, and what follows from it.

use std::time::{Duration, Instant};

use postrider::log::parking::{Refused, ToPark};
use postrider::log::{self, Error};
use uuid::Uuid;

use super::Pipeline;
use super::deliver::chain;
use super::remembered::{Past, Remembered, Which};
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

/// An event that is parked by a settlement on its way.
pub(super) struct OnItsWay {
    event: Which,
    key: Option<String>,
    refused: Option<Refused>,
}

impl OnItsWay {
    fn new(event: &ToPark) -> Self {
        let record = &event.record;
        Self { event: Which::of(record), key: record.key.clone(), refused: event.refused.clone() }
    }

    /// If it is read again: its refusal is known, and what only waited behind one is decided anew.
    pub(super) fn correct(&self, remembered: &mut Remembered) {
        if remembered.take(self.event).is_some()
            && let Some(refused) = &self.refused
        {
            remembered.add(self.event, Past::Refused(refused.clone()));
        }
    }
}

/// Why a settlement was not stored.
#[derive(Debug)]
pub(super) struct Unstored {
    pub(super) reason: String,
    /// What it went through: the reader has another one before anything is settled again.
    connection: Option<Uuid>,
}

/// A settlement that has come back.
pub(super) struct Settled {
    settling: Settling,
    begun: Instant,
    /// What it went through.
    connection: Option<Uuid>,
    result: log::error::Result<log::Settled>,
}

impl Pipeline {
    /// A settlement that failed is nobody's concern any more once nothing is left of it to be settled here: others have its lanes, or
    /// what it spoke of is stored after all.
    pub(super) fn get_over_trouble(&mut self) {
        let reader = &self.reader;
        let Some(trouble) = &self.trouble else { return };
        let is_anew = reader.connection().is_some_and(|now| Some(now) != trouble.connection);
        if is_anew && (reader.lanes().is_empty() || reader.settled_position().is_some()) {
            self.trouble = None;
        }
    }

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
        self.parking = settlement.parking.events.iter().map(OnItsWay::new).collect();
        let (settler, connection) = (self.reader.settler(), self.reader.connection());
        let begun = Instant::now();
        self.settlements.last = begun;
        self.settling = Some(Box::pin(async move {
            let result = settler.settle(settlement).await;
            Settled { settling, begun, connection, result }
        }));
    }

    pub(super) fn on_settled(&mut self, settled: Settled) -> log::error::Result<()> {
        let Settled { settling, begun, connection, result } = settled;
        let parks = !self.parking.is_empty();
        for key in self.parking.iter().filter_map(|event| event.key.as_deref()) {
            self.held.on_parked(key);
        }
        match result {
            Ok(stored) => {
                self.trouble = None;
                self.has_settled = true;
                self.parking.clear();
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
                tracing::warn!(sink = self.settings.name, %error, "what was delivered could not be settled; it is read again, and not sent again");
                // Also an orderly takeover ends here.
                if !matches!(error, Error::LeaseLost { .. } | Error::ConnectionLost { .. }) {
                    let reason = format!("what was delivered cannot be settled: {}", chain(&error));
                    self.trouble = Some(Unstored { reason, connection });
                }
                self.forget_lost();
                // Whatever the reader thinks: what was to be parked with it must not be passed over.
                self.keep(|batch, lane| !settling.speaks_of(batch, lane));
                self.parking.clear();
                Ok(())
            }
            Err(Error::ReaderEnded { .. }) => {
                self.keep(|_, _| false);
                self.parking.clear();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}
