//! A small shop: every change of an order and its event in one transaction. Some transactions change their mind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postrider::Event;
use rand::random_range;
use serde::Serialize;
use sqlx::{PgPool, PgTransaction};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::books::Books;

pub(crate) const WRITERS: u32 = 4;

/// One in so many transactions is rolled back after its event was emitted.
pub(crate) const ROLLED_BACK: u32 = 8;

const CUSTOMERS: [&str; 6] = ["ada", "alan", "edna", "joan", "ken", "tony"];
const STATES: [&str; 3] = ["placed", "paid", "shipped"];

/// The writers at work.
pub(crate) struct Load {
    writers: JoinSet<anyhow::Result<()>>,
    stop: Arc<AtomicBool>,
}

impl Load {
    pub(crate) fn start(pool: &PgPool, books: &Arc<Books>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut writers = JoinSet::new();
        for _ in 0..WRITERS {
            writers.spawn(write(pool.clone(), Arc::clone(books), Arc::clone(&stop)));
        }
        Self { writers, stop }
    }

    /// Waits for a writer to fail.
    pub(crate) async fn failure(&mut self) -> anyhow::Error {
        match self.writers.join_next().await {
            Some(Ok(Err(error))) => error,
            Some(Err(error)) => error.into(),
            Some(Ok(Ok(()))) | None => std::future::pending().await,
        }
    }

    /// Lets every writer finish the transaction it is in.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.writers.join_next().await {
            ended??;
        }
        Ok(())
    }
}

#[derive(Serialize)]
struct Order {
    #[serde(rename = "order")]
    id: i64,
    customer: &'static str,
    cents: i32,
    #[serde(skip)]
    state: usize,
}

async fn write(pool: PgPool, books: Arc<Books>, stop: Arc<AtomicBool>) -> anyhow::Result<()> {
    const MOST_OPEN: usize = 20;
    let mut open: Vec<Order> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let is_new = open.is_empty() || (open.len() < MOST_OPEN && random_range(0..3) == 0);
        let mut tx = pool.begin().await?;
        let order = if is_new {
            place(&mut tx).await?
        } else {
            let order = open.swap_remove(random_range(0..open.len()));
            advance(&mut tx, order).await?
        };
        let state = STATES[order.state];
        let event = Event::new(format!("order.{state}"), &order)?.key(order.id).entity("order");
        let event_id = postrider::emit(&mut tx, &event).await?;
        books.written(event_id, &order.id.to_string(), order.state as u64);
        if random_range(0..ROLLED_BACK) == 0 {
            tx.rollback().await?;
            // The order is as it was before, or never was.
            if let Some(before) = order.state.checked_sub(1) {
                open.push(Order { state: before, ..order });
            }
        } else {
            tx.commit().await?;
            books.committed(event_id);
            if order.state + 1 < STATES.len() {
                open.push(order);
            }
        }
        sleep(Duration::from_millis(random_range(5..30))).await;
    }
    Ok(())
}

async fn place(tx: &mut PgTransaction<'_>) -> sqlx::Result<Order> {
    let customer = CUSTOMERS[random_range(0..CUSTOMERS.len())];
    let cents = random_range(500..50_000);
    let id = sqlx::query_scalar("insert into orders (customer, cents) values ($1, $2) returning id")
        .bind(customer)
        .bind(cents)
        .fetch_one(&mut **tx)
        .await?;
    Ok(Order { id, customer, cents, state: 0 })
}

async fn advance(tx: &mut PgTransaction<'_>, order: Order) -> sqlx::Result<Order> {
    let state = order.state + 1;
    sqlx::query("update orders set state = $2 where id = $1")
        .bind(order.id)
        .bind(STATES[state])
        .execute(&mut **tx)
        .await?;
    Ok(Order { state, ..order })
}
