//! The status as a table, and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::gather::{Backlog, Lane, Seen, Sink, Slot};
use super::state::State;
use crate::commands::captured::Captured;
use crate::{bytes, moment, output};

/// For the eye: the sinks, what is wrong, the ring.
pub(super) fn words(seen: &Seen, states: &[State], captured: &Captured, with_lanes: bool) -> String {
    const HEADINGS: &[&str] = &["SINK", "STATE", "BACKLOG", "OLDEST", "RATE", "PARKED", "DEAD", "CARRIED BY"];
    let mut text = String::new();
    if seen.sinks.is_empty() {
        text.push_str("no sinks: the first `postrider run` creates them\n");
    } else {
        let rows: Vec<Vec<String>> =
            seen.sinks.iter().zip(states).map(|(sink, state)| row(sink, state)).collect();
        text.push_str(&output::table(HEADINGS, &rows));
    }
    if with_lanes {
        for sink in &seen.sinks {
            let _ = write!(text, "\n{}\n{}", output::plain(&sink.delivery.sink), lanes(sink));
        }
    }
    for (sink, state) in seen.sinks.iter().zip(states) {
        for said in state.troubles.iter().chain(&state.note) {
            let _ = write!(text, "\n{}: {said}", output::plain(&sink.delivery.sink));
        }
    }
    for trouble in captured.troubles() {
        let _ = write!(text, "\n{trouble}");
    }
    let is_said = |state: &State| !state.troubles.is_empty() || state.note.is_some();
    if states.iter().any(is_said) || !captured.is_well() {
        text.push('\n');
    }
    text.push('\n');
    text.push_str(&ring(&seen.slots));
    text
}

fn row(sink: &Sink, state: &State) -> Vec<String> {
    let delivery = &sink.delivery;
    vec![
        output::plain(&delivery.sink),
        state.word.to_owned(),
        in_words(sink.backlog()),
        sink.oldest.map_or_else(|| "-".to_owned(), moment::span),
        rate(delivery.events_last_minute),
        at_most(delivery.waiting + delivery.behind),
        at_most(delivery.dead),
        carriers(sink),
    ]
}

fn in_words(backlog: Backlog) -> String {
    let number = output::thousands(backlog.events);
    if backlog.is_exact { number } else { format!("{number} at least") }
}

/// The view stops counting at 10,000.
fn at_most(count: i64) -> String {
    in_words(Backlog { events: count, is_exact: count < 10_000 })
}

/// Per second, over the last minute.
fn rate(events_last_minute: i64) -> String {
    match events_last_minute {
        0 => "-".to_owned(),
        1..60 => format!("{events_last_minute}/min"),
        more => format!("{}/s", output::thousands(more / 60)),
    }
}

/// `relay 1 (lanes 0–7), relay 2 (lanes 8–15), standby: relay 3`.
fn carriers(sink: &Sink) -> String {
    let mut held: BTreeMap<&str, Vec<i16>> = BTreeMap::new();
    for lane in &sink.lanes {
        if let Some(reader) = &lane.reader {
            held.entry(reader).or_default().push(lane.lane);
        }
    }
    let mut parts: Vec<String> =
        held.iter().map(|(reader, lanes)| format!("{} ({})", output::plain(reader), ranges(lanes))).collect();
    if !sink.delivery.standby.is_empty() {
        parts.push(format!("standby: {}", output::plain(&sink.delivery.standby.join(", "))));
    }
    if parts.is_empty() { "nobody".to_owned() } else { parts.join(", ") }
}

/// Lane numbers in order, runs of them together.
fn ranges(lanes: &[i16]) -> String {
    let mut runs: Vec<(i16, i16)> = Vec::new();
    for &lane in lanes {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == lane => *last = lane,
            _ => runs.push((lane, lane)),
        }
    }
    let runs: Vec<String> = runs
        .iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}–{last}") })
        .collect();
    let noun = if lanes.len() == 1 { "lane" } else { "lanes" };
    format!("{noun} {}", runs.join(", "))
}

fn lanes(sink: &Sink) -> String {
    let row = |lane: &Lane| {
        vec![
            lane.lane.to_string(),
            in_words(Backlog { events: lane.events, is_exact: lane.is_exact }),
            output::plain(lane.reader.as_deref().unwrap_or("nobody")),
        ]
    };
    let rows: Vec<Vec<String>> = sink.lanes.iter().map(row).collect();
    output::table(&["LANE", "BACKLOG", "HELD BY"], &rows)
}

/// The slots that have something to tell.
fn ring(slots: &[Slot]) -> String {
    let free = slots.iter().filter(|slot| slot.is_empty && !slot.is_current).count();
    let bytes: i64 = slots.iter().map(|slot| slot.bytes).sum();
    let mut text = format!("ring: {} in {} slots, {free} free\n", bytes::text(bytes), slots.len());
    let rows: Vec<Vec<String>> = slots
        .iter()
        .filter(|slot| slot.is_current || !slot.is_empty)
        .map(|slot| {
            let since = |moment: Option<_>| moment.map_or_else(|| "-".to_owned(), moment::short);
            vec![
                slot.slot.to_string(),
                bytes::text(slot.bytes),
                since(slot.opened_at),
                if slot.is_current { "is written".to_owned() } else { since(slot.closed_at) },
                if slot.held_by.is_empty() {
                    "-".to_owned()
                } else {
                    output::plain(&slot.held_by.join(", "))
                },
            ]
        })
        .collect();
    text.push_str(&output::table(&["SLOT", "SIZE", "OPENED", "CLOSED", "OWED TO"], &rows));
    text
}

/// For machines.
pub(super) fn document(seen: &Seen, states: &[State], captured: &Captured) -> Value {
    let sinks: Vec<Value> =
        seen.sinks.iter().zip(states).map(|(sink, state)| sink_document(sink, state)).collect();
    let slots: Vec<Value> = seen
        .slots
        .iter()
        .map(|slot| {
            json!({
                "slot": slot.slot,
                "is_current": slot.is_current,
                "is_empty": slot.is_empty,
                "bytes": slot.bytes,
                "opened_at": slot.opened_at.map(moment::text),
                "closed_at": slot.closed_at.map(moment::text),
                "held_by": slot.held_by,
            })
        })
        .collect();
    let well = states.iter().all(|state| state.troubles.is_empty()) && captured.is_well();
    json!({ "well": well, "sinks": sinks, "capture": captured.document(), "ring": slots })
}

#[expect(clippy::cast_precision_loss, reason = "a rate is no count")]
fn sink_document(sink: &Sink, state: &State) -> Value {
    let delivery = &sink.delivery;
    let backlog = sink.backlog();
    let lanes: Vec<Value> = sink
        .lanes
        .iter()
        .map(|lane| json!({ "lane": lane.lane, "reader": lane.reader, "events": lane.events, "is_exact": lane.is_exact }))
        .collect();
    let relays: Vec<Value> = sink
        .relays
        .iter()
        .map(|relay| {
            json!({
                "relay": relay.relay,
                "state": relay.state,
                "since": moment::text(relay.since),
                "trouble": relay.trouble,
                "in_flight": relay.in_flight,
                "heard_at": moment::text(relay.heard_at),
            })
        })
        .collect();
    json!({
        "sink": delivery.sink,
        "state": state.word,
        "trouble": !state.troubles.is_empty(),
        "troubles": state.troubles,
        "note": state.note,
        "backlog": { "events": backlog.events, "is_exact": backlog.is_exact },
        "oldest_seconds": sink.oldest.map(|oldest| oldest.as_secs_f64()),
        "events_per_second": delivery.events_last_minute as f64 / 60.0,
        "parked": { "waiting": delivery.waiting, "behind": delivery.behind, "dead": delivery.dead },
        "readers": delivery.readers,
        "standby": delivery.standby,
        "relays": relays,
        "lanes": lanes,
        "created_at": moment::text(delivery.created_at),
        "paused_at": delivery.paused_at.map(moment::text),
        "last_settled_at": delivery.last_settled_at.map(moment::text),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_come_in_runs() {
        assert_eq!(ranges(&[3]), "lane 3");
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "lanes 0–2, 5, 7–8");
    }

    #[test]
    fn figures_say_when_they_are_not_the_whole() {
        assert_eq!(in_words(Backlog { events: 12_345, is_exact: true }), "12,345");
        assert_eq!(in_words(Backlog { events: 10_000, is_exact: false }), "10,000 at least");
        assert_eq!(
            (rate(0), rate(59), rate(120_000)),
            ("-".to_owned(), "59/min".to_owned(), "2,000/s".to_owned())
        );
    }
}
