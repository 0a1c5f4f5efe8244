//! Random refusals, retries, discards, relays that die, and two of them at work: per key what is delivered is what was committed, minus
//! what was discarded.

mod judge;
mod operator;
mod sink;

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use postrider_relay::{Relay, Retry, SinkSettings};
use postrider_testkit::{Database, Seed};
use rand::RngExt as _;
use uuid::Uuid;

use self::sink::{StormSink, Taken};
use crate::support::{database, settings, sink};

const KEYS: u32 = 200;
const MAX_IN_FLIGHT: u32 = 200;

/// What everybody in a storm knows.
struct Storm {
    database: Database,
    seed: Seed,
    /// By key, in order.
    committed: Mutex<BTreeMap<String, Vec<Uuid>>>,
    /// By an operator who did not ask whether they were on their way just then.
    discarded: Mutex<HashSet<Uuid>>,
    taken: Mutex<Vec<Taken>>,
    /// How often each event was shown to the sink.
    shown: Mutex<BTreeMap<Uuid, u32>>,
    /// From here on the sink takes everything.
    calm: AtomicBool,
    /// Nobody writes any more.
    written: AtomicBool,
    dropped: Mutex<HashSet<u32>>,
    next_relay: AtomicU32,
}

impl Storm {
    fn relay(self: &Arc<Self>) -> (u32, Relay) {
        let number = self.next_relay.fetch_add(1, Ordering::Relaxed);
        let retry = Retry {
            max_attempts: 4,
            first: Duration::from_millis(5),
            factor: 2.0,
            max: Duration::from_millis(100),
        };
        let sink = SinkSettings {
            retry,
            max_in_flight: MAX_IN_FLIGHT,
            ..sink("storm", StormSink::target(Arc::clone(self), number))
        };
        let mut settings = settings(&self.database, vec![sink]);
        settings.name = format!("relay {number}");
        // Whoever lives must not lose its lanes to a machine that was away for a second.
        settings.log.lease = Duration::from_secs(2);
        (number, Relay::start(settings).unwrap())
    }

    fn commit(&self, events: impl Iterator<Item = (String, Uuid)>) {
        let mut committed = self.committed.lock().unwrap();
        events.for_each(|(key, id)| committed.entry(key).or_default().push(id));
    }

    fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
    }
}

async fn storm(lasts: Duration) {
    let storm = Arc::new(Storm {
        database: database().await,
        seed: Seed::from_env_or_random("parking storm"),
        committed: Mutex::default(),
        discarded: Mutex::default(),
        taken: Mutex::default(),
        shown: Mutex::default(),
        calm: AtomicBool::new(false),
        written: AtomicBool::new(false),
        dropped: Mutex::default(),
        next_relay: AtomicU32::new(1),
    });
    let writing = tokio::spawn(write(Arc::clone(&storm)));
    let operating = tokio::spawn(operator::work(Arc::clone(&storm)));
    let relays = live_and_die(&storm, lasts).await;
    storm.written.store(true, Ordering::Relaxed);
    writing.await.unwrap();
    storm.calm.store(true, Ordering::Relaxed);
    operating.await.unwrap();
    judge::wait_until_all_is_settled(&storm).await;
    for (_, relay) in relays {
        relay.stop().await;
    }
    judge::judge(&storm);
}

/// Two relays, one of which is dropped now and then, which is like a crash.
async fn live_and_die(storm: &Arc<Storm>, lasts: Duration) -> [(u32, Relay); 2] {
    let mut rng = storm.seed.for_task(1).rng();
    let begun = Instant::now();
    let mut relays = [storm.relay(), storm.relay()];
    while begun.elapsed() < lasts {
        tokio::time::sleep(Duration::from_millis(rng.random_range(200..2000))).await;
        let seat = rng.random_range(0..2);
        storm.dropped.lock().unwrap().insert(relays[seat].0);
        relays[seat] = storm.relay();
    }
    relays
}

/// Transactions of some events each; one in twenty is taken back.
async fn write(storm: Arc<Storm>) {
    let mut rng = storm.seed.for_task(2).rng();
    let mut connection = storm.database.connect().await.unwrap();
    let mut numbers: BTreeMap<String, i64> = BTreeMap::new();
    while !storm.written.load(Ordering::Relaxed) {
        let keys: Vec<String> = (0..10).map(|_| format!("key-{}", rng.random_range(0..KEYS))).collect();
        let mut numbered = numbers.clone();
        let ns: Vec<i64> = keys
            .iter()
            .map(|key| {
                let n = numbered.entry(key.clone()).or_default();
                *n += 1;
                *n
            })
            .collect();
        sqlx::raw_sql("begin").execute(&mut connection).await.unwrap();
        let ids: Vec<Uuid> = sqlx::query_scalar(
            "select postrider.emit('storm', json_build_object('n', e.n), key => e.key)
             from unnest($1::text[], $2::bigint[]) with ordinality as e (key, n, place) order by e.place",
        )
        .bind(&keys)
        .bind(&ns)
        .fetch_all(&mut connection)
        .await
        .unwrap();
        if rng.random_bool(0.05) {
            sqlx::raw_sql("rollback").execute(&mut connection).await.unwrap();
            continue;
        }
        sqlx::raw_sql("commit").execute(&mut connection).await.unwrap();
        numbers = numbered;
        storm.commit(keys.into_iter().zip(ids));
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..20))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn per_key_what_is_delivered_is_what_was_committed_minus_what_was_discarded() {
    let seconds = if std::env::var_os("POSTRIDER_SOAK").is_some() { 300 } else { 10 };
    storm(Duration::from_secs(seconds)).await;
}
