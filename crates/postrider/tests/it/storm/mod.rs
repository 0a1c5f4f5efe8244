//! Many adversarial writers, readers that page small and large and die at random, and a ring that turns under them.

mod readers;
mod writers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use postrider::log::ring::{self, Retention, Turn};
use postrider_testkit::{Database, Ledger, Receipts, Seed, Version};
use tokio::task::JoinSet;

use crate::support::{PATIENCE, database_with_prepared_transactions, open, reading};

const WRITERS: u64 = 24;
const KEYS: u32 = 200;

/// What all tasks of a storm share.
struct Storm {
    database: Database,
    ledger: Ledger,
    /// Stop writing from here on.
    goal: usize,
    seed: Seed,
    quiet: AtomicBool,
    turns: AtomicUsize,
    deaths: AtomicUsize,
    /// Records that were in the hands of readers when they died.
    allowed_twice: AtomicUsize,
}

impl Storm {
    fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed)
    }
}

async fn storm(version: Version, goal: usize) {
    let goal = goal * if std::env::var_os("POSTRIDER_SOAK").is_some() { 20 } else { 1 };
    let database = database_with_prepared_transactions(version).await;
    let seed = Seed::from_env_or_random(&format!("storm on {version:?}"));
    let storm = Arc::new(Storm {
        database,
        ledger: Ledger::new(),
        goal,
        seed,
        quiet: AtomicBool::new(false),
        turns: AtomicUsize::new(0),
        deaths: AtomicUsize::new(0),
        allowed_twice: AtomicUsize::new(0),
    });
    writers::prepare(&storm).await;
    // The sinks exist before the first event.
    for sink in ["mortal", "steady"] {
        open(&storm.database, reading(sink)).await.close().await.unwrap();
    }
    let (mortal, steady) = (Arc::new(Receipts::new()), Arc::new(Receipts::new()));

    let mut readers = JoinSet::new();
    for number in 0..readers::PAGES.len() {
        let number = u32::try_from(number).unwrap();
        readers.spawn(readers::mortal(Arc::clone(&storm), Arc::clone(&mortal), number));
    }
    readers.spawn(readers::steady(Arc::clone(&storm), Arc::clone(&steady)));
    let mut rotators = JoinSet::new();
    for _ in 0..2 {
        rotators.spawn(rotate(Arc::clone(&storm)));
    }

    let mut writers = JoinSet::new();
    for number in 0..WRITERS {
        writers.spawn(writers::write(Arc::clone(&storm), number));
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
    let committed = storm.ledger.committed();
    let is_done = || {
        storm.turns.load(Ordering::Relaxed) > 8
            && [&mortal, &steady]
                .iter()
                .all(|receipts| receipts.len() >= committed && storm.ledger.check(receipts).lost.count == 0)
    };
    // As long as something comes, however slowly.
    let (mut came, mut at) = (0, Instant::now());
    let in_time = loop {
        if is_done() {
            break true;
        }
        let now = mortal.len() + steady.len();
        if now > came {
            (came, at) = (now, Instant::now());
        }
        if at.elapsed() > PATIENCE {
            break false;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    storm.quiet.store(true, Ordering::Relaxed);
    while let Some(done) = readers.join_next().await {
        done.unwrap();
    }
    while let Some(done) = rotators.join_next().await {
        done.unwrap();
    }

    let (turns, deaths) = (storm.turns.load(Ordering::Relaxed), storm.deaths.load(Ordering::Relaxed));
    let allowed = storm.allowed_twice.load(Ordering::Relaxed);
    for (sink, receipts, allowed) in [("mortal", &mortal, allowed), ("steady", &steady, 0)] {
        let report = storm.ledger.check(receipts);
        println!(
            "{version:?} {sink}: {report}; allowed twice {allowed}, ring turned {turns} times, {deaths} deaths"
        );
        assert!(report.is_faithful(), "{sink}: {report}");
        assert!(report.duplicated.count <= allowed, "{sink}: {report}, allowed {allowed}");
    }
    assert!(in_time, "not everything was delivered in time");
    assert!(committed >= goal, "only {committed} committed");
    assert!(turns > 8, "the ring turned only {turns} times");
    assert!(deaths > 3, "only {deaths} readers died");
}

/// Turns both rings as fast as they can be turned.
async fn rotate(storm: Arc<Storm>) {
    let mut connection = storm.database.connect().await.unwrap();
    let at_once = Retention { keep: Duration::ZERO, max_slot_bytes: None, max_log_bytes: None };
    while !storm.is_quiet() {
        match ring::turn(&mut connection, at_once).await {
            Ok(Turn::To(_)) => {
                storm.turns.fetch_add(1, Ordering::Relaxed);
            }
            Ok(_) => {}
            // Two rotators: one of them may wait for the other longer than a lock may take.
            Err(error) if error.is_transient() => {}
            Err(error) => panic!("{error}"),
        }
        match ring::turn_progress_beyond(&mut connection, 200).await {
            Ok(_) => {}
            Err(error) if error.is_transient() => {}
            Err(error) => panic!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storm_on_14() {
    storm(Version::V14, 30_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storm_on_15() {
    storm(Version::V15, 200_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storm_on_16() {
    storm(Version::V16, 30_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storm_on_17() {
    storm(Version::V17, 30_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storm_on_18() {
    storm(Version::V18, 30_000).await;
}
