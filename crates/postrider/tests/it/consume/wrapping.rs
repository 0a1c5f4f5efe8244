//! How handlers hand on what the database said.

use postrider::consume::{BoxError, Tx};

#[derive(Debug, thiserror::Error)]
enum Booking {
    #[error("it was not booked")]
    Failed(#[source] sqlx::Error),
}

/// So many ways there are.
pub const WAYS: u32 = 4;

/// A deadlock in this transaction, in one of the ways.
pub async fn deadlock(tx: &mut Tx, way: u32) -> Result<(), BoxError> {
    let deadlock = "do $$ begin raise exception using errcode = '40P01'; end $$";
    let Err(error) = sqlx::raw_sql(deadlock).execute(&mut **tx).await else { return Ok(()) };
    Err(match way % WAYS {
        0 => error.into(),
        1 => anyhow::Error::from(error).into(),
        2 => anyhow::Error::from(error).context("it was not booked").into(),
        _ => Booking::Failed(error).into(),
    })
}
