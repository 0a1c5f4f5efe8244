//! Emitting in a transaction of tokio-postgres.

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Transaction};

use super::error::Refusal;
use super::transaction::sealed::Run;
use super::{Changed, EmitError};

/// Begins a transaction, runs `work` in it, emits the events it returns and commits: the change and its events, or
/// neither.
///
/// An error anywhere rolls back, and so does a panic or dropping the future. (As with every commit: if the connection
/// breaks while the server is committing, the error leaves open whether it did.)
///
/// ```no_run
/// use postrider::{Changed, Event, producer::tokio_postgres::with_events};
///
/// async fn pay(client: &mut tokio_postgres::Client, order: i64) -> anyhow::Result<()> {
///     with_events(client, async |tx| {
///         tx.execute("update orders set paid = true where id = $1", &[&order]).await?;
///         Ok(Changed::new((), [Event::new("order.paid", &order)?.key(order)]))
///     })
///     .await
/// }
/// ```
pub async fn with_events<R, E, F>(client: &mut Client, work: F) -> Result<R, E>
where
    E: From<EmitError> + From<Error>,
    F: AsyncFnOnce(&mut Transaction<'_>) -> Result<Changed<R>, E>,
{
    let mut tx = client.transaction().await?;
    let value = work(&mut tx).await?.finish(&mut tx).await?;
    tx.commit().await?;
    Ok(value)
}

impl Run for Transaction<'_> {
    async fn column(
        &mut self,
        sql: &'static str,
        parameters: &[Option<&str>],
    ) -> Result<Vec<Option<String>>, EmitError> {
        let typed: Vec<(&(dyn ToSql + Sync), Type)> =
            parameters.iter().map(|parameter| (parameter as &(dyn ToSql + Sync), Type::TEXT)).collect();
        // The unnamed statement, parsed and bound in one go: nothing is left behind on a pooled connection.
        let rows = self.query_typed(sql, &typed).await.map_err(refused)?;
        rows.iter().map(|row| row.try_get(0).map_err(EmitError::answer)).collect()
    }
}

fn refused(error: Error) -> EmitError {
    let said = error.as_db_error();
    let refusal =
        said.map(|said| Refusal::new(said.code().code(), said.message(), said.detail(), said.hint()));
    EmitError::of_driver(error, refusal)
}
