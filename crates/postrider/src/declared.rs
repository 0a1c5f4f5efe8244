//! Captured and adopted tables together: what is declared comes into the database in one transaction.

use sqlx::{Connection as _, PgConnection};

use crate::capture::lock::Patience;
use crate::capture::{self, Plan, Table};
use crate::outbox::{self, Outbox};

/// What can be wrong with a declaration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Of a captured table.
    #[error(transparent)]
    Table(#[from] capture::Error),
    /// Of an adopted one.
    #[error(transparent)]
    Outbox(#[from] outbox::Error),
    /// Of one that is both.
    #[error("{table} is both captured and adopted: declare it once, or every row would be captured twice")]
    Both {
        /// Quoted, with its schema.
        table: String,
    },
}

/// Compares the declarations with what is installed.
pub async fn plan(
    connection: &mut PgConnection,
    tables: &[Table],
    outboxes: &[Outbox],
) -> Result<Plan, Error> {
    let captured = capture::plan(connection, tables).await?;
    let adopted = outbox::plan(connection, outboxes).await?;
    joined((captured, tables.len()), (adopted, outboxes.len()))
}

/// One plan of two, each with the number of its declared tables, which come first.
fn joined((mut captured, tables): (Plan, usize), (adopted, outboxes): (Plan, usize)) -> Result<Plan, Error> {
    let names: Vec<&String> = adopted.tables.iter().take(outboxes).map(|outbox| &outbox.table).collect();
    if let Some(both) = captured.tables.iter().take(tables).find(|table| names.contains(&&table.table)) {
        return Err(Error::Both { table: both.table.clone() });
    }
    captured.tables.extend(adopted.tables);
    Ok(captured)
}

/// Brings every declared table to where it should be and takes the rows that wait in outbox tables, all of it or nothing; orphans
/// only with `remove_orphans`. What there was to do.
pub async fn apply(
    connection: &mut PgConnection,
    tables: &[Table],
    outboxes: &[Outbox],
    remove_orphans: bool,
) -> Result<Plan, Error> {
    let mut patience = Patience::default();
    loop {
        let done = attempted(connection, tables, outboxes, remove_orphans).await;
        match &done {
            Err(
                Error::Table(capture::Error::Database(error))
                | Error::Outbox(
                    outbox::Error::Database(error) | outbox::Error::Table(capture::Error::Database(error)),
                ),
            ) if patience.is_left(error).await => {}
            _ => {
                if done.is_ok() {
                    capture::settle_failures(connection).await;
                }
                return done;
            }
        }
    }
}

async fn attempted(
    connection: &mut PgConnection,
    tables: &[Table],
    outboxes: &[Outbox],
    remove_orphans: bool,
) -> Result<Plan, Error> {
    let database = |error: sqlx::Error| Error::Table(error.into());
    let mut transaction =
        connection.begin_with("begin isolation level read committed").await.map_err(database)?;
    Patience::take_turn(&mut transaction).await.map_err(database)?;
    // First the rows that wait in outbox tables: that may take long, and whoever writes a captured table need not wait for it.
    let adopted = outbox::apply_within(&mut transaction, outboxes, remove_orphans).await?;
    let captured = capture::apply_within(&mut transaction, tables, remove_orphans).await?;
    let plan = joined((captured, tables.len()), (adopted, outboxes.len()))?;
    transaction.commit().await.map_err(database)?;
    Ok(plan)
}
