//! Keeps a pipeline running: opens its reader, begins anew when the log needed a person and got one.

use std::sync::Arc;
use std::time::Duration;

use postrider::log::{self, BatchBytes, Error, Reader, ReaderOptions, Retention};
use sqlx::PgPool;
use tokio::sync::watch;

use super::deliver::chain;
use super::held::HeldKeys;
use super::outlet::Outlet;
use super::parked::Retries;
use super::settle::Settlements;
use super::window::Window;
use super::{Pipeline, Stop, backoff};
use crate::face::Face;
use crate::prepare::Preparer;
use crate::settings::{Ordering, RelaySettings, SinkSettings};
use crate::status::State;
use crate::telemetry::Telemetry;

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
    let strict = settings.ordering == Ordering::Strict;
    let mut outlet = Some(Outlet::new(settings.target.clone(), preparer, strict));
    let mut failures = 0;
    while *stop.borrow() == Stop::No {
        let attempt = once(&fittings, &settings, &mut outlet, &face, &stop, &mut failures).await;
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
        rest(backoff::pause(&backoff::RECONNECT, failures), &face, &mut stop).await;
    }
    if let Some(outlet) = outlet
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

/// Another version of the schema does not come back to what we know by waiting.
fn is_final(error: &Error) -> bool {
    matches!(error, Error::SchemaVersion { .. } | Error::NotInstalled)
}

/// One reader's life.
async fn once(
    fittings: &Fittings,
    settings: &Arc<SinkSettings>,
    outlet: &mut Option<Outlet>,
    face: &Face,
    stop: &watch::Receiver<Stop>,
    failures: &mut u32,
) -> log::error::Result<()> {
    let reader = Reader::open(fittings.relay.database.clone(), options(fittings, settings)).await?;
    *failures = 0;
    let mut pipeline = Pipeline {
        settings: Arc::clone(settings),
        reader,
        pool: fittings.pool.clone(),
        face: face.clone(),
        telemetry: Telemetry::new(&settings.name, settings.target.kind()),
        stop: stop.clone(),
        window: Window::default(),
        held: HeldKeys::default(),
        outlet: outlet.take(),
        delivering: None,
        settlements: Settlements::default(),
        settling: None,
        retries: Retries::default(),
        errand: None,
        failures: 0,
        rests_until: None,
        paused: false,
    };
    let ended = pipeline.run().await;
    if ended.is_err()
        && let Some(delivering) = pipeline.delivering.take()
    {
        // The sink is needed again. Its own deadline ends this.
        pipeline.on_delivery(*delivering.await);
    }
    *outlet = pipeline.outlet.take();
    if ended.is_ok()
        && let Err(error) = pipeline.reader.close().await
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
        retention: Retention { keep: relay.log.retention, max_slot_bytes: relay.log.max_slot_size },
        sweep: relay.log.sweep,
        ..ReaderOptions::new(&settings.name)
    }
}

/// Waits, showing that it is alive.
async fn rest(pause: Duration, face: &Face, stop: &mut watch::Receiver<Stop>) {
    const STEP: Duration = Duration::from_millis(500);
    let end = tokio::time::Instant::now() + pause;
    while *stop.borrow() == Stop::No && tokio::time::Instant::now() < end {
        face.turn(|_| ());
        tokio::select! {
            () = tokio::time::sleep_until(end.min(tokio::time::Instant::now() + STEP)) => {}
            _ = stop.changed() => {}
        }
    }
}

impl Pipeline {
    /// Shows what it is doing.
    pub(super) fn show(&self) {
        let lanes = self.reader.lanes();
        let state = match self.face.state() {
            _ if self.paused => State::Paused,
            waiting @ State::Waiting { .. } if self.failures > 0 => waiting,
            _ => match self.reader.trouble() {
                Some(reason) => State::Disconnected { reason: reason.to_string() },
                None if lanes.is_empty() => State::Standby,
                None => State::Running,
            },
        };
        self.telemetry.in_flight(self.in_flight());
        self.telemetry.lanes(lanes.len());
        self.face.set(state);
        self.face.turn(|status| {
            status.lanes = lanes;
            status.in_flight = self.in_flight();
            status.silence = self.reader.silence().map(|silence| silence.to_string());
            status.settled_position = self.reader.settled_position();
        });
    }
}
