//! Keeps the sum of all orders, exactly: `subscription DATABASE_URL`, ended by closing its standard input.

use postrider::consume::{BoxError, Message, Outcome, Subscription, Tx};
use postrider::log::Start;
use sqlx::PgPool;
use tokio::io::AsyncReadExt as _;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = std::env::args().nth(1).ok_or("usage: subscription DATABASE_URL")?;
    let pool = PgPool::connect(&url).await?;
    let stop = async { drop(tokio::io::stdin().read_u8().await) };

    let totals = Subscription::new(pool, "totals").start(Start::Earliest).workers(2);
    totals
        .run(stop, async |tx: &mut Tx, event: &Message| {
            let order: Order = event.json()?;
            sqlx::query("update totals set orders = orders + 1, amount = amount + $1")
                .bind(order.amount)
                .execute(&mut **tx)
                .await?;
            Ok::<_, BoxError>(Outcome::Done)
        })
        .await?;
    Ok(())
}

#[derive(serde::Deserialize)]
struct Order {
    amount: i64,
}
