//! What was delivered a moment ago. A failover to a standby that lagged behind takes back commits that were true when they were
//! delivered; nothing undoes the delivery, but which events it was can be said.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use postrider::log::Record;
use uuid::Uuid;

/// Standbys lag by seconds. Longer ago, an event may also have left the log by its age.
const RECENT: Duration = Duration::from_mins(5);
const MOST: usize = 10_000;

/// Events as the log knew them.
#[derive(Debug, Default, Clone)]
pub(super) struct Known {
    pub(super) lanes: Vec<i16>,
    pub(super) seqs: Vec<i64>,
    pub(super) ids: Vec<Uuid>,
}

/// The last deliveries, and the timeline on which they were made.
#[derive(Debug, Default)]
pub(super) struct Recent {
    events: VecDeque<(Instant, i16, i64, Uuid)>,
    timeline: Option<i64>,
}

impl Recent {
    pub(super) fn on_delivered<'a>(&mut self, records: impl Iterator<Item = &'a Record>) {
        let now = Instant::now();
        self.events.extend(records.map(|record| (now, record.lane, record.seq, record.id)));
        self.events.drain(..self.events.len().saturating_sub(MOST));
    }

    /// What has to be looked for on the server that is there now, if it is on another timeline.
    pub(super) fn on_timeline(&mut self, timeline: i64) -> Option<Known> {
        if self.timeline.replace(timeline).is_none_or(|before| before == timeline) {
            return None;
        }
        let mut known = Known::default();
        for (at, lane, seq, id) in self.events.drain(..) {
            if at.elapsed() < RECENT {
                known.lanes.push(lane);
                known.seqs.push(seq);
                known.ids.push(id);
            }
        }
        (!known.ids.is_empty()).then_some(known)
    }
}
