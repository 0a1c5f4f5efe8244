//! Fault 109: workers that die, hang or outlive their lease. The ledger of effects is exact whatever happens.

use std::time::{Duration, Instant};

use postrider_testkit::{Database, Signal};
use sqlx::PgConnection;

use super::process::{Orders, Point, WorkerProcess};
use super::{one, until};
use crate::support::{PATIENCE, database, run};

const LEASE: Duration = Duration::from_secs(1);
const JOBS: i64 = 3000;
/// Of each point.
const HITS: i64 = 20;

fn orders(database: &Database, name: &str) -> Orders {
    Orders { name: name.to_owned(), database: database.url(), lease: LEASE, dies: None, cron: None }
}

async fn prepared() -> (Database, PgConnection) {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(
        &mut connection,
        "create table effects (job bigint, n bigint); create table hits (point text); create table gate (open boolean);
         select postrider.set_queue('default', lease => '1 second')",
    )
    .await;
    (database, connection)
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_109_killed_at_every_point_the_ledger_is_exact() {
    let (database, mut connection) = prepared().await;
    let soak = if std::env::var_os("POSTRIDER_SOAK").is_some() { 20 } else { 1 };
    sqlx::query(
        "select postrider.enqueue('effect', to_json(n), max_attempts => 1000) from generate_series(1, $1) n",
    )
    .bind(JOBS * soak)
    .execute(&mut connection)
    .await
    .unwrap();
    let points = [Point::BeforeEffect, Point::AfterEffect, Point::AfterCommit];
    let begin = Instant::now();
    let mut workers: Vec<(Point, WorkerProcess)> = Vec::new();
    loop {
        let hits: Vec<(String, i64)> = sqlx::query_as("select point, count(*) from hits group by point")
            .fetch_all(&mut connection)
            .await
            .unwrap();
        let count =
            |point: Point| hits.iter().find(|hit| hit.0 == format!("{point:?}")).map_or(0, |hit| hit.1);
        if points.iter().all(|point| count(*point) >= HITS * soak) {
            break;
        }
        workers.retain_mut(|(_, worker)| !worker.is_gone());
        for point in points {
            if !workers.iter().any(|(other, _)| *other == point) && count(point) < HITS * soak {
                let dies = Orders { dies: Some(point), ..orders(&database, &format!("{point:?}")) };
                workers.push((point, WorkerProcess::start(&dies)));
            }
        }
        assert!(begin.elapsed() < PATIENCE * 20, "the points are not reached: {hits:?}");
        // There is always something to die of.
        run(
            &mut connection,
            "select postrider.enqueue('effect', '0', max_attempts => 1000) from generate_series(1, 5)",
        )
        .await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(workers);
    let survivor = WorkerProcess::start(&orders(&database, "survivor"));
    until(
        &mut connection,
        "select count(distinct job) = (select last_value from postrider.job_id) from effects",
    )
    .await;
    until(&mut connection, "select count(*) = 0 from postrider.list_running_jobs()").await;
    drop(survivor);
    let (effects, jobs, sum): (i64, i64, i64) =
        sqlx::query_as("select count(*), count(distinct job), sum(n)::bigint from effects")
            .fetch_one(&mut connection)
            .await
            .unwrap();
    let all = JOBS * soak;
    assert_eq!((effects, sum), (jobs, all * (all + 1) / 2), "an effect twice, or none");
    assert_eq!(one::<i64>(&mut connection, "select count(*) from postrider.job_waiting").await, 0);
}

/// Frozen in the middle of a job until another has taken it over, and then awake again.
#[tokio::test(flavor = "multi_thread")]
async fn fault_109_a_worker_that_outlives_its_lease_is_refused() {
    let (database, mut connection) = prepared().await;
    run(&mut connection, "select postrider.enqueue('hang', '{}')").await;
    let frozen = WorkerProcess::start(&orders(&database, "frozen"));
    until(
        &mut connection,
        "select count(*) = 1 from postrider.list_running_jobs() where worker_name = 'frozen'",
    )
    .await;
    frozen.signal(Signal::STOP);
    let begin = Instant::now();
    let heir = WorkerProcess::start(&orders(&database, "heir"));
    until(
        &mut connection,
        "select count(*) = 1 from postrider.list_running_jobs() where worker_name = 'heir'",
    )
    .await;
    let taken_over = begin.elapsed();
    run(&mut connection, "insert into gate values (true)").await;
    frozen.signal(Signal::CONT);
    until(&mut connection, "select count(*) = 1 from postrider.job_results").await;
    // The frozen one works again: it does the next job, after it has brought its late result.
    heir.kill();
    run(&mut connection, "select postrider.enqueue('effect', '7')").await;
    until(&mut connection, "select count(*) = 2 from postrider.job_results").await;
    let effects: Vec<(i64, i64)> =
        sqlx::query_as("select job, count(*) from effects group by job order by job")
            .fetch_all(&mut connection)
            .await
            .unwrap();
    assert_eq!(effects, [(1, 1), (2, 1)]);
    let attempt: i16 = one(&mut connection, "select attempt from postrider.job_results where id = 1").await;
    assert!(attempt >= 2, "{attempt}");
    println!("taken over after {taken_over:?}, with a lease of {LEASE:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_109_a_killed_worker_is_missed_within_its_lease() {
    let (database, mut connection) = prepared().await;
    run(&mut connection, "insert into gate values (true)").await;
    let heir = WorkerProcess::start(&orders(&database, "heir"));
    until(&mut connection, "select count(*) = 1 from postrider.job_workers where name = 'heir'").await;
    for _ in 0..3 {
        run(&mut connection, "select postrider.pause_queue('default'); truncate gate; truncate effects")
            .await;
        let victim = WorkerProcess::start(&orders(&database, "victim"));
        until(&mut connection, "select count(*) = 1 from postrider.job_workers where name = 'victim' and expires_at > clock_timestamp()").await;
        run(&mut connection, "select postrider.enqueue('hang', '{}') from generate_series(1, 8); select postrider.pause_queue('default', false)").await;
        until(&mut connection, "select count(*) = 8 from postrider.list_running_jobs()").await;
        victim.kill();
        run(&mut connection, "insert into gate values (true)").await;
        until(&mut connection, "select count(*) = 8 and count(distinct job) = 8 from effects").await;
        run(&mut connection, "delete from postrider.job_workers where name = 'victim'").await;
    }
    drop(heir);
}
