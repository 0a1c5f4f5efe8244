//! What became of events whose progress could not be stored. They are read again, and must not be sent again: a database that refuses to
//! store for hours would otherwise be told the same window over and over.

use std::collections::{BTreeMap, HashMap};

use postrider::log::Record;
use postrider::log::parking::Refused;
use uuid::Uuid;

/// What was already done about an event.
#[derive(Debug, Clone)]
pub(super) enum Past {
    /// Delivered, or not wanted by the filter.
    Done,
    /// Refused, and to be parked.
    Refused(Refused),
}

impl Past {
    pub(super) fn of(refused: Option<&Refused>) -> Self {
        refused.map_or(Self::Done, |refused| Self::Refused(refused.clone()))
    }
}

/// By the event's id: a server that went back in time hands out the same numbers again, never the same ids. Lives as long as the relay
/// does; what it forgets is sent again.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    lanes: BTreeMap<i16, Lane>,
    events: usize,
}

/// Which event it is, without its payload.
#[derive(Debug, Clone, Copy)]
pub(super) struct Which {
    id: Uuid,
    lane: i16,
    seq: i64,
}

impl Which {
    pub(super) fn of(record: &Record) -> Self {
        Self { id: record.id, lane: record.lane, seq: record.seq }
    }
}

#[derive(Debug, Default)]
struct Lane {
    events: HashMap<Uuid, Past>,
    /// The highest `seq` that was ever among them.
    highest: i64,
}

impl Remembered {
    /// More than the windows of a few losses; only a relay whose lanes went elsewhere each time gets there.
    const MOST: usize = 100_000;

    pub(super) fn is_empty(&self) -> bool {
        self.events == 0
    }

    pub(super) fn add(&mut self, event: Which, past: Past) {
        if self.events >= Self::MOST {
            *self = Self::default();
        }
        let lane = self.lanes.entry(event.lane).or_default();
        lane.highest = lane.highest.max(event.seq);
        if lane.events.insert(event.id, past).is_none() {
            self.events += 1;
        }
    }

    /// It has come again.
    pub(super) fn take(&mut self, event: Which) -> Option<Past> {
        let past = self.lanes.get_mut(&event.lane)?.events.remove(&event.id)?;
        self.events -= 1;
        Some(past)
    }

    /// In these lanes everything up to here is stored: none of those can come again, except by somebody's wish. What is known of other
    /// lanes is needed when they come back.
    pub(super) fn forget_up_to(&mut self, position: i64, held: &BTreeMap<i16, i64>) {
        if self.lanes.is_empty() {
            return;
        }
        let events = &mut self.events;
        self.lanes.retain(|number, lane| {
            let is_stored = lane.highest <= position && held.contains_key(number);
            if is_stored {
                *events -= lane.events.len();
            }
            !is_stored
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(lane: i16, seq: i64) -> Which {
        Which { id: Uuid::from_u128(u128::from(seq.unsigned_abs())), lane, seq }
    }

    #[test]
    fn what_is_stored_is_forgotten_and_what_others_hold_is_not() {
        let mut remembered = Remembered::default();
        for event in [event(1, 10), event(1, 11), event(2, 12)] {
            remembered.add(event, Past::Done);
        }
        let held = BTreeMap::from([(1, 7)]);
        remembered.forget_up_to(10, &held);
        assert!(remembered.take(event(1, 10)).is_some(), "the lane is not stored up to its last");
        remembered.forget_up_to(100, &held);
        assert!(remembered.take(event(1, 11)).is_none());
        assert!(remembered.take(event(2, 12)).is_some(), "a lane that is not held says nothing");
        assert!(remembered.is_empty());
    }
}
