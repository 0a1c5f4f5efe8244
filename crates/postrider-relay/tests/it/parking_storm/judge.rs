//! What must be true when a storm is over.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::{MAX_IN_FLIGHT, Storm};
use crate::support::PATIENCE;

/// Waits until nothing is parked and every event is delivered or discarded.
pub async fn wait_until_all_is_settled(storm: &Storm) {
    let mut connection = storm.database.connect().await.unwrap();
    let begun = Instant::now();
    loop {
        let parked: i64 = sqlx::query_scalar("select count(*) from postrider.parked")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        let settled: HashSet<Uuid> = {
            let taken = storm.taken.lock().unwrap();
            taken
                .iter()
                .map(|taken| taken.id)
                .chain(storm.discarded.lock().unwrap().iter().copied())
                .collect()
        };
        let open =
            storm.committed.lock().unwrap().values().flatten().filter(|id| !settled.contains(id)).count();
        if parked == 0 && open == 0 {
            return;
        }
        super::operator::retry_the_dead(&mut connection).await;
        assert!(begun.elapsed() < PATIENCE, "{parked} are parked, {open} neither delivered nor discarded");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub fn judge(storm: &Storm) {
    let committed = storm.committed.lock().unwrap();
    let discarded = storm.discarded.lock().unwrap();
    let dropped = storm.dropped.lock().unwrap();
    let taken = storm.taken.lock().unwrap();
    let mut last: HashMap<Uuid, u32> = HashMap::new();
    let mut sequences: BTreeMap<&str, Vec<(u64, Uuid)>> = BTreeMap::new();
    let mut again: BTreeMap<u32, usize> = BTreeMap::new();
    for event in taken.iter() {
        match last.insert(event.id, event.relay) {
            None => sequences.entry(&event.key).or_default().push((event.n, event.id)),
            Some(before) => *again.entry(before).or_default() += 1,
        }
    }
    let events: usize = committed.values().map(Vec::len).sum();
    let twice: usize = again.values().sum();
    println!(
        "{events} committed, {} delivered, {} discarded, {} relays died, {twice} came twice",
        taken.len(),
        discarded.len(),
        dropped.len()
    );
    for (key, delivered) in &sequences {
        // One that is discarded while it is on its way frees its key at once, and may still arrive.
        let kept: Vec<u64> =
            delivered.iter().filter(|(_, id)| !discarded.contains(id)).map(|(n, _)| *n).collect();
        assert!(kept.is_sorted(), "{key}: {kept:?}");
    }
    let without =
        |ids: Vec<Uuid>| -> Vec<Uuid> { ids.into_iter().filter(|id| !discarded.contains(id)).collect() };
    for (key, ids) in committed.iter() {
        let delivered = sequences.get(key.as_str()).into_iter().flatten().map(|(_, id)| *id).collect();
        assert_eq!(without(delivered), without(ids.clone()), "{key}");
    }
    assert!(sequences.keys().all(|key| committed.contains_key(*key)));
    assert!(!discarded.is_empty() && dropped.len() > 2, "not much of a storm");
    for (relay, again) in &again {
        // Of one that lives too: on a machine that was away for longer than the lease, others have taken its lanes. That nothing comes twice
        // from relays that are in time is shown where nobody dies.
        assert!(*again <= MAX_IN_FLIGHT as usize, "{again} events of relay {relay} came again");
    }
}
