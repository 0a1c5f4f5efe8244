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
    /// Everything up to here was read, and how many records that were.
    read: Cursor,
    read_count: u64,
    /// Everything up to here is delivered, and how many records that were.
    settled: Cursor,
    settled_count: u64,
}

/// Where a page belongs: what settling it needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    since: i64,
    /// Number of records that were read from the lane before this page.
    before: u64,
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
    lanes: BTreeMap<i16, Lane>,
    /// Beyond our share: delivered to the end of what was read, and then given up.
    retiring: Vec<i16>,
}

impl Lanes {
    /// Takes over the lanes of a new epoch: what was held before goes on where it is in memory, the others start as stored.
    pub fn adopt(&mut self, epoch: i64, stored: BTreeMap<i16, Cursor>) {
        let mut before = std::mem::take(&mut self.lanes);
        self.lanes = stored
            .into_iter()
            .map(|(number, cursor)| {
                let lane = before.remove(&number).unwrap_or_else(|| Lane {
                    since: epoch,
                    read: cursor.clone(),
                    read_count: 0,
                    settled: cursor,
                    settled_count: 0,
                });
                (number, lane)
            })
            .collect();
    }

    /// These lanes are to be given up: nothing more is read from them, or under a backlog they would never be free.
    pub fn retire(&mut self, lanes: Vec<i16>) {
        self.retiring = lanes;
    }

    /// Drops the lanes that somebody else holds now.
    pub fn keep_only(&mut self, lanes: &[i16]) {
        self.lanes.retain(|lane, _| lanes.contains(lane));
    }

    /// Whether a page that was read is still ours to hand out.
    pub fn holds(&self, number: i16, place: Place) -> bool {
        self.lanes.get(&number).is_some_and(|lane| lane.since == place.since)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// The numbers of all lanes.
    pub fn numbers(&self) -> Vec<i16> {
        self.lanes.keys().copied().collect()
    }

    /// Lanes with something in flight.
    pub fn busy(&self) -> Vec<i16> {
        self.lanes
            .iter()
            .filter(|(_, lane)| lane.read_count > lane.settled_count)
            .map(|(number, _)| *number)
            .collect()
    }

    /// The reading cursors, in groups that one statement can read.
    pub fn groups(&self) -> Vec<BTreeMap<i16, Cursor>> {
        let mut groups: Vec<BTreeMap<i16, Cursor>> = Vec::new();
        for (&number, lane) in self.lanes.iter().filter(|(number, _)| !self.retiring.contains(number)) {
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
        let lane = self.lanes.get_mut(&number)?;
        let place = Place { since: lane.since, before: lane.read_count };
        lane.read = page.end.clone();
        lane.read_count += page.records.len() as u64;
        lane.settle_if_idle();
        Some(place)
    }

    /// Takes note that a page is delivered as far as `settling` says, and everything before it. Answers whether the lane is still
    /// the one it was read from.
    pub fn on_delivered(&mut self, number: i16, settling: &Settling) -> Result<bool> {
        let Some(lane) = self.lanes.get_mut(&number).filter(|lane| lane.since == settling.place.since) else {
            return Ok(false);
        };
        if settling.place.before > lane.settled_count {
            return Err(Error::OutOfOrder { lane: number });
        }
        let count = settling.place.before + settling.delivered;
        // Settled further already: a cursor never goes back.
        if count < lane.settled_count {
            return Ok(true);
        }
        lane.settled = settling.cursor.clone();
        lane.settled_count = count;
        lane.settle_if_idle();
        Ok(true)
    }

    /// What is to be stored.
    pub fn settled(&self) -> BTreeMap<i16, Cursor> {
        self.lanes.iter().map(|(number, lane)| (*number, lane.settled.clone())).collect()
    }

    /// A transaction of our own began after everything that was read so far.
    pub fn bound_by(&mut self, xid: u64) {
        for lane in self.lanes.values_mut() {
            lane.read.bound.get_or_insert(xid);
            lane.settled.bound.get_or_insert(xid);
        }
    }
}

impl Lane {
    /// With nothing in flight, everything that was read is settled, also where there was nothing to deliver.
    fn settle_if_idle(&mut self) {
        if self.read_count == self.settled_count {
            self.settled = self.read.clone();
        }
    }
}
