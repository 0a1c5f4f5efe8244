//! What must be true when a storm is over.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use sqlx::PgConnection;
use uuid::Uuid;

use super::{MAX_IN_FLIGHT, Storm};
use crate::support::PATIENCE;

/// Waits until nothing is parked and every event is delivered or discarded, for as long as it goes on.
pub async fn wait_until_all_is_settled(storm: &Storm) {
    let mut connection = storm.database.connect().await.unwrap();
    let (mut least, mut since) = ((i64::MAX, usize::MAX), Instant::now());
    loop {
        let parked: i64 = sqlx::query_scalar("select count(*) from postrider.parked")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        let left = (parked, open(storm));
        if left == (0, 0) {
            return;
        }
        if left < least {
            (least, since) = (left, Instant::now());
        }
        if since.elapsed() > PATIENCE {
            let (parked, open) = left;
            panic!(
                "{parked} are parked, {open} neither delivered nor discarded\n{}",
                scene(&mut connection).await
            );
        }
        super::operator::retry_the_dead(&mut connection).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// How many are neither delivered nor discarded.
fn open(storm: &Storm) -> usize {
    let taken = storm.taken.lock().unwrap();
    let discarded = storm.discarded.lock().unwrap();
    let settled: HashSet<Uuid> =
        taken.iter().map(|taken| taken.id).chain(discarded.iter().copied()).collect();
    storm.committed.lock().unwrap().values().flatten().filter(|id| !settled.contains(id)).count()
}

/// What the database knows of a storm that stands still: what is parked, who holds the lanes, what each session waits for.
async fn scene(connection: &mut PgConnection) -> String {
    let facts: Vec<String> = sqlx::query_scalar(
        "select format('parked: %s %s, of them due: %s', count(*), state, count(*) filter (where next_attempt_at <= clock_timestamp()))
         from postrider.parked group by state
         union all
         select format('lane %s: epoch %s of %s (%s), expires in %s', l.lane, l.epoch, r.name, l.owner, r.expires_at - clock_timestamp())
         from postrider.leases l left join postrider.readers r on r.reader = l.owner
         union all
         select format('relay %s: %s %s, lanes %s', relay, state, trouble, lanes) from postrider.relays
         union all
         select format('session %s: %s %s %s, in its transaction for %s, blocked by %s: %s', pid, state, wait_event_type, wait_event,
                       clock_timestamp() - xact_start, pg_blocking_pids(pid), left(regexp_replace(query, '\\s+', ' ', 'g'), 120))
         from pg_stat_activity where datname = current_database()",
    )
    .fetch_all(connection)
    .await
    .unwrap();
    facts.join("\n")
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
