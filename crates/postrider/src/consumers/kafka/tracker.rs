//! How far each partition is settled.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A partition of a topic.
pub(super) type Partition = (String, i32);

#[derive(Debug, Default)]
struct Track {
    /// In hand.
    open: BTreeSet<i64>,
    /// Behind the last that was delivered.
    next: i64,
    /// Which assignment that was in, and where it began.
    assignment: u64,
    begin: i64,
}

/// The offsets in hand, by partition.
#[derive(Debug)]
pub(super) struct Tracker {
    tracks: Mutex<HashMap<Partition, Track>>,
    /// How far the newest may be from the oldest.
    spread: i64,
    settled: Notify,
}

impl Tracker {
    pub(super) fn new(spread: i64) -> Self {
        Self { tracks: Mutex::default(), spread, settled: Notify::new() }
    }

    fn tracks(&self) -> MutexGuard<'_, HashMap<Partition, Track>> {
        self.tracks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an offset into hand. Whether it may have been delivered before: as far behind the begin of an assignment as anybody may have
    /// been.
    pub(super) fn open(&self, partition: &Partition, offset: i64, assignment: u64) -> bool {
        let mut tracks = self.tracks();
        let track = tracks.entry(partition.clone()).or_default();
        if track.assignment != assignment {
            *track = Track { assignment, begin: offset, ..Track::default() };
        }
        track.open.insert(offset);
        track.next = offset + 1;
        offset - track.begin < self.spread
    }

    /// Whether this offset would be too far from the oldest in hand.
    fn is_far(&self, partition: &Partition, offset: i64) -> bool {
        let tracks = self.tracks();
        let oldest = tracks.get(partition).and_then(|track| track.open.first());
        oldest.is_some_and(|oldest| offset - oldest >= self.spread)
    }

    /// Waits until it is not.
    pub(super) async fn until_near(&self, partition: &Partition, offset: i64) {
        loop {
            let settled = self.settled.notified();
            if !self.is_far(partition, offset) {
                return;
            }
            settled.await;
        }
    }

    /// Settles an offset: where the group stands then. Nothing, if it stands where it did, or the partition has come and gone.
    pub(super) fn settle(&self, partition: &Partition, offset: i64) -> Option<i64> {
        let mut tracks = self.tracks();
        let track = tracks.get_mut(partition)?;
        if !track.open.remove(&offset) {
            return None;
        }
        self.settled.notify_waiters();
        let stands = track.open.first().copied().unwrap_or(track.next);
        Some(stands).filter(|stands| *stands > track.begin)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn the_group_stands_before_the_oldest_that_is_not_settled() {
        let (tracker, partition) = (Tracker::new(10), ("t".to_owned(), 0));
        for offset in [5, 6, 7] {
            assert!(tracker.open(&partition, offset, 1));
        }
        assert_eq!(tracker.settle(&partition, 6), None, "5 is in hand");
        assert_eq!(tracker.settle(&partition, 5), Some(7));
        assert_eq!(tracker.settle(&partition, 7), Some(8));
        assert_eq!(tracker.settle(&partition, 7), None, "once");
    }

    #[test]
    fn what_is_far_behind_the_begin_was_never_delivered_before() {
        let (tracker, partition) = (Tracker::new(3), ("t".to_owned(), 0));
        let repeated: Vec<bool> = (5..10).map(|offset| tracker.open(&partition, offset, 1)).collect();
        assert_eq!(repeated, [true, true, true, false, false]);
        assert!(tracker.open(&partition, 6, 2), "assigned again");
        assert_eq!(tracker.settle(&partition, 5), None, "of the assignment before");
    }

    #[test]
    fn the_newest_waits_for_the_oldest() {
        let (tracker, partition) = (Tracker::new(3), ("t".to_owned(), 0));
        for offset in [5, 6, 7] {
            tracker.open(&partition, offset, 1);
        }
        assert!(tracker.until_near(&partition, 8).now_or_never().is_none());
        tracker.settle(&partition, 5);
        assert!(tracker.until_near(&partition, 8).now_or_never().is_some());
    }
}
