//! Faults 105 and 106: processes that end anywhere, messages that come twice, and to two at once.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use postrider_testkit::Seed;
use rand::RngExt as _;
use rand::seq::SliceRandom as _;
use sqlx::PgPool;

use super::child::{Order, Worker};
use super::far::{Far, prepare, unique};
use super::fatal::POINTS;
use super::{expected, ledger, payments, soak, sums};
use crate::support::PATIENCE;

const EVENTS: usize = 5_000;
/// Of each point, at each broker; over all four brokers at least twenty.
const HITS: usize = 5;
/// Processes at a time.
const WORKERS: usize = 2;

/// Every effect once, whatever ends where.
pub async fn kills<F: Far>(far: &F) {
    let seed = Seed::from_env_or_random(&format!("kills behind {}", far.kind()));
    let mut rng = seed.rng();
    let begun = Instant::now();
    let events = EVENTS * soak();
    let consumer = unique("ledger");
    let (database, pool) = ledger().await;
    prepare(far, &consumer).await;
    // A tenth of them twice, near each other, so that two have the same message at once.
    let mut letters = payments(events, 200);
    for _ in 0..events / 10 {
        let twice = rng.random_range(0..letters.len());
        letters.insert((twice + rng.random_range(1..20)).min(letters.len()), letters[twice].clone());
    }
    far.publish(&letters).await;
    println!("{}: {} messages published after {:.1?}", far.kind(), letters.len(), begun.elapsed());

    let mut ends: Vec<&str> = POINTS.iter().flat_map(|point| [*point].repeat(HITS * soak())).collect();
    ends.shuffle(&mut rng);
    let order = |slot: usize, point: Option<&str>, countdown: i64| Order {
        kind: far.kind().to_owned(),
        url: far.url(),
        consumer: consumer.clone(),
        database: database.url(),
        slot,
        point: point.map(str::to_owned),
        countdown,
        max_attempts: 100,
    };
    let mut hits: BTreeMap<&str, usize> = BTreeMap::new();
    let mut workers: Vec<Option<(&str, Worker)>> = (0..WORKERS).map(|_| None).collect();
    let start = Instant::now();
    loop {
        for (slot, place) in workers.iter_mut().enumerate() {
            if let Some((point, worker)) = place {
                let Some(status) = worker.has_ended() else { continue };
                assert_eq!(status.signal(), Some(9), "a consumer ended by itself: {status}");
                *hits.entry(*point).or_default() += 1;
                *place = None;
            }
            if let Some(point) = ends.pop() {
                let order = order(slot, Some(point), rng.random_range(1..60));
                *place = Some((point, Worker::start(&order)));
            }
        }
        if workers.iter().all(Option::is_none) {
            break;
        }
        assert!(start.elapsed().as_secs() < 300 * soak() as u64, "they do not end: {hits:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    println!("{}: {hits:?} kills after {:.1?}, {:?}", far.kind(), begun.elapsed(), sums(&pool).await);
    assert!(POINTS.iter().all(|point| hits[point] >= HITS), "{hits:?}");
    rest(far, &consumer, (&pool, events), |slot| order(slot, None, 0)).await;
    println!("{}: all done after {:.1?}", far.kind(), begun.elapsed());
    assert_eq!(sums(&pool).await, expected(events), "lines, events, sum");
    assert!(far.dead_letters(&consumer).await.is_empty(), "nothing is wrong with any of them");
    let left: i64 =
        sqlx::query_scalar("select count(*) from postrider.attempts").fetch_one(&pool).await.unwrap();
    assert_eq!(left, 0, "attempts are forgotten with success");
}

/// Two workers that nobody ends, until nothing is left, and so many events are in the ledger: not every server tells what is in hand.
async fn rest<F: Far>(
    far: &F,
    consumer: &str,
    (pool, events): (&PgPool, usize),
    order: impl Fn(usize) -> Order,
) {
    let is_done = async || far.left(consumer).await == 0 && sums(pool).await.1 == expected(events).1;
    loop {
        let workers: Vec<Worker> = (0..WORKERS).map(|slot| Worker::start(&order(slot))).collect();
        let (mut booked, mut at) = (-1, Instant::now());
        while !is_done().await {
            // As long as something comes, however slowly.
            let now = sums(pool).await.1;
            if now > booked {
                (booked, at) = (now, Instant::now());
            }
            assert!(at.elapsed() < PATIENCE, "{booked} of {events} are booked, and no more come");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for worker in workers {
            let status = worker.stop().await;
            assert!(status.success(), "{status}");
        }
        if far.left(consumer).await == 0 {
            return;
        }
    }
}

/// Without the row in the inbox, the same ledger is wrong.
pub async fn without_inbox<F: Far>(far: &F) {
    let consumer = unique("careless");
    let (database, pool) = ledger().await;
    let forget = "create or replace function postrider.first_time(consumer text, event_id text) returns boolean
                  language sql volatile security definer set search_path = pg_catalog, pg_temp as 'select true'";
    sqlx::raw_sql(forget).execute(&pool).await.unwrap();
    prepare(far, &consumer).await;
    let letters = payments(50, 10);
    far.publish(&letters).await;
    far.publish(&letters[..10]).await;
    rest(far, &consumer, (&pool, 50), |slot| Order {
        kind: far.kind().to_owned(),
        url: far.url(),
        consumer: consumer.clone(),
        database: database.url(),
        slot,
        point: None,
        countdown: 0,
        max_attempts: 100,
    })
    .await;
    let (lines, events, _) = sums(&pool).await;
    assert_eq!(events, 50);
    assert!(lines >= 60, "{lines} lines: what came twice was not booked twice, so the ledger proves nothing");
}
