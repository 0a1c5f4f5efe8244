//! Emitting events in the caller's own transaction.
//!
//! An event is a row that is written beside the rows it speaks of: both are committed or neither is. So there is no
//! connection and no pool in here, only the [`Transaction`] that the caller has open, of sqlx (feature `sqlx`) or of
//! tokio-postgres (feature `tokio-postgres`).
//!
//! ```no_run
//! # #[cfg(feature = "sqlx")]
//! # async fn example(pool: &sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! use postrider::Event;
//!
//! let mut tx = pool.begin().await?;
//! sqlx::query("update orders set paid = true where id = $1").bind(7).execute(&mut *tx).await?;
//! postrider::emit(&mut tx, &Event::new("order.paid", &serde_json::json!({"order": 7}))?.key(7)).await?;
//! tx.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! `with_events`, in the module of each driver, makes the events part of the change, so that they cannot be forgotten.
//!
//! Everything here works through PgBouncer in transaction mode. For your own statements sqlx needs `.persistent(false)`
//! there (or PgBouncer 1.21 with `max_prepared_statements`); `statement_cache_capacity(0)` alone does not help.

mod changed;
mod emitted;
mod error;
#[cfg(feature = "sqlx")]
pub mod sqlx;
#[cfg(feature = "tokio-postgres")]
pub mod tokio_postgres;
mod transaction;

use uuid::Uuid;

pub use changed::Changed;
pub use emitted::{Emitted, Expected, assert_emitted, emitted};
pub use error::{EmitError, Refusal};
pub use transaction::Transaction;

use crate::event::Event;

// What serde wrote is JSON already: the functions for `json` parse it once, those for `text` would check it as well.
const EMIT: &str =
    "select postrider.emit($1::text, $2::text::json, $3::text, $4::text, $5::text, $6::text::json)::text";
const EMIT_MANY: &str = "select postrider.emit_many($1::text::json)::text";

/// Writes an event in the caller's transaction and returns its id. It will be delivered if, and only if, the
/// transaction commits.
///
/// With [`EmitError::Refused`] the server has aborted the transaction, as after any failed statement.
pub async fn emit<T: Transaction>(tx: &mut T, event: &Event) -> Result<Uuid, EmitError> {
    let headers =
        (!event.headers.is_empty()).then(|| serde_json::Value::Object(event.headers.clone()).to_string());
    let parameters = [
        Some(event.r#type.as_str()),
        Some(event.payload.get()),
        event.key.as_deref(),
        event.tenant.as_deref(),
        event.entity.as_deref(),
        headers.as_deref(),
    ];
    let mut ids = tx.column(EMIT, &parameters).await?;
    id(ids.pop().flatten())
}

/// Writes many events in one statement, in the order of the slice, and returns their ids in the same order. All or
/// none are written.
pub async fn emit_many<T: Transaction>(tx: &mut T, events: &[Event]) -> Result<Vec<Uuid>, EmitError> {
    let Some(first) = events.first() else {
        return Ok(Vec::new());
    };
    // Payloads were serialised when the events were made: what is left are strings and maps, which do not fail.
    let array = serde_json::to_string(events)
        .map_err(|source| EmitError::Payload { r#type: first.r#type.clone(), source })?;
    tx.column(EMIT_MANY, &[Some(&array)]).await?.into_iter().map(id).collect()
}

fn id(text: Option<String>) -> Result<Uuid, EmitError> {
    Uuid::parse_str(&text.unwrap_or_default()).map_err(EmitError::answer)
}
