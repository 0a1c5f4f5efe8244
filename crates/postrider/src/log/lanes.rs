//! The lanes a reader holds: where reading is, what is settled, what is in between.

use std::collections::BTreeMap;

use super::cursor::Cursor;
use super::error::{Error, Result};
use super::round::Page;

/// One lane in memory. Lives no longer than the connection that read it: after a crash the server hands out the same xids
/// and seqs again, and only the stored cursor knows which.
#[derive(Debug, Clone)]
struct Lane {
    /// The epoch in which it came to us: what was read before it was lost and came back must not be settled now.
    since: i64,
    /// How many rounds had been read before it came.
    came_after: u64,
    /// Everything up to here was read, how many records that were, and in which round.
    read: Cursor,
    read_count: u64,
    read_round: u64,
    /// Everything up to here is delivered, how many records that were, and in which round they were read.
    settled: Cursor,
    settled_count: u64,
    settled_round: u64,
}

/// Where a page belongs: what settling it needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    since: i64,
    /// Number of records that were read from the lane before this page.
    before: u64,
    round: u64,
}

impl Place {
    /// The epoch in which its lane came to this reader: another one means that somebody else may have had it in between.
    pub fn since(self) -> i64 {
        self.since
    }
}

/// How far a page is delivered.
#[derive(Debug, Clone)]
pub struct Settling {
    place: Place,
    delivered: u64,
    cursor: Cursor,
}

impl Place {
    /// The first `delivered` records of the page are.
    pub fn settling(self, page: &Page, delivered: usize) -> Settling {
        let delivered = delivered.min(page.records.len());
        Settling { place: self, delivered: delivered as u64, cursor: page.cursor_after(delivered) }
    }
}

/// All lanes a reader holds for one sink.
#[derive(Debug, Clone, Default)]
pub struct Lanes {
    held: BTreeMap<i16, Lane>,
    /// Beyond our share: read no further, and given up when nothing of theirs is under way.
    retiring: Vec<i16>,
    /// Counts what was read, to tell whether a cursor is older than a transaction of ours.
    rounds: u64,
}

impl Lanes {
    /// Takes over the lanes of a new epoch: what was held before goes on where it is in memory, the others start as stored.
    pub fn adopt(&mut self, epoch: i64, stored: BTreeMap<i16, Cursor>) {
        let mut before = std::mem::take(&mut self.held);
        self.held = stored
            .into_iter()
            .map(|(number, cursor)| {
                let lane = before.remove(&number).unwrap_or_else(|| Lane {
                    since: epoch,
                    came_after: self.rounds,
                    read: cursor.clone(),
                    read_count: 0,
                    read_round: self.rounds,
                    settled: cursor,
                    settled_count: 0,
                    settled_round: self.rounds,
                });
                (number, lane)
            })
            .collect();
    }

    /// These lanes are to be given up: nothing more is read from them, or under a backlog they would never be free.
    pub fn retire(&mut self, lanes: Vec<i16>) {
        self.retiring = lanes;
    }

    /// Forgets what was read of those of these lanes that are to be given up, each with the epoch in which it came: nobody works on it.
    pub fn let_go(&mut self, lanes: &BTreeMap<i16, i64>) {
        let Self { held, retiring, .. } = self;
        held.retain(|number, lane| lanes.get(number) != Some(&lane.since) || !retiring.contains(number));
    }

    /// Drops the lanes that somebody else holds now.
    pub fn keep_only(&mut self, lanes: &[i16]) {
        self.held.retain(|lane, _| lanes.contains(lane));
    }

    /// Whether a page that was read is still ours to hand out.
    pub fn holds(&self, number: i16, place: Place) -> bool {
        self.held.get(&number).is_some_and(|lane| lane.since == place.since)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// All lanes, with the epoch in which each came to us.
    pub fn tenures(&self) -> BTreeMap<i16, i64> {
        self.held.iter().map(|(number, lane)| (*number, lane.since)).collect()
    }

    /// The lanes that are to be given up.
    pub fn retiring(&self) -> &[i16] {
        &self.retiring
    }

    /// The numbers of all lanes.
    pub fn numbers(&self) -> Vec<i16> {
        self.held.keys().copied().collect()
    }

    /// Lanes with something in flight.
    pub fn busy(&self) -> Vec<i16> {
        self.held
            .iter()
            .filter(|(_, lane)| lane.read_count > lane.settled_count)
            .map(|(number, _)| *number)
            .collect()
    }

    /// The reading cursors, in groups that one statement can read.
    pub fn groups(&self) -> Vec<BTreeMap<i16, Cursor>> {
        let mut groups: Vec<BTreeMap<i16, Cursor>> = Vec::new();
        for (&number, lane) in self.held.iter().filter(|(number, _)| !self.retiring.contains(number)) {
            let group = groups
                .iter_mut()
                .find(|group| group.values().next().is_some_and(|first| first.reads_with(&lane.read)));
            match group {
                Some(group) => drop(group.insert(number, lane.read.clone())),
                None => groups.push(BTreeMap::from([(number, lane.read.clone())])),
            }
        }
        groups
    }

    /// Takes note of a page that was read.
    pub fn on_read(&mut self, number: i16, page: &Page) -> Option<Place> {
        let lane = self.held.get_mut(&number)?;
        self.rounds += 1;
        let place = Place { since: lane.since, before: lane.read_count, round: self.rounds };
        lane.read = page.end.clone();
        lane.read_round = self.rounds;
        lane.read_count += page.records.len() as u64;
        lane.settle_if_idle();
        Some(place)
    }

    /// Takes note that a page is delivered as far as `settling` says, and everything before it. Answers how many records that moves
    /// past, or `None` if the lane is not the one any more that it was read from.
    pub fn on_delivered(&mut self, number: i16, settling: &Settling) -> Result<Option<u64>> {
        let Some(lane) = self.held.get_mut(&number).filter(|lane| lane.since == settling.place.since) else {
            return Ok(None);
        };
        if settling.place.before > lane.settled_count {
            return Err(Error::OutOfOrder { lane: number });
        }
        let count = settling.place.before + settling.delivered;
        // Settled further already: a cursor never goes back, not even past rounds that found nothing.
        if (count, settling.place.round) <= (lane.settled_count, lane.settled_round) {
            return Ok(Some(0));
        }
        let events = count - lane.settled_count;
        lane.settled = settling.cursor.clone();
        lane.settled_count = count;
        lane.settled_round = settling.place.round;
        lane.settle_if_idle();
        Ok(Some(events))
    }

    /// What is to be stored.
    pub fn settled(&self) -> BTreeMap<i16, Cursor> {
        self.held.iter().map(|(number, lane)| (*number, lane.settled.clone())).collect()
    }

    /// How many rounds were read so far.
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    /// A transaction of our own began after this many rounds were read: its xid bounds them, and nothing that was read since.
    pub fn bound_by(&mut self, xid: u64, rounds: u64) {
        for lane in self.held.values_mut() {
            if lane.read_round <= rounds {
                lane.read.bound.get_or_insert(xid);
            }
            if lane.settled_round <= rounds {
                lane.settled.bound.get_or_insert(xid);
            }
        }
    }

    /// Everything up to here that was committed when it was read is settled, in all lanes. Unknown as long as something may have come
    /// late that was not looked for yet, or is not worked off.
    pub fn settled_position(&self) -> Option<i64> {
        self.held.values().map(Lane::settled_position).min().flatten()
    }
}

impl Lane {
    fn settled_position(&self) -> Option<i64> {
        let is_known = self.settled_round > self.came_after && self.settled.late.is_none();
        is_known.then_some(self.settled.position)
    }

    /// With nothing in flight, everything that was read is settled, also where there was nothing to deliver.
    fn settle_if_idle(&mut self) {
        if self.read_count == self.settled_count {
            self.settled = self.read.clone();
            self.settled_round = self.read_round;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use time::OffsetDateTime;
    use uuid::Uuid;

    use super::*;
    use crate::log::Record;

    fn record(seq: i64) -> Record {
        Record {
            seq,
            lane: 0,
            id: Uuid::nil(),
            source_id: None,
            r#type: "test".to_owned(),
            entity: None,
            key: None,
            tenant: None,
            payload: "{}".to_owned(),
            headers: None,
            created_at: OffsetDateTime::UNIX_EPOCH,
        }
    }

    /// What a relay remembers of events that it could not settle is forgotten by this: behind a position may stand what came late.
    #[test]
    fn a_position_counts_when_what_came_late_was_looked_for() {
        let cursor = |position| Cursor::new(position, Arc::from("10:12:11"));
        let mut lanes = Lanes::default();
        lanes.adopt(1, BTreeMap::from([(0, cursor(100)), (1, cursor(90))]));
        assert_eq!(lanes.settled_position(), None, "as stored: nothing was looked for");
        lanes.on_read(0, &Page::empty(cursor(120)));
        assert_eq!(lanes.settled_position(), None, "in one of two lanes");
        lanes.on_read(1, &Page::empty(cursor(110)));
        assert_eq!(lanes.settled_position(), Some(110));
        let target = Arc::from("12:12:");
        lanes.on_read(1, &Page::empty(cursor(110).within_late(&target, 50)));
        assert_eq!(lanes.settled_position(), None, "in the middle of what came late");
        lanes.on_read(1, &Page::empty(cursor(130)));
        assert_eq!(lanes.settled_position(), Some(120));
        lanes.adopt(2, BTreeMap::from([(0, cursor(100)), (2, cursor(500))]));
        assert_eq!(lanes.settled_position(), None, "another lane has come");
    }

    /// What was read of a lane and not begun is no reason to keep it from others; what is to be kept stays, also if somebody asks late.
    #[test]
    fn lanes_that_are_to_be_given_up_are_let_go_before_all_that_was_read_is_settled() {
        let cursor = |position| Cursor::new(position, Arc::from("10:10:"));
        let mut lanes = Lanes::default();
        lanes.adopt(7, BTreeMap::from([(0, cursor(100)), (1, cursor(100)), (2, cursor(100))]));
        for lane in 0..3 {
            let mut page = Page::empty(cursor(120));
            page.records.push(record(120));
            lanes.on_read(lane, &page);
        }
        lanes.retire(vec![1, 2]);
        lanes.let_go(&BTreeMap::from([(0, 7), (1, 7), (2, 6)]));
        assert_eq!(
            lanes.numbers(),
            [0, 2],
            "one stays with us, and one has come anew since it was asked for"
        );
        assert_eq!(lanes.busy(), [0, 2]);
        // Nobody else wants it any more: it begins again where it is settled, and what was read before means nothing.
        lanes.adopt(8, BTreeMap::from([(0, cursor(100)), (1, cursor(100)), (2, cursor(100))]));
        assert_eq!(lanes.tenures(), BTreeMap::from([(0, 7), (1, 8), (2, 7)]));
        assert_eq!(lanes.busy(), [0, 2]);
    }

    /// Others had it in between and went further: where we stood then would take them back.
    #[test]
    fn what_was_read_from_a_lane_that_was_lost_is_not_settled_when_it_is_back() {
        let cursor = |position| Cursor::new(position, Arc::from("10:10:"));
        let mut lanes = Lanes::default();
        lanes.adopt(1, BTreeMap::from([(0, cursor(100))]));
        let mut page = Page::empty(cursor(120));
        page.records.push(record(120));
        let Some(place) = lanes.on_read(0, &page) else { panic!("it is held") };
        let before = place.settling(&page, 1);
        lanes.adopt(2, BTreeMap::new());
        assert!(matches!(lanes.on_delivered(0, &before), Ok(None)), "lost");
        lanes.adopt(3, BTreeMap::from([(0, cursor(500))]));
        assert!(!lanes.holds(0, place));
        assert!(matches!(lanes.on_delivered(0, &before), Ok(None)), "lost, and back");
        assert_eq!(lanes.settled()[&0].position, 500);
    }
}
