//! Keeps the sum of all orders, exactly: `subscription DATABASE_URL`, until Ctrl-C.

use postrider::consume::{BoxError, Message, Outcome, Subscription, Tx};
use postrider::log::Start;
use sqlx::PgPool;

#[derive(serde::Deserialize)]
struct Order {
    amount: i64,
}

/// Each event once, whatever dies: the sum and the cursor are in one transaction.
pub async fn keep_totals(pool: PgPool, stop: impl Future<Output = ()>) -> Result<(), BoxError> {
    let totals = Subscription::new(pool, "totals").start(Start::Earliest).workers(2);
    let handler = async |tx: &mut Tx, event: &Message| {
        let order: Order = event.json()?;
        sqlx::query("update totals set orders = orders + 1, amount = amount + $1")
            .bind(order.amount)
            .execute(&mut **tx)
            .await?;
        Ok::<_, BoxError>(Outcome::Done)
    };
    totals.run(stop, handler).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::args().nth(1).ok_or("usage: subscription DATABASE_URL")?;
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    keep_totals(PgPool::connect(&url).await?, stop).await
}
