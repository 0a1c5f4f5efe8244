//! Transactions of every awkward shape.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, RngExt};
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use super::{KEYS, Storm, WRITERS};

/// A counter per key whose row lock orders the transactions of that key; long transactions have keys of their own.
pub(super) async fn prepare(storm: &Storm) {
    let mut connection = storm.database.connect().await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(format!(
        "create table counters (key text primary key, n bigint not null);
         insert into counters select 'key-' || n, 0 from generate_series(0, {KEYS} - 1) n;
         insert into counters select 'long-' || n, 0 from generate_series(0, {WRITERS} - 1) n;"
    )))
    .execute(&mut connection)
    .await
    .unwrap();
}

pub(super) async fn write(storm: Arc<Storm>, number: u64) {
    let mut rng = storm.seed.for_task(number).rng();
    let mut connection = storm.database.connect().await.unwrap();
    sqlx::raw_sql("set deadlock_timeout = '100ms'").execute(&mut connection).await.unwrap();
    let mut transactions = 0_u64;
    while storm.ledger.committed() < storm.goal {
        transactions += 1;
        let name = format!("w{number}-{transactions}");
        let mut written = Vec::new();
        match transaction(&storm, &mut connection, &mut rng, number, &name, &mut written).await {
            Ok(true) => written.iter().for_each(|id| storm.ledger.commit(*id)),
            Ok(false) => {}
            Err(error) => {
                let code = error
                    .as_database_error()
                    .and_then(sqlx::error::DatabaseError::code)
                    .unwrap_or_default()
                    .into_owned();
                // Serialization failures and deadlocks are what some of them are for.
                assert!(["40001", "40P01"].contains(&code.as_str()), "{error}");
                sqlx::raw_sql("rollback").execute(&mut connection).await.unwrap();
            }
        }
    }
}

/// One transaction; answers whether it committed.
async fn transaction(
    storm: &Storm,
    connection: &mut PgConnection,
    rng: &mut StdRng,
    number: u64,
    name: &str,
    written: &mut Vec<Uuid>,
) -> Result<bool, sqlx::Error> {
    let isolation =
        ["read committed", "read committed", "repeatable read", "serializable"][rng.random_range(0..4)];
    run(connection, format!("begin isolation level {isolation}")).await?;
    if rng.random_bool(0.3) {
        run(connection, "set local synchronous_commit = off".to_owned()).await?;
    }
    if rng.random_bool(0.4) {
        run(connection, "select pg_current_xact_id()".to_owned()).await?;
        pause(rng, 5).await;
    }
    let long = rng.random_bool(0.004);
    if long || rng.random_bool(0.07) {
        // A bulk of one statement: many rows under one xid, late for everybody who looks meanwhile.
        let key = format!("long-{number}");
        emit(storm, connection, &[key], rng.random_range(50..400), written).await?;
        if long {
            tokio::time::sleep(Duration::from_millis(1500)).await;
        }
    }
    // Sorted, so that deadlocks stay rare.
    let mut keys: Vec<u32> = (0..rng.random_range(1..6)).map(|_| rng.next_u32() % KEYS).collect();
    keys.sort_unstable();
    let keys: Vec<String> = keys.into_iter().map(|key| format!("key-{key}")).collect();
    emit(storm, connection, &keys, 1, written).await?;
    match rng.random_range(0..10) {
        0 => {
            run(connection, "savepoint a".to_owned()).await?;
            emit(storm, connection, &keys, 2, &mut Vec::new()).await?;
            run(connection, "rollback to savepoint a".to_owned()).await?;
            emit(storm, connection, &keys, 1, written).await?;
        }
        1 => {
            run(connection, "savepoint a".to_owned()).await?;
            emit(storm, connection, &keys, 1, written).await?;
            run(connection, "release savepoint a".to_owned()).await?;
        }
        2 => {
            // A PL exception block takes its events back.
            run(connection, "do $$ begin perform postrider.emit('taken.back', '{}'); raise 'no'; exception when others then null; end $$".to_owned())
                .await?;
        }
        3 => pause(rng, 30).await,
        _ => {}
    }
    finish(connection, rng, name).await
}

async fn finish(connection: &mut PgConnection, rng: &mut StdRng, name: &str) -> Result<bool, sqlx::Error> {
    let commits = rng.random_bool(0.85);
    if rng.random_bool(0.05) {
        run(connection, format!("prepare transaction '{name}'")).await?;
        pause(rng, 50).await;
        run(connection, format!("{} prepared '{name}'", if commits { "commit" } else { "rollback" })).await?;
    } else {
        run(connection, (if commits { "commit" } else { "rollback" }).to_owned()).await?;
    }
    Ok(commits)
}

/// Numbers and emits `times` events for each key, under the lock of the key's row.
async fn emit(
    storm: &Storm,
    connection: &mut PgConnection,
    keys: &[String],
    times: i32,
    written: &mut Vec<Uuid>,
) -> Result<(), sqlx::Error> {
    for key in keys {
        let rows: Vec<(Uuid, i64)> = sqlx::query_as(
            "with counted as (update counters set n = n + $2 where key = $1 returning n)
             select postrider.emit('storm', json_build_object('n', m), key => $1), m
             from counted, generate_series(n - $2 + 1, n) m order by m",
        )
        .bind(key)
        .bind(times)
        .fetch_all(&mut *connection)
        .await?;
        for (id, n) in rows {
            storm.ledger.attempt(id, key, n.unsigned_abs());
            written.push(id);
        }
    }
    Ok(())
}

async fn run(connection: &mut PgConnection, statement: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await?;
    Ok(())
}

async fn pause(rng: &mut StdRng, up_to_ms: u64) {
    tokio::time::sleep(Duration::from_millis(rng.random_range(0..=up_to_ms))).await;
}
