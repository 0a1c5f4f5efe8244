//! The caller's open transaction, whichever driver it is of.

use super::EmitError;

/// An open transaction to emit in: `sqlx::Transaction<'_, Postgres>`, `sqlx::PgConnection` or
/// `tokio_postgres::Transaction<'_>`.
///
/// A `PgConnection` is meant for code that is handed the connection of somebody's transaction; without one, an event
/// on it is committed alone and at once. A transaction that wraps one of these (deadpool's) is passed as `&mut *tx`.
///
/// Sealed: only the drivers that are tested here implement it.
pub trait Transaction: sealed::Run {}

impl<T: sealed::Run> Transaction for T {}

pub(crate) mod sealed {
    use super::EmitError;

    pub trait Run: Send {
        /// Runs a statement with text parameters and returns the first column, which must be text too, of each row.
        fn column(
            &mut self,
            sql: &'static str,
            parameters: &[Option<&str>],
        ) -> impl Future<Output = Result<Vec<Option<String>>, EmitError>> + Send;
    }
}
