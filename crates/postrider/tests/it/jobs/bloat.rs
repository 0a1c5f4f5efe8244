//! A transaction that is held open keeps no dead row alive that anybody walks over.

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
    // By the table itself, not by statistics that come when they like.
    run(&mut connection, "create extension pgstattuple").await;
    let dead: i64 = one(
        &mut connection,
        "select coalesce(sum((public.pgstattuple(c.oid)).dead_tuple_count), 0)::bigint from pg_class c
         where c.relnamespace = 'postrider'::regnamespace and c.relname like 'job%' and c.relkind = 'r'",
    )
    .await;
    assert_eq!(dead, 0, "{} jobs left so many dead rows", ROUNDS * 200);
    held.rollback().await.unwrap();
}
