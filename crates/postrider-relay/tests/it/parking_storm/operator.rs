//! Somebody at the console, as quick as they are careless.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use super::Storm;

/// Retries and discards at random until the storm is calm, then retries everything that is dead.
pub async fn work(storm: Arc<Storm>) {
    let mut rng = storm.seed.for_task(3).rng();
    let mut connection = storm.database.connect().await.unwrap();
    while !storm.is_calm() {
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..30))).await;
        if rng.random_bool(0.6) {
            discard(&storm, &mut connection, rng.random_range(1..5)).await;
        } else {
            retry(&mut connection, rng.random_range(1..10)).await;
        }
    }
    retry(&mut connection, i64::MAX).await;
}

/// Whoever touches parked events of a sink does it alone, as the relay does.
async fn lock(connection: &mut PgConnection) {
    sqlx::query("select from postrider.sinks where name = 'storm' for no key update")
        .execute(connection)
        .await
        .unwrap();
}

/// Discards some events, whatever their state, and lets the next of their keys go.
async fn discard(storm: &Storm, connection: &mut PgConnection, count: i64) {
    let mut transaction = connection.begin().await.unwrap();
    lock(&mut transaction).await;
    let gone: Vec<(Uuid, String)> = sqlx::query_as(
        "delete from postrider.parked p
         using (select place from postrider.parked order by md5(id::text || clock_timestamp()) limit $1) chosen
         where p.place = chosen.place returning p.id, p.key",
    )
    .bind(count)
    .fetch_all(&mut *transaction)
    .await
    .unwrap();
    let keys: Vec<&str> = gone.iter().map(|(_, key)| key.as_str()).collect();
    sqlx::query(
        "update postrider.parked p set state = 'waiting', next_attempt_at = clock_timestamp()
         from unnest($1::text[]) as k (key)
         cross join lateral (select h.place from postrider.parked h where h.sink = p.sink and h.key = k.key order by h.place limit 1) head
         where p.place = head.place and p.state = 'behind'",
    )
    .bind(keys)
    .execute(&mut *transaction)
    .await
    .unwrap();
    // Before it commits: nobody may deliver without our knowing what was discarded.
    storm.discarded.lock().unwrap().extend(gone.into_iter().map(|(id, _)| id));
    transaction.commit().await.unwrap();
}

/// Has some of the dead, and of those that wait for their time, tried at once.
async fn retry(connection: &mut PgConnection, count: i64) {
    let mut transaction = connection.begin().await.unwrap();
    lock(&mut transaction).await;
    sqlx::query(
        "update postrider.parked p set state = 'waiting', attempts = 0, next_attempt_at = clock_timestamp()
         from (select place from postrider.parked where state <> 'behind' order by md5(id::text || clock_timestamp()) limit $1) chosen
         where p.place = chosen.place",
    )
    .bind(count)
    .execute(&mut *transaction)
    .await
    .unwrap();
    transaction.commit().await.unwrap();
}
