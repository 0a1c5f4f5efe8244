//! Faults that we survive, by the numbers of the list.

mod frozen;
pub(crate) mod notify;
mod pooler;
mod supply_chain;
mod tampering;

use std::time::{Duration, Instant};

use sqlx::PgConnection;

use crate::support::PATIENCE;

/// Asks until the answer is yes.
pub(crate) async fn until(connection: &mut PgConnection, question: &'static str) {
    let start = Instant::now();
    while !sqlx::query_scalar::<_, bool>(question).fetch_one(&mut *connection).await.unwrap() {
        assert!(start.elapsed() < PATIENCE, "never came true: {question}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
