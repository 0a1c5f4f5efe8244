//! The state of a sink in words, and what is wrong with it.

use std::time::Duration;

use postrider_relay::units::Size;

use super::gather::{Relay, Sink, Slot};
use crate::config::Outline;
use crate::{bytes, moment, output};

/// As `postrider.stuck` counts.
pub(crate) const STUCK: Duration = Duration::from_mins(5);

/// What keeps a relay from its work, as `/healthz` calls it. What needs a person comes first.
const WORDS: [&str; 3] = ["failed", "disconnected", "waiting"];

/// How a sink is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// One of few words, for machines and tables.
    pub(crate) word: &'static str,
    /// What a person must know besides, a sentence each. Empty: all is well.
    pub(crate) troubles: Vec<String>,
    /// What a person may like to know, and nothing is wrong with.
    pub(crate) note: Option<String>,
}

/// Judges, by what the configuration says where one was given.
pub(crate) fn state(sink: &Sink, slots: &[Slot], outline: &Outline) -> State {
    let delivery = &sink.delivery;
    let name = &delivery.sink;
    let configured = outline.sinks.as_deref();
    let is_orphaned = sink.is_orphaned(configured);
    let holds_ring = holds_ring(name, slots);
    let mut troubles = Vec::new();
    if is_orphaned {
        troubles.push(format!(
            "is not in the configuration and keeps events from being removed: put it back, or give it up with `postrider sinks forget {name}`"
        ));
    }
    let gravity = |relay: &Relay| WORDS.iter().position(|word| *word == relay.state).unwrap_or_default();
    let mut said: Vec<(&Relay, &str)> =
        sink.relays.iter().filter_map(|relay| Some((relay, relay.trouble.as_deref()?))).collect();
    said.sort_by_key(|(relay, _)| (gravity(relay), relay.since));
    for (relay, trouble) in &said {
        let (state, name, since) = (&relay.state, &relay.relay, moment::short(relay.since));
        troubles.push(output::plain(&format!("{state} at {name} since {since}: {trouble}")));
    }
    let is_running = !delivery.readers.is_empty();
    let is_paused = delivery.paused_at.is_some();
    if !is_running && !is_orphaned && !is_paused && !delivery.is_consumer && said.is_empty() {
        troubles.push("no relay carries its events: start one with `postrider run`".to_owned());
    } else if is_running && delivery.free_lanes > 0 {
        troubles.push(format!(
            "nobody holds {} of its lanes: a relay takes them over within seconds, or look at its log",
            delivery.free_lanes
        ));
    }
    if holds_ring {
        troubles.push(
            "holds the ring: no slot is free, and the log grows until it has settled its oldest events"
                .to_owned(),
        );
    }
    let over = over(slots, outline).filter(|_| holds_closed(name, slots));
    if let Some((bytes, limit)) = over {
        troubles.push(format!(
            "holds the log, which has {} and by log.max_log_size no more than {}: nothing is removed that this sink has not settled",
            bytes::text(bytes),
            Size(limit)
        ));
    }
    if let Some(oldest) = sink.oldest.filter(|oldest| *oldest >= STUCK && !is_paused) {
        troubles.push(format!("its oldest event has waited for {}", moment::span(oldest)));
    }
    if delivery.dead > 0 {
        troubles
            .push(format!("{} dead: see `postrider dead list --sink {name}`", output::events(delivery.dead)));
    }
    let word = if is_orphaned {
        "orphaned"
    } else if is_paused {
        "paused"
    } else if let Some((relay, _)) = said.first() {
        WORDS[gravity(relay)]
    } else if holds_ring || over.is_some() {
        "holding the ring"
    } else if delivery.is_consumer {
        "consumer"
    } else if is_running {
        "running"
    } else if delivery.standby.is_empty() {
        "no relay"
    } else {
        "standby"
    };
    let note = (!is_orphaned && sink.is_foreign(configured)).then(|| {
        let names = sink.carriers();
        let verb = if names.len() == 1 { "carries" } else { "carry" };
        format!("is not in this configuration; {} {verb} it", output::plain(&names.join(", ")))
    });
    State { word, troubles, note }
}

/// Whether it is in the way of turning the ring: it has not settled a slot that was closed, and no slot is free.
fn holds_ring(name: &str, slots: &[Slot]) -> bool {
    slots.iter().filter(|slot| !slot.is_current).all(|slot| !slot.is_empty) && holds_closed(name, slots)
}

/// Whether it has not settled a slot that was closed.
fn holds_closed(name: &str, slots: &[Slot]) -> bool {
    let mut closed = slots.iter().filter(|slot| !slot.is_current && !slot.is_empty);
    closed.any(|slot| slot.held_by.iter().any(|holder| holder == name))
}

/// How large the log is and may be, if it is too large.
fn over(slots: &[Slot], outline: &Outline) -> Option<(i64, u64)> {
    let bytes: i64 = slots.iter().map(|slot| slot.bytes).sum();
    outline.max_log_size.filter(|limit| bytes.unsigned_abs() > *limit).map(|limit| (bytes, limit))
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::super::gather::Delivery;
    use super::*;

    fn sink() -> Sink {
        let delivery = Delivery {
            sink: "web".to_owned(),
            created_at: OffsetDateTime::UNIX_EPOCH,
            paused_at: None,
            readers: vec!["relay 1".to_owned()],
            standby: Vec::new(),
            free_lanes: 0,
            last_settled_at: None,
            events_last_minute: 0,
            waiting: 3,
            behind: 2,
            dead: 0,
            taken_back: 0,
            taken_back_at: None,
            is_consumer: false,
        };
        Sink { delivery, lanes: Vec::new(), relays: Vec::new(), oldest: Some(Duration::from_secs(4)) }
    }

    fn slots(filled: usize, held: &[i16]) -> Vec<Slot> {
        (0..8)
            .map(|slot: i16| Slot {
                slot,
                is_current: slot == 0,
                bytes: 1,
                is_empty: usize::try_from(slot).is_ok_and(|slot| slot >= filled),
                opened_at: None,
                closed_at: None,
                held_by: if held.contains(&slot) { vec!["web".to_owned()] } else { Vec::new() },
            })
            .collect()
    }

    fn word(change: impl FnOnce(&mut Sink)) -> (&'static str, bool) {
        let mut sink = sink();
        change(&mut sink);
        let state = state(&sink, &slots(3, &[0, 1]), &Outline::default());
        (state.word, state.troubles.is_empty())
    }

    #[test]
    fn every_state_has_its_word() {
        assert_eq!(word(|_| ()), ("running", true));
        assert_eq!(word(|sink| sink.delivery.paused_at = Some(OffsetDateTime::UNIX_EPOCH)), ("paused", true));
        assert_eq!(word(|sink| sink.delivery.readers.clear()), ("no relay", false));
        assert_eq!(
            word(|sink| {
                sink.delivery.standby = std::mem::take(&mut sink.delivery.readers);
            }),
            ("standby", false)
        );
        assert_eq!(word(|sink| sink.delivery.dead = 1), ("running", false));
        assert_eq!(word(|sink| sink.delivery.free_lanes = 1), ("running", false));
        assert_eq!(word(|sink| sink.oldest = Some(STUCK)), ("running", false));
    }

    fn says(name: &str, state: &str, trouble: Option<&str>) -> Relay {
        Relay {
            sink: "web".to_owned(),
            relay: name.to_owned(),
            state: state.to_owned(),
            since: OffsetDateTime::UNIX_EPOCH,
            trouble: trouble.map(ToOwned::to_owned),
            lanes: Vec::new(),
            in_flight: 0,
            heard_at: OffsetDateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn what_its_relays_say_comes_before_what_the_database_sees() {
        let mut sink = sink();
        sink.relays = vec![
            says("relay 1", "waiting", Some("the sink is full")),
            says("relay 2", "failed", Some("it needs a\x1bperson")),
            says("relay 3", "running", None),
        ];
        let found = state(&sink, &slots(8, &[0, 4]), &Outline::default());
        assert_eq!(found.word, "failed");
        assert_eq!(
            found.troubles[..2],
            [
                "failed at relay 2 since 1970-01-01 00:00:00Z: it needs a\\u{1b}person",
                "waiting at relay 1 since 1970-01-01 00:00:00Z: the sink is full"
            ]
        );
        // One that cannot read carries nothing, and starting another one is no remedy.
        sink.delivery.readers.clear();
        assert_eq!(state(&sink, &slots(3, &[]), &Outline::default()).troubles.len(), 2);
        sink.delivery.paused_at = Some(OffsetDateTime::UNIX_EPOCH);
        assert_eq!(state(&sink, &slots(3, &[]), &Outline::default()).word, "paused");
    }

    #[test]
    fn a_sink_that_is_not_configured_is_orphaned() {
        let with = |name: &str| Outline { sinks: Some(vec![name.to_owned()]), ..Outline::default() };
        assert_eq!(state(&sink(), &slots(1, &[]), &with("mail")).word, "orphaned");
        assert_eq!(state(&sink(), &slots(1, &[]), &with("web")).word, "running");
    }

    #[test]
    fn a_sink_of_another_configuration_is_not_orphaned() {
        let outline = Outline { sinks: Some(vec!["mail".to_owned()]), ..Outline::default() };
        let mut sink = sink();
        sink.relays = vec![says("relay 1", "running", None)];
        let found = state(&sink, &slots(1, &[]), &outline);
        assert_eq!((found.word, found.troubles.len()), ("running", 0));
        assert_eq!(found.note.as_deref(), Some("is not in this configuration; relay 1 carries it"));
        // What keeps its relays is as bad as anywhere.
        sink.relays = vec![says("relay 1", "failed", Some("no")), says("relay 2", "failed", Some("no"))];
        sink.delivery.readers.clear();
        let found = state(&sink, &slots(1, &[]), &outline);
        assert_eq!((found.word, found.troubles.len()), ("failed", 2));
        assert_eq!(found.note.as_deref(), Some("is not in this configuration; relay 1, relay 2 carry it"));
    }

    #[test]
    fn a_consumer_needs_neither_configuration_nor_relay() {
        let mut sink = sink();
        sink.delivery.is_consumer = true;
        sink.delivery.dead = 0;
        sink.delivery.readers.clear();
        let outline = Outline { sinks: Some(vec!["mail".to_owned()]), ..Outline::default() };
        let state = state(&sink, &slots(1, &[]), &outline);
        assert_eq!(state.word, "consumer");
        assert!(!state.troubles.iter().any(|trouble| trouble.contains("relay")), "{:?}", state.troubles);
    }

    #[test]
    fn the_ring_is_held_when_no_slot_is_free() {
        let outline = Outline::default();
        assert_eq!(state(&sink(), &slots(8, &[0, 4]), &outline).word, "holding the ring");
        assert_eq!(state(&sink(), &slots(8, &[0]), &outline).word, "running");
        assert_eq!(state(&sink(), &slots(7, &[0, 4]), &outline).word, "running");
    }

    #[test]
    fn the_ring_is_held_when_the_log_is_too_large() {
        let limited = |bytes| Outline { max_log_size: Some(bytes), ..Outline::default() };
        let held = state(&sink(), &slots(3, &[0, 1]), &limited(7));
        assert_eq!(held.word, "holding the ring");
        assert_eq!(
            held.troubles,
            [
                "holds the log, which has 8 B and by log.max_log_size no more than 7B: nothing is removed that this sink has not settled"
            ]
        );
        assert_eq!(state(&sink(), &slots(3, &[0, 1]), &limited(8)).word, "running");
        assert_eq!(
            state(&sink(), &slots(3, &[0]), &limited(7)).word,
            "running",
            "the current one can be closed"
        );
    }
}
