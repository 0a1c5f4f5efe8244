//! What became of it, in words and as JSON.

use std::fmt::Write as _;

use postrider::log::parking::admin::State;
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::filter::Filter;
use super::find::{AtSink, Event, Parked, Standing, Unparked};
use crate::{moment, output};

/// As far as the statement counts.
const MOST: i64 = 10_000;

/// What became of an event at one sink.
struct Fate {
    word: &'static str,
    text: String,
}

pub(super) fn words(event: &Event, sinks: &[AtSink]) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "id       {}", event.id);
    for (name, value) in [
        ("source", &event.source_id),
        ("type", &Some(event.r#type.clone())),
        ("entity", &event.entity),
        ("key", &event.key),
        ("tenant", &event.tenant),
    ] {
        if let Some(value) = value {
            let _ = writeln!(text, "{name:<8} {}", output::plain(value));
        }
    }
    let _ = writeln!(
        text,
        "written  {} by transaction {}, as number {} of the log, in slot {}, lane {}",
        moment::text(event.created_at),
        event.xid,
        event.seq,
        event.slot,
        event.lane
    );
    if sinks.is_empty() {
        text.push_str("\nno sink is known yet\n");
        return text;
    }
    text.push('\n');
    let rows: Vec<Vec<String>> =
        sinks.iter().map(|sink| vec![output::plain(&sink.standing.sink), fate(sink).text]).collect();
    text.push_str(&output::table(&["SINK", "EVENT"], &rows));
    text
}

fn fate(sink: &AtSink) -> Fate {
    let standing = &sink.standing;
    if let Some(parked) = sink.parked.first() {
        return parked_fate(parked, standing.flight.is_some());
    }
    let fate = |word, text: String| Fate { word, text };
    match standing.is_settled {
        None => fate(
            "unknown",
            "unknown: the sink has no cursor for this lane; see `postrider doctor`".to_owned(),
        ),
        Some(true) if standing.is_skipped => {
            fate("skipped", "not meant for it: the sink began behind this event".to_owned())
        }
        Some(true) => {
            if let Some(unparked) = &sink.unparked {
                return unparked_fate(unparked);
            }
            let when = when(standing);
            match sink.filter {
                Filter::Keeps => fate("delivered", format!("delivered{when}")),
                Filter::LeavesOut => {
                    fate("filtered", format!("left out{when}, by its filter as it is configured now"))
                }
                Filter::Unknown => {
                    fate("passed", format!("delivered{when}, or left out by its filter if it has one"))
                }
            }
        }
        Some(false) => match in_flight(standing) {
            Some(text) => fate("in flight", text),
            None => fate("waiting", waiting(standing)),
        },
    }
}

fn when(standing: &Standing) -> String {
    match standing.settled_at {
        Some(at) if Some(at) == standing.history_begins => {
            format!(" at {} or before (the history goes back no further)", moment::text(at))
        }
        Some(at) => format!(" at {}", moment::text(at)),
        None => " (the history does not say when)".to_owned(),
    }
}

/// It was parked, and is not any more.
fn unparked_fate(unparked: &Unparked) -> Fate {
    let at = moment::text(unparked.ended_at);
    match unparked.fate.as_str() {
        "discarded" => {
            Fate { word: "discarded", text: format!("discarded at {at}, after it had been parked") }
        }
        "filtered" => Fate {
            word: "filtered",
            text: format!("left out by its filter at {at}, when it was tried again"),
        },
        _ => Fate { word: "delivered", text: format!("delivered at {at}, after it had been parked") },
    }
}

/// By the word of who holds its lane.
fn in_flight(standing: &Standing) -> Option<String> {
    let (reader, heard_at) = (output::plain(standing.reader.as_deref()?), moment::text(standing.heard_at?));
    match (standing.flight.as_deref()?, standing.sending_since) {
        ("sending", Some(since)) => {
            Some(format!("in flight at {reader} since {}, by its word of {heard_at}", moment::text(since)))
        }
        _ => Some(format!(
            "in flight at {reader}: the sink has answered, which is not stored yet, by its word of {heard_at}"
        )),
    }
}

fn waiting(standing: &Standing) -> String {
    let mut text = match standing.before {
        0 => "waits, next in its lane".to_owned(),
        before if before > MOST => format!("waits, behind at least {} in its lane", output::events(MOST)),
        before => format!("waits, behind {} in its lane", output::events(before)),
    };
    if standing.names_only_some {
        text.push_str(", or is in flight, where its relay has more than it tells");
    }
    if let Some(paused_at) = standing.paused_at {
        let _ = write!(text, "; the sink is paused since {}", moment::short(paused_at));
    } else if let Some(reader) = &standing.reader {
        let _ = write!(text, "; carried by {}", output::plain(reader));
        if let (Some(trouble), Some(since)) = (&standing.trouble, standing.trouble_since) {
            let _ = write!(text, ", which says since {}: {}", moment::short(since), output::plain(trouble));
        }
    } else {
        text.push_str("; no relay carries this lane");
    }
    text
}

fn parked_fate(parked: &Parked, is_tried: bool) -> Fate {
    let refusal = match (&parked.kind, &parked.reason) {
        (Some(kind), Some(reason)) => output::plain(&format!("{kind}: {reason}")),
        (Some(one), None) | (None, Some(one)) => output::plain(one),
        (None, None) => "no reason is known".to_owned(),
    };
    let attempts = parked.attempts;
    let text = match (parked.state, parked.held_by) {
        (State::Behind, Some(id)) => format!("parked: waits for event {id} of its key"),
        (State::Behind, None) => "parked: waits for an earlier event of its key".to_owned(),
        (State::Waiting, _) if is_tried => {
            format!("parked after {attempts} attempts ({refusal}); tried again right now")
        }
        (State::Waiting, _) => {
            let next = parked.next_attempt_at.map_or_else(|| "soon".to_owned(), moment::text);
            format!("parked after {attempts} attempts ({refusal}); tried again at {next}")
        }
        (State::Dead, _) => {
            format!(
                "dead after {attempts} attempts ({refusal}); `postrider dead show {}` shows it",
                parked.id
            )
        }
    };
    Fate { word: parked.state.word(), text }
}

pub(super) fn document(event: &Event, sinks: &[AtSink]) -> Value {
    let sinks: Vec<Value> = sinks
        .iter()
        .map(|sink| {
            let standing = &sink.standing;
            let fate = fate(sink);
            let is_past = ["delivered", "filtered", "passed", "discarded"].contains(&fate.word);
            let settled_at = match &sink.unparked {
                Some(unparked) => Some(unparked.ended_at),
                None => standing.settled_at,
            };
            let is_sending = fate.word == "in flight" && standing.flight.as_deref() == Some("sending");
            json!({
                "sink": standing.sink,
                "state": fate.word,
                "text": fate.text,
                "before": (fate.word == "waiting").then_some(standing.before.min(MOST)),
                "is_exact": (fate.word == "waiting").then_some(standing.before <= MOST),
                "settled_at": settled_at.filter(|_| is_past).map(moment::text),
                "reader": standing.reader,
                "in_flight_since": standing.sending_since.filter(|_| is_sending).map(moment::text),
                "as_of": standing.heard_at.filter(|_| fate.word == "in flight").map(moment::text),
                "trouble": standing.trouble,
                "parked": sink.parked.iter().map(parked_document).collect::<Vec<Value>>(),
            })
        })
        .collect();
    json!({
        "id": event.id.to_string(),
        "found": "log",
        "source_id": event.source_id,
        "type": event.r#type,
        "entity": event.entity,
        "key": event.key,
        "tenant": event.tenant,
        "created_at": moment::text(event.created_at),
        "xid": event.xid,
        "seq": event.seq,
        "slot": event.slot,
        "lane": event.lane,
        "sinks": sinks,
    })
}

fn parked_document(parked: &Parked) -> Value {
    json!({
        "sink": parked.sink,
        "destination": parked.destination,
        "state": parked.state.word(),
        "attempts": parked.attempts,
        "kind": parked.kind,
        "reason": parked.reason,
        "held_by": parked.held_by.map(|id| id.to_string()),
        "parked_at": moment::text(parked.parked_at),
        "next_attempt_at": parked.next_attempt_at.filter(|_| parked.state == State::Waiting).map(moment::text),
    })
}

pub(super) fn gone(id: &str, written_at: OffsetDateTime, parked: &[Parked]) -> String {
    let mut text = format!(
        "{} was written at about {}, before everything that the log still has: if it was committed, its slot was emptied, which happens \
         only when every sink has settled it\n",
        output::plain(id),
        moment::short(written_at)
    );
    if !parked.is_empty() {
        let rows: Vec<Vec<String>> = parked
            .iter()
            .map(|parked| vec![output::plain(&parked.sink), parked_fate(parked, false).text])
            .collect();
        let _ = write!(text, "\n{}", output::table(&["SINK", "EVENT"], &rows));
    }
    text
}

pub(super) fn gone_document(id: &str, written_at: OffsetDateTime, parked: &[Parked]) -> Value {
    json!({
        "id": id,
        "found": "gone",
        "written_at": moment::text(written_at),
        "parked": parked.iter().map(parked_document).collect::<Vec<Value>>(),
    })
}
