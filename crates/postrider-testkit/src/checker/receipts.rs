//! What a sink received, in the order in which it did.

use std::sync::{Mutex, MutexGuard, PoisonError};

use uuid::Uuid;

/// What one sink received. Share it by reference among the tasks that read from the sink.
///
/// Where several readers share the work (queues, partitions, consumers of a group), each says its own number:
/// order is checked within one reader, everything else over all.
#[derive(Default)]
pub struct Receipts {
    deliveries: Mutex<Vec<Delivery>>,
}

pub(super) struct Delivery {
    pub(super) reader: u32,
    pub(super) id: Uuid,
    pub(super) key: Box<str>,
    pub(super) number: u64,
}

impl Receipts {
    /// Nothing received yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// `reader` has received an event.
    pub fn record(&self, reader: u32, id: Uuid, key: &str, number: u64) {
        self.deliveries().push(Delivery { reader, id, key: key.into(), number });
    }

    /// How many deliveries there were, repeated ones included.
    pub fn len(&self) -> usize {
        self.deliveries().len()
    }

    /// Whether nothing was received.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn deliveries(&self) -> MutexGuard<'_, Vec<Delivery>> {
        self.deliveries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
