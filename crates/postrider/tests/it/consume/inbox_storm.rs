//! Many ask for the same ids at the same time, in all isolation levels, while the ring turns as fast as it can.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use postrider::inbox;
use postrider_testkit::{Database, Seed};
use rand::RngExt as _;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::support::{database, run};

const WORKERS: u64 = 6;

/// The ring has to turn so often, however many ids that takes: it waits for transactions of the whole server, and other tests hold some.
const TURNS: u32 = 5;

struct Storm {
    database: Database,
    /// At least so many.
    ids: u32,
    /// How many it has become; known to everybody before the last of them is done.
    end: AtomicU32,
    turns: AtomicU32,
    barrier: Barrier,
}

async fn ask(storm: Arc<Storm>, seed: Seed, leads: bool) {
    let mut rng = seed.rng();
    let mut connection = storm.database.connect().await.unwrap();
    for number in 0.. {
        let id = format!("id {number}");
        loop {
            let begin = match rng.random_range(0..5) {
                0 => "begin isolation level repeatable read; select count(*) from ledger",
                1 => "begin isolation level serializable",
                _ => "begin",
            };
            run(&mut connection, begin).await;
            match inbox::first_time(&mut connection, "storm", &id).await {
                Ok(is_first) => {
                    if is_first {
                        sqlx::query("insert into ledger (id) values ($1)")
                            .bind(&id)
                            .execute(&mut connection)
                            .await
                            .unwrap();
                    }
                    let is_back = rng.random_bool(0.2);
                    let end = if is_back { "rollback" } else { "commit" };
                    match sqlx::raw_sql(end).execute(&mut connection).await {
                        // Somebody has to have it.
                        Ok(_) if is_back && is_first => {}
                        Ok(_) => break,
                        Err(error) => assert!(postrider::log::Error::from(error).is_transient()),
                    }
                }
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
            let _ = sqlx::raw_sql("rollback").execute(&mut connection).await;
        }
        if leads && number + 1 >= storm.ids && storm.turns.load(Ordering::Relaxed) >= TURNS {
            let _ = storm.end.compare_exchange(u32::MAX, number + 1, Ordering::SeqCst, Ordering::SeqCst);
        }
        // Together at the next id: the ring forgets within a fifth of a second here.
        if rng.random_bool(0.1) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        storm.barrier.wait().await;
        if number + 1 >= storm.end.load(Ordering::SeqCst) {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_has_an_id_twice_while_the_ring_turns() {
    let ids = if std::env::var_os("POSTRIDER_SOAK").is_some() { 20_000 } else { 400 };
    let seed = Seed::from_env_or_random("inbox storm");
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    run(
        &mut admin,
        "create table ledger (id text, at timestamptz default clock_timestamp());
         update postrider.inbox_ring set retention = '200 ms'",
    )
    .await;
    let (end, turns) = (AtomicU32::new(u32::MAX), AtomicU32::new(0));
    let barrier = Barrier::new(usize::try_from(WORKERS).unwrap());
    let storm = Arc::new(Storm { database, ids, end, turns, barrier });
    let turning = tokio::spawn({
        let storm = Arc::clone(&storm);
        async move {
            let mut connection = storm.database.connect().await.unwrap();
            while storm.end.load(Ordering::SeqCst) == u32::MAX {
                if inbox::turn(&mut connection, None).await.is_ok_and(|step| step == "turned") {
                    storm.turns.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    });
    let workers: JoinSet<()> =
        (0..WORKERS).map(|number| ask(Arc::clone(&storm), seed.for_task(number), number == 0)).collect();
    workers.join_all().await;
    turning.await.unwrap();
    let (had, twice): (i64, i64) = sqlx::query_as(
        "select (select count(distinct id) from ledger),
                (select count(*) from ledger x join ledger y on x.id = y.id and x.ctid <> y.ctid and y.at between x.at and x.at + interval '200 ms')",
    )
    .fetch_one(&mut admin)
    .await
    .unwrap();
    let (ids, turns) = (storm.end.load(Ordering::SeqCst), storm.turns.load(Ordering::Relaxed));
    println!("{ids} ids, {WORKERS} at once, the ring turned {turns} times, true twice: {twice}");
    assert_eq!((had, twice), (i64::from(ids), 0));
}
