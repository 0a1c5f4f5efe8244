//! Consumers behind brokers: every broker through the same questions, against the real server.

mod again;
mod child;
mod contract;
mod examples;
mod far;
mod fatal;
mod kafka;
mod nats;
mod poison;
mod rabbitmq;
mod redis;
mod refusing;
mod storm;

use std::time::{Duration, Instant};

use postrider_testkit::Database;
use sqlx::PgPool;

use crate::support::{PATIENCE, database};
use far::Letter;

/// What every handler here does: a line in the ledger for each event, as often as it has an effect.
const LEDGER: &str = "create table ledger (
    place bigint generated always as identity, event_id text not null, key text, amount bigint not null)";

const WRITE: &str = "insert into ledger (event_id, key, amount) values ($1, $2, $3)";

#[derive(Debug, serde::Deserialize)]
struct Payment {
    amount: i64,
}

async fn ledger() -> (Database, PgPool) {
    let database = database().await;
    let pool = database.pool(12).await.unwrap();
    sqlx::raw_sql(LEDGER).execute(&pool).await.unwrap();
    (database, pool)
}

/// Lines, events and sum.
async fn sums(pool: &PgPool) -> (i64, i64, i64) {
    let sums = "select count(*), count(distinct event_id), coalesce(sum(amount), 0)::bigint from ledger";
    sqlx::query_as(sums).fetch_one(pool).await.unwrap()
}

/// Payments of 1, 2, 3, … by so many keys in turn.
fn payments(count: usize, keys: usize) -> Vec<Letter> {
    (1..=count).map(|number| Letter::payment(number, &format!("key-{}", number % keys))).collect()
}

fn expected(count: usize) -> (i64, i64, i64) {
    let count = i64::try_from(count).unwrap();
    (count, count, count * (count + 1) / 2)
}

/// Asks until the answer is yes.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !is_so().await {
        assert!(start.elapsed() < PATIENCE, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn soak() -> usize {
    if std::env::var_os("POSTRIDER_SOAK").is_some() { 20 } else { 1 }
}
