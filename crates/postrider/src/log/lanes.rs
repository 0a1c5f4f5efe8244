//! The lanes a reader holds: where reading is, what is settled, what is in between.

use std::collections::BTreeMap;

use super::cursor::Cursor;
use super::round::Page;

/// One lane in memory. Lives no longer than the connection that read it: after a crash the server hands out the same xids
/// and seqs again, and only the stored cursor knows which.
#[derive(Debug, Clone)]
struct Lane {
    /// Everything up to here was read.
    read: Cursor,
    /// Everything up to here is delivered.
    settled: Cursor,
    /// Records read and not settled.
    in_flight: usize,
}

/// All lanes a reader holds for one sink.
#[derive(Debug, Clone, Default)]
pub struct Lanes {
    lanes: BTreeMap<i16, Lane>,
}

impl Lanes {
    /// Takes over the lanes of a new epoch: what was held before goes on where it is in memory, the others start as stored.
    pub fn adopt(&mut self, stored: BTreeMap<i16, Cursor>) {
        let mut before = std::mem::take(&mut self.lanes);
        self.lanes = stored
            .into_iter()
            .map(|(number, cursor)| {
                let lane = before.remove(&number).unwrap_or_else(|| Lane {
                    read: cursor.clone(),
                    settled: cursor,
                    in_flight: 0,
                });
                (number, lane)
            })
            .collect();
    }

    /// Drops the lanes that somebody else holds now.
    pub fn keep_only(&mut self, lanes: &[i16]) {
        self.lanes.retain(|lane, _| lanes.contains(lane));
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
            .filter(|(_, lane)| lane.in_flight > 0)
            .map(|(number, _)| *number)
            .collect()
    }

    /// The reading cursors, in groups that one statement can read.
    pub fn groups(&self) -> Vec<BTreeMap<i16, Cursor>> {
        let mut groups: Vec<BTreeMap<i16, Cursor>> = Vec::new();
        for (&number, lane) in &self.lanes {
            let group = groups.iter_mut().find(|group| {
                group
                    .values()
                    .next()
                    .is_some_and(|first| first.reads_with(&lane.read))
            });
            match group {
                Some(group) => drop(group.insert(number, lane.read.clone())),
                None => groups.push(BTreeMap::from([(number, lane.read.clone())])),
            }
        }
        groups
    }

    /// Takes note of a page that was read.
    pub fn on_read(&mut self, number: i16, page: &Page) {
        if let Some(lane) = self.lanes.get_mut(&number) {
            lane.read = page.end.clone();
            lane.in_flight += page.records.len();
            if lane.in_flight == 0 {
                lane.settled = lane.read.clone();
            }
        }
    }

    /// Takes note that the first `delivered` records of a page are delivered; answers whether the lane is still ours.
    pub fn on_delivered(&mut self, number: i16, page: &Page, delivered: usize) -> bool {
        let Some(lane) = self.lanes.get_mut(&number) else {
            return false;
        };
        lane.settled = page.cursor_after(delivered);
        lane.in_flight = lane.in_flight.saturating_sub(delivered.min(page.records.len()));
        if lane.in_flight == 0 {
            lane.settled = lane.read.clone();
        }
        true
    }

    /// What is to be stored.
    pub fn settled(&self) -> BTreeMap<i16, Cursor> {
        self.lanes
            .iter()
            .map(|(number, lane)| (*number, lane.settled.clone()))
            .collect()
    }

    /// A transaction of our own began after everything that was read so far.
    pub fn bound_by(&mut self, xid: u64) {
        for lane in self.lanes.values_mut() {
            lane.read.bound.get_or_insert(xid);
            lane.settled.bound.get_or_insert(xid);
        }
    }
}
