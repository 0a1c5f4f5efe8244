//! A transaction that is held open keeps no dead row alive that anybody walks over.

use std::time::{Duration, Instant};

use sqlx::{Connection as _, PgConnection};

use super::{claim, finish, one, work_off};
use crate::support::{database, run};

const ROUNDS: usize = 40;
const BATCH: i32 = 200;

/// Buffers that one claim touches.
pub async fn cost(connection: &mut PgConnection) -> i64 {
    let lines: Vec<String> = sqlx::query_scalar(
        "explain (analyze, buffers, costs off, timing off) select * from postrider.claim_jobs(most => 1)",
    )
    .fetch_all(connection)
    .await
    .unwrap();
    let line = lines.iter().find(|line| line.contains("Buffers: shared")).unwrap();
    let number = |name: &str| -> i64 {
        let rest = line.split_once(&format!("{name}=")).map_or("0", |(_, rest)| rest);
        rest.split(' ').next().unwrap().parse().unwrap()
    };
    number("hit") + number("read")
}

/// By the tables themselves, not by statistics that come when they like.
async fn dead_rows(connection: &mut PgConnection) -> i64 {
    run(connection, "create extension pgstattuple").await;
    one(
        connection,
        "select coalesce(sum((public.pgstattuple(c.oid)).dead_tuple_count), 0)::bigint from pg_class c
         where c.relnamespace = 'postrider'::regnamespace and c.relname like 'job%' and c.relkind = 'r'",
    )
    .await
}

#[tokio::test]
async fn a_held_xmin_leaves_no_dead_rows_and_makes_no_claim_dearer() {
    let database = database().await;
    let (mut connection, mut holder) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    run(&mut connection, "select postrider.enqueue('a', '{}') from generate_series(1, 300)").await;
    for (number, _, _) in claim(&mut connection, BATCH).await.into_iter().take(1) {
        finish(&mut connection, number).await.unwrap();
    }
    let mut held = holder.begin_with("begin isolation level repeatable read").await.unwrap();
    run(&mut held, "select 1").await;
    let mut before = 0;
    for round in 0..ROUNDS {
        // By then every table of the rings has been in use.
        if round == ROUNDS / 2 {
            before = cost(&mut connection).await;
        }
        run(&mut connection, "select postrider.enqueue('a', '{}') from generate_series(1, 200)").await;
        assert!(!work_off(&mut connection).await.is_empty());
        run(&mut connection, "select postrider.tend_jobs(65536, 8192)").await;
    }
    let after = cost(&mut connection).await;
    assert!(after <= before * 2 + 20, "a claim touched {before} pages, and {after} after {ROUNDS} rounds");
    let dead = dead_rows(&mut connection).await;
    assert_eq!(dead, 0, "{} jobs left so many dead rows", ROUNDS * 200);
    held.rollback().await.unwrap();
}

/// How long is measured and held, and which part of the rate has to be left.
struct Soak {
    window: Duration,
    /// So many are measured before the transaction begins, and at its end.
    windows: usize,
    held: Duration,
    least: f64,
}

impl Soak {
    /// A busy machine says nothing about a tenth in a few seconds: without the soak it is only seen that jobs go on at all.
    fn from_environment() -> Self {
        if std::env::var_os("POSTRIDER_SOAK").is_some() {
            let (window, held) = (Duration::from_secs(10), Duration::from_mins(30));
            Self { window, windows: 18, held, least: 0.9 }
        } else {
            let (window, held) = (Duration::from_millis(100), Duration::from_secs(1));
            Self { window, windows: 5, held, least: 0.05 }
        }
    }

    /// The median of the jobs per second of each window.
    async fn rate(&self, connection: &mut PgConnection) -> f64 {
        let mut rates = Vec::new();
        for _ in 0..self.windows {
            let began = Instant::now();
            let jobs = load(connection, self.window).await;
            rates.push(jobs / began.elapsed().as_secs_f64());
        }
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    }
}

/// Enqueues, claims and finishes for so long, and tends as a worker would; how many jobs.
async fn load(connection: &mut PgConnection, time: Duration) -> f64 {
    let (began, mut jobs) = (Instant::now(), 0_u32);
    while began.elapsed() < time {
        run(connection, "select postrider.enqueue('a', '{}') from generate_series(1, 500)").await;
        jobs += u32::try_from(work_off(connection).await.len()).unwrap();
    }
    while one::<i32>(connection, "select postrider.tend_jobs()").await > 0 {}
    f64::from(jobs)
}

/// Half an hour of it, in a soak: what is kept alive by the held transaction would be walked over by then.
#[tokio::test]
async fn a_transaction_that_is_held_under_load_does_not_slow_jobs_down() {
    let database = database().await;
    let (mut connection, mut holder) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    let soak = Soak::from_environment();
    // Or the results alone would fill the disk.
    run(&mut connection, "select postrider.set_queue('default', keep_results => '1 minute')").await;
    load(&mut connection, soak.window).await;
    let before = soak.rate(&mut connection).await;
    let mut held = holder.begin_with("begin isolation level repeatable read").await.unwrap();
    run(&mut held, "select 1").await;
    let began = Instant::now();
    while began.elapsed() < soak.held {
        load(&mut connection, soak.window).await;
    }
    // What is walked over slows every window, a machine that stands still only some of them: measured again, it is gone.
    let mut after = soak.rate(&mut connection).await;
    for _ in 0..2 {
        if after < before * soak.least {
            after = soak.rate(&mut connection).await;
        }
    }
    let dead = dead_rows(&mut connection).await;
    held.rollback().await.unwrap();
    println!("{before:.0} jobs/s before, {after:.0} after {:?}, {dead} dead rows", soak.held);
    assert!(after >= before * soak.least, "{before:.0} jobs/s before, {after:.0} after, {dead} dead rows");
}
