//! Delivering: what is sent next, and what became of it.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::log::parking::{Refused, ToPark};
use postrider::log::{Record, Report, Standing, advice};

use super::outlet::{Delivered, Outlet, Sent};
use super::parked::Work;
use super::remembered::{Past, Which};
use super::tell::Sending;
use super::window::{Fate, Part};
use super::{Pipeline, backoff};
use crate::settings::Ordering;
use crate::sink::Unavailable;
use crate::status::State;

/// How long a sink that comes and goes for the same reason is not told of again.
const QUIET: Duration = Duration::from_secs(10);

/// A delivery that has come back.
pub(super) struct Delivery {
    outlet: Outlet,
    work: Work,
    delivered: Delivered,
}

impl Pipeline {
    pub(super) fn is_strict(&self) -> bool {
        self.settings.ordering == Ordering::Strict
    }

    /// Sends what is due again, else what comes next, if anything may be sent now.
    pub(super) fn start_delivery(&mut self) {
        let rests = self.rests_until.is_some_and(|until| Instant::now() < until);
        // Nothing before it is known that the sink is not paused: whoever paused it was told that nothing arrives any more.
        if self.outlet.is_none() || rests || self.paused != Some(false) || self.is_draining() {
            return;
        }
        let Some(work) = self.next_work().or_else(|| self.opening()) else { return };
        let Some(mut outlet) = self.outlet.take() else { return };
        self.rests_until = None;
        let held = match &work {
            Work::Log(_) => self.held.now(),
            // They are the ones that are waited for.
            Work::Parked(_) => Arc::default(),
        };
        let seqs = work.records().iter().map(|record| record.seq).take(Report::MOST).collect();
        self.sending = Some(Sending { since: Instant::now(), seqs, lanes: work.lanes() });
        self.delivering = Some(Box::pin(async move {
            let records = work.records();
            let delivered = outlet.deliver(&records, |key| held.contains(key)).await;
            Box::new(Delivery { outlet, work, delivered })
        }));
    }

    /// Nothing, to see whether the sink can be opened at all. Not in the place of one that has the lanes.
    pub(super) fn opening(&self) -> Option<Work> {
        let outlet = self.outlet.as_ref()?;
        (outlet.is_to_be_opened() && !self.reader.tenures().is_empty()).then(|| Work::Log(Vec::new()))
    }

    /// Whether that is being looked at, or is next.
    pub(super) fn is_opening(&self) -> bool {
        self.opening().is_some() || self.sending.as_ref().is_some_and(|sending| sending.seqs.is_empty())
    }

    fn next_work(&mut self) -> Option<Work> {
        if self.retries.has_due() {
            if let Some(due) = self.retries.take_due(&self.reader.tenures(), self.free()) {
                return Some(Work::Parked(due));
            }
            if !self.retries.has_due() {
                self.reader.keep(BTreeSet::new());
            }
        }
        if self.reader.standing(self.window.oldest()?) != Standing::Held {
            return None;
        }
        if self.is_strict() && self.window.batches().any(|batch| !self.held.unknown(batch).is_empty()) {
            return None;
        }
        let parts = self.window.next(self.room(), &self.retiring);
        (!parts.is_empty()).then_some(Work::Log(parts))
    }

    /// How many events may be sent now. Half of the window at most, so that the other half can be settled meanwhile.
    fn room(&self) -> usize {
        let most = (self.settings.max_batch as usize).min((self.settings.max_in_flight as usize).div_ceil(2));
        match self.free().min(most) {
            // What holds everything up was sent before and belongs to the window already.
            0 if !self.window.can_settle() => 1,
            room => room,
        }
    }

    /// Events sent and not settled.
    pub(super) fn in_flight(&self) -> usize {
        self.window.unsettled() + self.retries.unresolved()
    }

    /// With what is on its way just now: all that a crash would send twice.
    pub(super) fn sent_and_unsettled(&self) -> usize {
        self.in_flight() + self.sending.as_ref().map_or(0, |sending| sending.seqs.len())
    }

    fn free(&self) -> usize {
        (self.settings.max_in_flight as usize).saturating_sub(self.in_flight())
    }

    pub(super) fn on_delivery(&mut self, delivery: Delivery) {
        let Delivery { outlet, work, delivered } = delivery;
        self.outlet = Some(outlet);
        self.sending = None;
        let is_awaited = !work.records().is_empty();
        if !delivered.sent.is_empty() {
            self.telemetry.delivery(delivered.took);
            self.telemetry.dropped(delivered.dropped);
        }
        if delivered.sent.iter().any(|sent| matches!(sent, Sent::Delivered)) {
            // It was there in between: the pauses begin anew.
            self.on_available();
        }
        match work {
            Work::Log(parts) => self.on_sent(&parts, delivered.sent),
            Work::Parked(due) => self.on_retried(&due, delivered.sent),
        }
        match delivered.unavailable {
            Some(unavailable) => self.on_unavailable(&unavailable, is_awaited),
            None if delivered.is_asked => self.on_available(),
            None => {}
        }
    }

    fn on_available(&mut self) {
        if std::mem::take(&mut self.failures) > 0 && std::mem::take(&mut self.is_trouble_told) {
            tracing::info!(sink = self.settings.name, "the sink is available again");
        }
    }

    fn on_sent(&mut self, parts: &[Part], sent: Vec<Sent>) {
        let mut sent = sent.into_iter();
        for part in parts {
            let records = part.records();
            let mut delivered = Vec::with_capacity(records.len());
            let mut filtered = 0;
            // Else it will be read again, and this is what is known of it.
            let is_here = self.window.has(part);
            let fates: Vec<Fate> = records
                .iter()
                .zip(sent.by_ref())
                .map(|(record, sent)| {
                    let past = match sent {
                        Sent::Delivered => {
                            delivered.push(record);
                            Past::Done
                        }
                        Sent::Filtered => {
                            filtered += 1;
                            Past::Done
                        }
                        Sent::Refused(refusal) => Past::Refused(self.refused(record, &refusal, 1)),
                        Sent::Behind if is_here => return self.park(record, None),
                        Sent::Behind | Sent::Unsent => return Fate::Unsent,
                    };
                    if is_here {
                        return self.fate(record, past);
                    }
                    self.remembered.add(Which::of(record), past);
                    Fate::Unsent
                })
                .collect();
            self.telemetry.delivered(delivered.iter().copied(), part.batch.read_at());
            self.telemetry.filtered(filtered);
            self.face.on_delivered(delivered.len());
            self.recent.on_delivered(delivered.iter().copied());
            self.window.on_fates(part, fates);
        }
        // What came back late may have been read again already.
        let parts = if self.remembered.is_empty() { Vec::new() } else { self.window.parts() };
        self.recall(&parts);
    }

    /// What follows from what became of an event.
    pub(super) fn fate(&mut self, record: &Record, past: Past) -> Fate {
        match past {
            Past::Done => Fate::Done,
            Past::Refused(refused) => self.park(record, Some(refused)),
        }
    }

    fn park(&mut self, record: &Record, refused: Option<Refused>) -> Fate {
        if let Some(key) = record.key.as_deref().filter(|_| self.is_strict()) {
            self.held.hold(key);
        }
        Fate::Parked(Box::new(ToPark { record: record.clone(), refused }))
    }

    fn on_unavailable(&mut self, unavailable: &Unavailable, is_awaited: bool) {
        self.failures = self.failures.saturating_add(1);
        self.telemetry.unavailable(unavailable.kind);
        let pause = backoff::pause(&backoff::RECONNECT, self.failures);
        self.rests_until = Some(Instant::now() + unavailable.retry_after.unwrap_or(pause));
        // The kind is told beside it.
        let reason = chain(&*unavailable.source);
        let what = unavailable.kind.policy().what;
        let advice = unavailable.kind.policy().advice;
        let is_news = self.failures == 1
            || !matches!(self.face.state(), State::Waiting { reason: before, .. } if before == reason);
        // Where nothing waits for it, once is enough.
        // One that comes and goes says so now and then.
        let is_old = self.failures == 1
            && self.trouble_told.is_some_and(|(kind, at)| kind == unavailable.kind && at.elapsed() < QUIET);
        if (is_awaited || is_news) && !is_old {
            self.trouble_told = Some((unavailable.kind, Instant::now()));
            self.is_trouble_told = true;
            tracing::warn!(
                sink = self.settings.name,
                what,
                reason,
                advice,
                attempt = self.failures,
                "the sink is unavailable"
            );
        }
        self.face.set(State::Waiting { kind: unavailable.kind, reason, attempt: self.failures });
    }
}

/// An error with its causes.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    advice::chain(error).join(": ")
}
