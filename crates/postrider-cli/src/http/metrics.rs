//! `/metrics`.

use std::collections::BTreeMap;

use axum::extract::State as Kept;
use axum::http::header;
use axum::response::IntoResponse;
use postrider::capture::State;
use postrider_relay::{CaptureStatus, SinkStatus};

use super::catalogue::{
    BACKLOG, BACKLOG_EXACT, CAPTURE_FAILURES, CAPTURE_STATE, CAPTURE_SWEPT, CLOCK_OFFSET, DATABASE_UP,
    LOG_LIMIT, OLDEST, OUTBOX_MISFITS, PARKED, RETENTION, RING_AGE, RING_BYTES, RING_FILLED, RING_HELD,
    SCRAPE_FAILED, SINK_INFO, SINK_SILENT, SINK_STATE, THRESHOLD, TRANSACTION_AGE,
};
use super::database::{Ring, Seen};
use super::text::{self, Text};
use super::{Limits, Shown, process, recorder};

/// Those of [`postrider_relay::State::word`].
pub(super) const STATES: [&str; 8] =
    ["starting", "running", "standby", "waiting", "paused", "disconnected", "failed", "stopped"];

pub(super) async fn metrics(Kept(shown): Kept<Shown>) -> impl IntoResponse {
    let seen = shown.database.look().await;
    let sinks = (shown.status)();
    let mut text = Text::default();
    recorder::installed().write(&mut text, |name| sinks.iter().any(|sink| sink.name == name));
    write_sinks(&mut text, &sinks);
    write_database(&mut text, &seen);
    write_limits(&mut text, *shown.limits.borrow());
    write_captured(&mut text, &shown.captured.borrow());
    process::write(&mut text);
    ([(header::CONTENT_TYPE, text::CONTENT_TYPE)], text.finish())
}

fn write_limits(text: &mut Text, limits: Limits) {
    if let Some(limit) = limits.max_log_size {
        text.family(&LOG_LIMIT).sample(&[], limit);
    }
    text.family(&RETENTION).sample(&[], limits.retention.as_secs_f64());
    let mut family = text.family(&THRESHOLD);
    family.sample(&[("alert", "lag")], limits.alerts.lag.as_secs_f64());
    family.sample(&[("alert", "stuck")], limits.alerts.stuck.as_secs_f64());
}

fn write_captured(text: &mut Text, captured: &CaptureStatus) {
    const STATES: [State; 4] = [State::Installed, State::Missing, State::Outdated, State::Disabled];
    let Some(swept_at) = captured.swept_at else { return };
    text.family(&CAPTURE_SWEPT).sample(&[], swept_at.elapsed().unwrap_or_default().as_secs_f64());
    // A parent is not declared by itself.
    let mut tables: BTreeMap<&str, State> =
        captured.tables.iter().map(|table| (table.as_str(), State::Installed)).collect();
    tables.extend(captured.alarms.iter().map(|alarm| (alarm.table.as_str(), alarm.state)));
    let mut family = text.family(&CAPTURE_STATE);
    for (table, found) in tables {
        for state in STATES {
            family.sample(&[("table", table), ("state", state.word())], u8::from(state == found));
        }
    }
}

fn write_sinks(text: &mut Text, sinks: &[SinkStatus]) {
    let mut family = text.family(&SINK_INFO);
    for sink in sinks {
        family.sample(&[("sink", &sink.name), ("kind", sink.kind)], 1);
    }
    let mut family = text.family(&SINK_STATE);
    for sink in sinks {
        for state in STATES {
            family.sample(&[("sink", &sink.name), ("state", state)], u8::from(state == sink.state.word()));
        }
    }
    let mut family = text.family(&SINK_SILENT);
    for sink in sinks {
        family.sample(&[("sink", &sink.name)], sink.silent_for.as_secs_f64());
    }
}

fn write_database(text: &mut Text, seen: &Seen) {
    text.family(&DATABASE_UP).sample(&[], u8::from(seen.up.is_ok()));
    if let Ok(up) = &seen.up {
        text.family(&CLOCK_OFFSET).sample(&[], up.clock_offset);
    }
    let mut family = text.family(&SCRAPE_FAILED);
    for (part, has_failed) in seen.parts() {
        family.sample(&[("part", part)], u8::from(has_failed));
    }
    if let Some(backlogs) = &seen.backlog {
        let mut family = text.family(&BACKLOG);
        for backlog in backlogs {
            family.sample(&[("sink", &backlog.sink)], backlog.events);
        }
        let mut family = text.family(&BACKLOG_EXACT);
        for backlog in backlogs {
            family.sample(&[("sink", &backlog.sink)], u8::from(backlog.is_exact));
        }
    }
    if let Some(lags) = &seen.lag {
        let mut family = text.family(&OLDEST);
        for (sink, age) in lags {
            family.sample(&[("sink", sink)], age);
        }
    }
    if let Some(parked) = &seen.parked {
        let mut family = text.family(&PARKED);
        for parked in parked {
            for (state, events) in
                [("waiting", parked.waiting), ("behind", parked.behind), ("dead", parked.dead)]
            {
                family.sample(&[("sink", &parked.sink), ("state", state)], events);
            }
        }
    }
    if let Some(ring) = &seen.ring {
        write_ring(text, ring);
    }
    if let Some(uncaptured) = &seen.uncaptured {
        let mut family = text.family(&CAPTURE_FAILURES);
        for missing in uncaptured {
            family.sample(&[("table", &missing.relation)], missing.failures);
        }
    }
    if let Some(misfits) = &seen.misfits {
        let mut family = text.family(&OUTBOX_MISFITS);
        for misfits in misfits {
            family.sample(&[("table", &misfits.outbox)], misfits.rows);
        }
    }
    if let Some((session, prepared)) = seen.transactions {
        let mut family = text.family(&TRANSACTION_AGE);
        family.sample(&[("kind", "session")], session);
        family.sample(&[("kind", "prepared")], prepared);
    }
}

fn write_ring(text: &mut Text, ring: &Ring) {
    if let Some(age) = ring.current_age {
        text.family(&RING_AGE).sample(&[], age);
    }
    text.family(&RING_FILLED).sample(&[], ring.filled);
    text.family(&RING_BYTES).sample(&[], ring.bytes);
    let mut family = text.family(&RING_HELD);
    for (sink, slots) in &ring.held {
        family.sample(&[("sink", sink)], slots);
    }
}
