//! How many bytes of events a reader may have in memory, and how many it has.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use uuid::Uuid;

use super::record::Record;
use super::turns::{Turn, Turns};

/// How large batches may be. Clones share one value, which may be changed while readers read. Of all readers that share it, one at a time
/// has an event that is larger than a batch may be, or as many more as wait for their sinks for longer than ten seconds.
#[derive(Debug, Clone)]
pub struct BatchBytes(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    bytes: AtomicUsize,
    /// The largest event of every batch that is in memory.
    largest: Mutex<Vec<Large>>,
    turns: Arc<Turns>,
}

/// An event that is in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Large {
    /// Its id.
    pub id: Uuid,
    /// Its size.
    pub bytes: usize,
}

impl BatchBytes {
    /// So many.
    pub fn new(bytes: usize) -> Self {
        let (bytes, largest, turns) = (AtomicUsize::new(bytes), Mutex::default(), Arc::default());
        Self(Arc::new(Shared { bytes, largest, turns }))
    }

    /// As it is now.
    pub fn get(&self) -> usize {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// From the next round on.
    pub fn set(&self, bytes: usize) {
        self.0.bytes.store(bytes, Ordering::Relaxed);
    }

    /// The largest event that is in memory now, of all readers that share this value.
    pub fn largest(&self) -> Option<Large> {
        self.held().iter().max_by_key(|large| large.bytes).copied()
    }

    fn held(&self) -> MutexGuard<'_, Vec<Large>> {
        self.0.largest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for BatchBytes {
    fn default() -> Self {
        Self::new(8 << 20)
    }
}

/// What one reader's batches take, from reading to settling.
#[derive(Debug)]
pub(super) struct Room {
    batch_bytes: BatchBytes,
    taken: Arc<watch::Sender<usize>>,
}

impl Room {
    pub(super) fn new(batch_bytes: BatchBytes) -> Self {
        Self { batch_bytes, taken: Arc::new(watch::Sender::new(0)) }
    }

    /// One batch is delivered while another waits and a third is read. Events that are larger than two of them come one by one.
    fn fits(&self, taken: usize) -> bool {
        taken <= self.batch_bytes.get().saturating_mul(2)
    }

    /// Whether nothing more should be read before something is settled.
    pub(super) fn is_full(&self) -> bool {
        !self.fits(*self.taken.borrow())
    }

    /// Waits until something may be read.
    pub(super) async fn until_free(&self) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.taken.subscribe().wait_for(|taken| self.fits(*taken)).await;
    }

    /// A place among all who want to read a large event.
    pub(super) fn queue(&self) -> Turn {
        self.batch_bytes.0.turns.queue()
    }

    /// Takes note of what was read, until the last clone of what this answers is dropped. A turn in which it was read is over then.
    pub(super) fn hold<'a>(
        &self,
        records: impl Iterator<Item = &'a Record>,
        turn: Option<Turn>,
    ) -> Arc<Hold> {
        let mut bytes = 0;
        let mut largest = Large { id: Uuid::nil(), bytes: 0 };
        for record in records {
            let size = record.size();
            bytes += size;
            if size > largest.bytes {
                largest = Large { id: record.id, bytes: size };
            }
        }
        self.taken.send_modify(|taken| *taken += bytes);
        self.batch_bytes.held().push(largest);
        Arc::new(Hold {
            bytes,
            largest,
            batch_bytes: self.batch_bytes.clone(),
            taken: Arc::clone(&self.taken),
            _turn: turn,
        })
    }
}

/// Room that a batch takes.
#[derive(Debug)]
pub(super) struct Hold {
    bytes: usize,
    largest: Large,
    batch_bytes: BatchBytes,
    taken: Arc<watch::Sender<usize>>,
    _turn: Option<Turn>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = self.batch_bytes.held();
        if let Some(place) = held.iter().position(|large| *large == self.largest) {
            held.swap_remove(place);
        }
        drop(held);
        self.taken.send_modify(|taken| *taken -= self.bytes);
    }
}
