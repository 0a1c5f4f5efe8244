//! What became of events whose progress could not be stored. They are read again, and must not be sent again: a database that refuses to
//! store for hours would otherwise be told the same window over and over.

use std::collections::HashMap;

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
    events: HashMap<Uuid, Past>,
    /// The highest `seq` among them.
    highest: i64,
}

impl Remembered {
    /// More than the windows of a few losses; only a relay whose lanes went elsewhere each time gets there.
    const MOST: usize = 100_000;

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    pub(super) fn add(&mut self, id: Uuid, seq: i64, past: Past) {
        if self.events.len() >= Self::MOST {
            self.events.clear();
        }
        self.highest = if self.events.is_empty() { seq } else { self.highest.max(seq) };
        self.events.insert(id, past);
    }

    /// It has come again.
    pub(super) fn take(&mut self, id: Uuid) -> Option<Past> {
        self.events.remove(&id)
    }

    /// Everything up to here is stored: none of those can come again, except by somebody's wish.
    pub(super) fn forget_up_to(&mut self, position: i64) {
        if !self.events.is_empty() && position >= self.highest {
            self.events.clear();
        }
    }
}
