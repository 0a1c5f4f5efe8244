//! Writers that do not care what happens to relays: numbered events per key, some taken back, some committed lazily, some late.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;
use rand::rngs::StdRng;
use sqlx::PgConnection;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::world::World;

const KEYS: u32 = 100;
const WRITERS: u64 = 3;

/// A counter per key whose row lock orders the transactions of that key; long transactions have keys of their own.
pub async fn prepare(connection: &mut PgConnection) {
    sqlx::raw_sql(
        "create table counters (key text primary key, n bigint not null);
         insert into counters select 'key-' || n, 0 from generate_series(0, 99) n;
         insert into counters select 'long-' || n, 0 from generate_series(0, 9) n;",
    )
    .execute(connection)
    .await
    .unwrap();
}

/// Writes until the world is quiet.
pub fn start(world: &Arc<World>) -> JoinSet<()> {
    (0..WRITERS).map(|number| write(Arc::clone(world), number)).collect()
}

async fn write(world: Arc<World>, number: u64) {
    let mut rng = world.seed.for_task(number).rng();
    let mut connection = world.database.connect().await.unwrap();
    while !world.is_quiet() {
        let mut written = Vec::new();
        if transaction(&world, &mut connection, &mut rng, number, &mut written).await.unwrap() {
            world.commit(&written);
        }
        pause(&mut rng, 10).await;
    }
}

/// One transaction; answers whether it committed.
async fn transaction(
    world: &World,
    connection: &mut PgConnection,
    rng: &mut StdRng,
    number: u64,
    written: &mut Vec<Uuid>,
) -> Result<bool, sqlx::Error> {
    run(connection, "begin").await?;
    if rng.random_bool(0.3) {
        run(connection, "set local synchronous_commit = off").await?;
    }
    if rng.random_bool(0.01) {
        // Late for everybody who looks meanwhile.
        emit(world, connection, &format!("long-{number}"), rng.random_range(10..40), written).await?;
        pause(rng, 800).await;
    }
    // Sorted, so that there are no deadlocks.
    let mut keys: Vec<u32> = (0..rng.random_range(1..5)).map(|_| rng.random_range(0..KEYS)).collect();
    keys.sort_unstable();
    for key in keys {
        emit(world, connection, &format!("key-{key}"), 1, written).await?;
    }
    let commits = rng.random_bool(0.9);
    run(connection, if commits { "commit" } else { "rollback" }).await?;
    Ok(commits)
}

/// Numbers and emits some events of a key, under the lock of the key's row.
pub async fn emit(
    world: &World,
    connection: &mut PgConnection,
    key: &str,
    times: i32,
    written: &mut Vec<Uuid>,
) -> Result<(), sqlx::Error> {
    if let Some(adopted) = world.adopted {
        for (id, n) in adopted.insert(connection, key, times).await? {
            world.ledger.attempt(id, &adopted.key(key, id), n.unsigned_abs());
            written.push(id);
        }
        return Ok(());
    }
    let rows: Vec<(Uuid, i64)> = sqlx::query_as(
        "with counted as (update counters set n = n + $2 where key = $1 returning n)
         select postrider.emit('kills', json_build_object('n', m), key => $1), m
         from counted, generate_series(n - $2 + 1, n) m order by m",
    )
    .bind(key)
    .bind(times)
    .fetch_all(connection)
    .await?;
    for (id, n) in rows {
        world.ledger.attempt(id, key, n.unsigned_abs());
        written.push(id);
    }
    Ok(())
}

async fn run(connection: &mut PgConnection, statement: &'static str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(statement).execute(connection).await?;
    Ok(())
}

async fn pause(rng: &mut StdRng, up_to_ms: u64) {
    tokio::time::sleep(Duration::from_millis(rng.random_range(0..=up_to_ms))).await;
}
