//! An order is paid, and everybody will hear of it: `DATABASE_URL=postgres://… cargo run --example emit_sqlx --features sqlx`

use postrider::Event;
use sqlx::PgPool;

#[derive(serde::Serialize)]
struct OrderPaid {
    order: i64,
    cents: i64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let pool = PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    sqlx::query("create table if not exists orders (id bigserial, cents bigint)").execute(&pool).await?;

    let mut tx = pool.begin().await?;
    let insert = "insert into orders (cents) values (1250) returning id, cents";
    let (order, cents) = sqlx::query_as(insert).fetch_one(&mut *tx).await?;
    let id =
        postrider::emit(&mut tx, &Event::new("order.paid", &OrderPaid { order, cents })?.key(order)).await?;
    tx.commit().await?; // the order and its event, or neither

    println!("order {order} is paid, event {id}");
    Ok(())
}
