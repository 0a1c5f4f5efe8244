//! `/livez`, `/readyz`, `/healthz`.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use postrider::capture::Alarm;
use postrider_relay::{SinkStatus, State as Doing};
use serde::Deserialize;
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::Shown;
use super::database::Up;
use crate::failure::redact;

/// A sink's loop turns every second, whatever its sink or the database does. After this long it never will again.
const STUCK: Duration = Duration::from_secs(30);

/// Whether every loop still turns: what `/livez` and a watchdog go by.
pub(crate) fn is_alive(sinks: &[SinkStatus]) -> bool {
    !sinks.iter().any(is_stuck)
}

fn is_stuck(sink: &SinkStatus) -> bool {
    sink.silent_for > STUCK && sink.state != Doing::Stopped
}

/// 200 unless the relay must be started anew.
pub(super) async fn livez(State(shown): State<Shown>) -> Response {
    let stuck: Vec<String> = (shown.status)()
        .iter()
        .filter(|sink| is_stuck(sink))
        .map(|sink| {
            format!("sink {}: its loop has not turned for {} s\n", sink.name, sink.silent_for.as_secs())
        })
        .collect();
    answer(stuck.is_empty(), if stuck.is_empty() { "alive\n".to_owned() } else { stuck.concat() })
}

/// 200 if every sink does its work and the database answers.
pub(super) async fn readyz(State(shown): State<Shown>) -> Response {
    let health = Health::of(&shown).await;
    answer(health.is_well(), health.text(false))
}

#[derive(Deserialize)]
pub(super) struct Wanted {
    verbose: Option<String>,
    format: Option<String>,
}

/// As `/readyz`, and every declared table is captured as declared; `?verbose` with a line for what is well too, `?format=json` for machines.
pub(super) async fn healthz(State(shown): State<Shown>, Query(wanted): Query<Wanted>) -> Response {
    let alarms = shown.captured.borrow().alarms.clone();
    let health = Health { alarms, ..Health::of(&shown).await };
    match wanted.format.as_deref() {
        None | Some("text") => answer(health.is_well(), health.text(wanted.verbose.is_some())),
        Some("json") => {
            let body = format!("{}\n", health.json());
            (code(health.is_well()), [(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
        Some(_) => (StatusCode::BAD_REQUEST, "format is text or json\n").into_response(),
    }
}

fn answer(is_well: bool, body: String) -> Response {
    (code(is_well), body).into_response()
}

fn code(is_well: bool) -> StatusCode {
    if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

/// What is asked about, and what was found.
struct Health {
    database: Up,
    sinks: Vec<SinkStatus>,
    /// Of declared tables. A relay is ready all the same: it carries what is captured.
    alarms: Vec<Alarm>,
}

impl Health {
    async fn of(shown: &Shown) -> Self {
        Self { database: shown.database.answers().await, sinks: (shown.status)(), alarms: Vec::new() }
    }

    fn is_well(&self) -> bool {
        self.database.is_ok() && self.sinks.iter().all(is_well) && self.alarms.is_empty()
    }

    fn text(&self, is_verbose: bool) -> String {
        let mut text = String::new();
        let mut line = |is_well: bool, words: &str| {
            if is_verbose || !is_well {
                text.push_str(if is_well { "[+] " } else { "[-] " });
                text.push_str(words);
                text.push('\n');
            }
        };
        match &self.database {
            Ok(answer) => {
                line(true, &format!("database: answers in {:.1} ms", answer.took.as_secs_f64() * 1000.0));
            }
            Err(reason) => line(false, &format!("database: {reason}")),
        }
        for sink in &self.sinks {
            line(is_well(sink), &redact(&format!("sink {} ({}): {}", sink.name, sink.kind, in_words(sink))));
        }
        for Alarm { table, state, reason } in &self.alarms {
            line(false, &format!("table {table}: {}: {reason}", state.word()));
        }
        text.push_str(if self.is_well() { "well\n" } else { "not well\n" });
        text
    }

    fn json(&self) -> serde_json::Value {
        let sinks: Vec<_> = self.sinks.iter().map(sink_json).collect();
        let database = match &self.database {
            Ok(answer) => json!({
                "well": true,
                "answered_in_seconds": answer.took.as_secs_f64(),
                "clock_offset_seconds": answer.clock_offset,
            }),
            Err(reason) => json!({ "well": false, "reason": reason }),
        };
        let tables: Vec<_> = self
            .alarms
            .iter()
            .map(|alarm| json!({ "table": alarm.table, "state": alarm.state.word(), "reason": alarm.reason }))
            .collect();
        json!({ "well": self.is_well(), "database": database, "sinks": sinks, "tables": tables })
    }
}

fn is_well(sink: &SinkStatus) -> bool {
    sink.state.is_well() && !is_stuck(sink)
}

fn sink_json(sink: &SinkStatus) -> serde_json::Value {
    json!({
        "name": sink.name,
        "kind": sink.kind,
        "well": is_well(sink),
        "state": sink.state.word(),
        "since": moment(sink.since),
        "reason": sink.state.trouble(),
        "advice": sink.state.advice(),
        "lanes": sink.lanes,
        "in_flight": sink.in_flight,
        "delivered": sink.delivered,
        "last_delivery": sink.last_delivery.map(moment),
        "silent_seconds": sink.silent_for.as_secs_f64(),
        "not_woken_because": sink.silence.as_deref().map(redact),
    })
}

/// One sentence or two: what it does, since when, why, and what to do about it.
fn in_words(sink: &SinkStatus) -> String {
    let mut words = format!("{} for {}", sink.state.word(), age(sink.since));
    if is_stuck(sink) {
        words = format!("stuck: its loop has not turned for {} s; it was {words}", sink.silent_for.as_secs());
    }
    if let Some(trouble) = sink.state.trouble() {
        let _ = write!(words, ": {trouble}");
    }
    if let Some(advice) = sink.state.advice() {
        let _ = write!(words, "; {advice}");
    }
    let (lanes, in_flight, delivered) = (sink.lanes.len(), sink.in_flight, sink.delivered);
    let _ = write!(words, "; {lanes} lanes, {in_flight} in flight, {delivered} delivered");
    if let Some(last) = sink.last_delivery {
        let _ = write!(words, ", the last {} ago", age(last));
    }
    if let Some(silence) = &sink.silence {
        let _ = write!(words, "; looks for events by itself because {silence}");
    }
    words
}

fn age(since: SystemTime) -> String {
    let seconds = since.elapsed().unwrap_or_default().as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

fn moment(time: SystemTime) -> Option<String> {
    OffsetDateTime::from(time).format(&Rfc3339).ok()
}
