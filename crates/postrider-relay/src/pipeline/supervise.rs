//! Keeps a pipeline running: opens its reader, begins anew when the log needed a person and got one.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::log::parking::Attempt;
use postrider::log::{self, BatchBytes, Error, Reader, ReaderOptions, Retention};
use sqlx::PgPool;
use tokio::sync::{Notify, watch};

use super::deliver::chain;
use super::errand::Desk;
use super::held::HeldKeys;
use super::outlet::Outlet;
use super::recent::{Known, Recent};
use super::refusals::Refusals;
use super::remembered::Remembered;
use super::retries::Retries;
use super::settle::Settlements;
use super::tell::Complaint;
use super::window::Window;
use super::{Pipeline, Stop, backoff};
use crate::face::Face;
use crate::prepare::Preparer;
use crate::settings::{RelaySettings, SinkSettings};
use crate::status::State;
use crate::telemetry::Telemetry;

/// A reader that lived for so long was well: the pauses between attempts begin anew.
const LONG_LIFE: Duration = Duration::from_secs(30);

/// That a reader could be opened does not mean that it can read. One that has read nothing is believed when it has had its lanes for a while,
/// for which it may have to wait as long as the lease of its predecessor runs.
fn probation(fittings: &Fittings) -> Duration {
    fittings.relay.log.lease + Duration::from_secs(5)
}

/// What a pipeline shares with its relay.
#[derive(Clone)]
pub(crate) struct Fittings {
    pub(crate) relay: Arc<RelaySettings>,
    pub(crate) pool: PgPool,
    pub(crate) batch_bytes: BatchBytes,
}

/// Runs until it is told to stop. An error is one that no waiting mends: the relay as a whole has to end.
pub(crate) async fn supervise(
    fittings: Fittings,
    settings: Arc<SinkSettings>,
    preparer: Preparer,
    face: Face,
    mut stop: watch::Receiver<Stop>,
) -> log::error::Result<()> {
    let outlet = Outlet::new(&settings, preparer);
    let mut kept = Kept { outlet: Some(outlet), ..Kept::default() };
    let mut failures = 0;
    while *stop.borrow() == Stop::No {
        let life = once(&fittings, &settings, &mut kept, &face, &mut stop, &mut failures);
        let attempt = Box::pin(life).await;
        match attempt {
            Ok(()) => break,
            Err(error) if is_final(&error) => {
                face.set(State::Failed { reason: chain(&error) });
                return Err(error);
            }
            Err(error) => {
                failures += 1;
                let reason = chain(&error);
                tracing::error!(
                    sink = settings.name,
                    reason,
                    attempt = failures,
                    "the log cannot be read; trying again"
                );
                face.set(if error.is_transient() {
                    State::Disconnected { reason }
                } else {
                    State::Failed { reason }
                });
            }
        }
        let pause = backoff::pause(&backoff::RECONNECT, failures);
        // Stands until the next attempt has failed too.
        let complaint =
            kept.complaint.make(&fittings, &settings.name, &face, 2 * pause + probation(&fittings));
        let _ = tokio::join!(rest(pause, &face, &mut stop), tokio::time::timeout(pause, complaint));
    }
    if let Some(outlet) = kept.outlet
        && let Err(unavailable) = outlet.close().await
    {
        tracing::warn!(
            sink = settings.name,
            reason = chain(&unavailable),
            "the sink could not be closed well"
        );
    }
    face.set(State::Stopped);
    Ok(())
}

/// What outlives a reader.
#[derive(Default)]
struct Kept {
    outlet: Option<Outlet>,
    remembered: Remembered,
    recent: Recent,
    doubtful: Option<Known>,
    /// Parked events that were tried again, and what came of it.
    attempts: Vec<Attempt>,
    complaint: Complaint,
}

/// Another version of the schema does not come back to what we know by waiting.
fn is_final(error: &Error) -> bool {
    matches!(error, Error::SchemaVersion { .. } | Error::NotInstalled)
}

/// One reader's life.
async fn once(
    fittings: &Fittings,
    settings: &Arc<SinkSettings>,
    kept: &mut Kept,
    face: &Face,
    stop: &mut watch::Receiver<Stop>,
    failures: &mut u32,
) -> log::error::Result<()> {
    let opening = Reader::open(fittings.relay.database.clone(), options(fittings, settings));
    let Some(reader) = while_alive(opening, face, stop).await else { return Ok(()) };
    let reader = reader?;
    let begun = Instant::now();
    let mut pipeline = Pipeline {
        settings: Arc::clone(settings),
        reader,
        desk: Desk::new(fittings),
        face: face.clone(),
        telemetry: Telemetry::new(&settings.name, settings.target.kind()),
        stop: stop.clone(),
        window: Window::default(),
        retiring: Vec::new(),
        held: HeldKeys::default(),
        outlet: kept.outlet.take(),
        delivering: None,
        sending: None,
        settlements: Settlements::default(),
        parking: Vec::new(),
        settling: None,
        remembered: std::mem::take(&mut kept.remembered),
        recent: std::mem::take(&mut kept.recent),
        doubtful: kept.doubtful.take(),
        retries: Retries::with(std::mem::take(&mut kept.attempts)),
        refusals: Refusals::default(),
        errand: None,
        failures: 0,
        trouble_told: None,
        is_trouble_told: false,
        rests_until: None,
        paused: None,
        trouble: None,
        has_settled: false,
        has_read: Arc::new(Notify::new()),
        shortened: 0,
        told: None,
    };
    let has_read = Arc::clone(&pipeline.has_read);
    let ended = tokio::select! {
        ended = pipeline.run() => ended,
        never = kept.complaint.withdraw_after(has_read.notified(), probation(fittings), &fittings.pool) => match never {},
    };
    if ended.is_err()
        && let Some(delivering) = pipeline.delivering.take()
    {
        // The sink is needed again. Its own deadline ends this.
        pipeline.on_delivery(*delivering.await);
    }
    pipeline.tell_last_refusals();
    pipeline.keep(|_, _| false);
    if pipeline.has_settled || begun.elapsed() > LONG_LIFE {
        *failures = 0;
    }
    let Pipeline { outlet, remembered, recent, doubtful, retries, reader, .. } = pipeline;
    let complaint = std::mem::take(&mut kept.complaint);
    *kept = Kept { outlet, remembered, recent, doubtful, attempts: retries.into_attempts(), complaint };
    if matches!(ended, Err(Error::SinkForgotten { .. })) {
        // With the sink everything is forgotten that was known of its events.
        let (outlet, complaint) = (kept.outlet.take(), std::mem::take(&mut kept.complaint));
        *kept = Kept { outlet, complaint, ..Kept::default() };
    }
    if ended.is_ok()
        && let Err(error) = reader.close().await
    {
        tracing::warn!(sink = settings.name, %error, "the lanes could not be handed back; others take them over when the lease ends");
    }
    ended
}

fn options(fittings: &Fittings, settings: &SinkSettings) -> ReaderOptions {
    let relay = &fittings.relay;
    ReaderOptions {
        name: relay.name.clone(),
        start: settings.start,
        batch_bytes: fittings.batch_bytes.clone(),
        alone: settings.target.is_exclusive(),
        lease: relay.log.lease,
        idle: relay.log.idle,
        hint: relay.log.hint,
        retention: Retention {
            keep: relay.log.retention,
            max_slot_bytes: relay.log.max_slot_size,
            max_log_bytes: relay.log.max_log_size,
        },
        sweep: relay.log.sweep,
        patience: relay.log.patience,
        standbys: relay.log.standbys,
        ..ReaderOptions::new(&settings.name)
    }
}

/// Waits, showing that it is alive.
async fn rest(pause: Duration, face: &Face, stop: &mut watch::Receiver<Stop>) {
    while_alive(tokio::time::sleep(pause), face, stop).await;
}

/// Waits for something, showing that it is alive. `None` if it was told to stop before.
async fn while_alive<T>(
    awaited: impl Future<Output = T>,
    face: &Face,
    stop: &mut watch::Receiver<Stop>,
) -> Option<T> {
    const STEP: Duration = Duration::from_millis(500);
    let mut awaited = pin!(awaited);
    while *stop.borrow_and_update() == Stop::No {
        face.turn(|_| ());
        tokio::select! {
            done = &mut awaited => return Some(done),
            () = tokio::time::sleep(STEP) => {}
            _ = stop.changed() => {}
        }
    }
    None
}

impl Pipeline {
    /// Shows what it is doing.
    pub(super) fn show(&mut self) {
        if let Some(position) = self.reader.settled_position() {
            self.remembered.forget_up_to(position, &self.reader.tenures());
        }
        if let Some(known) = self.reader.timeline().and_then(|timeline| self.recent.on_timeline(timeline)) {
            self.doubtful = Some(known);
        }
        self.desk.follow();
        let lanes = self.reader.lanes();
        let state = match self.face.state() {
            _ if self.paused == Some(true) => State::Paused,
            waiting @ State::Waiting { .. } if self.failures > 0 => waiting,
            // What keeps the reader from connecting is newer than what kept a settling from being stored.
            _ => match self
                .reader
                .trouble()
                .map(|trouble| trouble.to_string())
                .or_else(|| self.trouble.as_ref().map(|trouble| trouble.reason.clone()))
                .or_else(|| self.retries.trouble().map(ToOwned::to_owned))
            {
                Some(reason) => State::Disconnected { reason },
                None if lanes.is_empty() => State::Standby,
                // Nobody knows yet whether the sink is there.
                None if matches!(self.face.state(), State::Starting) && self.is_opening() => State::Starting,
                None => State::Running,
            },
        };
        let in_flight = self.sent_and_unsettled();
        self.telemetry.in_flight(in_flight);
        self.telemetry.lanes(lanes.len());
        let shortened = self.reader.shortened();
        self.telemetry.shortened(shortened - std::mem::replace(&mut self.shortened, shortened));
        self.face.set(state.clone());
        self.tell(&state);
        self.face.turn(|status| {
            status.lanes = lanes;
            status.in_flight = in_flight;
            status.silence = self.reader.silence().map(|silence| silence.to_string());
            status.settled_position = self.reader.settled_position();
        });
    }
}
