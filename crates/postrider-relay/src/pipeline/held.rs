//! The keys of which something is parked: with strict ordering, their later events wait behind it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use postrider::log::Batch;

/// Known for the lanes that were loaded since they came to this relay. Only the holder of a lane parks in it, so what is known stays
/// true; keys that somebody else has freed meanwhile are found when the next event of theirs is parked and is due at once.
#[derive(Debug, Default)]
pub(super) struct HeldKeys {
    keys: Arc<HashSet<String>>,
    /// The epoch in which each lane came to us.
    loaded: HashMap<i16, i64>,
    /// How many events of a key are on their way to be parked: the database does not know of them yet.
    pending: HashMap<String, usize>,
}

impl HeldKeys {
    /// As they are now, for a delivery on its way.
    pub(super) fn now(&self) -> Arc<HashSet<String>> {
        Arc::clone(&self.keys)
    }

    /// The lanes of a batch whose keys are not known yet.
    pub(super) fn unknown(&self, batch: &Batch) -> Vec<(i16, i64)> {
        let lanes = batch.lanes().filter_map(|(lane, _)| Some((lane, batch.since(lane)?)));
        lanes.filter(|(lane, since)| self.loaded.get(lane) != Some(since)).collect()
    }

    pub(super) fn load(&mut self, lanes: &[(i16, i64)], keys: Vec<String>) {
        self.loaded.extend(lanes.iter().copied());
        Arc::make_mut(&mut self.keys).extend(keys);
    }

    /// An event of this key is going to be parked.
    pub(super) fn hold(&mut self, key: &str) {
        if !self.keys.contains(key) {
            Arc::make_mut(&mut self.keys).insert(key.to_owned());
        }
        *self.pending.entry(key.to_owned()).or_default() += 1;
    }

    /// An event of this key is parked now, or is going to be read again.
    pub(super) fn on_parked(&mut self, key: &str) {
        if let Some(pending) = self.pending.get_mut(key) {
            *pending -= 1;
            if *pending == 0 {
                self.pending.remove(key);
            }
        }
    }

    /// Nothing is parked of these keys any more. One that has something on its way stays held, or the next event would pass it.
    pub(super) fn free(&mut self, keys: &[String]) {
        for key in keys {
            if self.keys.contains(key) && !self.pending.contains_key(key) {
                Arc::make_mut(&mut self.keys).remove(key);
            }
        }
    }
}
