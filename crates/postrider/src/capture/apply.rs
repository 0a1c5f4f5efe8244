//! Brings what is installed to what is declared.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::declaration::Table;
use super::difference::{Difference, Plan, State};
use super::failure::{Error, Result};
use super::lock::Patience;
use super::plan::{as_triggers_see, within};
use super::{recapture, rights};

/// Brings every declared table to where it should be, in one transaction; orphans only with `remove_orphans`. What there was to do.
pub async fn apply(connection: &mut PgConnection, tables: &[Table], remove_orphans: bool) -> Result<Plan> {
    let mut patience = Patience::default();
    loop {
        match attempted(connection, tables, remove_orphans).await {
            Err(Error::Database(error)) if patience.is_left(&error).await => {}
            Ok(plan) => {
                recapture::settle(connection).await;
                return Ok(plan);
            }
            refused => return refused,
        }
    }
}

async fn attempted(connection: &mut PgConnection, tables: &[Table], remove_orphans: bool) -> Result<Plan> {
    let mut transaction = connection.begin_with("begin isolation level read committed").await?;
    Patience::take_turn(&mut transaction).await?;
    let plan = apply_within(&mut transaction, tables, remove_orphans).await?;
    transaction.commit().await?;
    Ok(plan)
}

/// The same in the caller's transaction, whose turn it is, and which sees names as triggers do from then on.
pub(crate) async fn apply_within(
    transaction: &mut PgConnection,
    tables: &[Table],
    remove_orphans: bool,
) -> Result<Plan> {
    Patience::set(transaction).await?;
    as_triggers_see(transaction).await?;
    rights::check(transaction, tables).await?;
    let (mut plan, twice) = within(transaction, tables).await?;
    if !remove_orphans && let Some((table, partition)) = twice {
        return Err(Error::Overlap { table, partition });
    }
    // Orphans first: one on a partition is in the way of the trigger that its table is to get.
    let (orphans, declared): (Vec<&Difference>, Vec<&Difference>) =
        plan.tables.iter().partition(|difference| difference.state == State::Orphaned);
    let orphans = orphans.into_iter().filter(|_| remove_orphans);
    let strange = rights::strange_partition(transaction, tables).await?;
    for statement in orphans.chain(declared).flat_map(|difference| &difference.statements) {
        let done = sqlx::raw_sql(AssertSqlSafe(statement.clone())).execute(&mut *transaction).await;
        done.map_err(|error| rights::explained(error, strange.as_ref()))?;
    }
    // The tables whose triggers were made anew are locked against writers until the commit: what is kept of them comes before
    // everything that follows. One that cannot be recorded is told of and holds up nobody's table.
    for table in tables {
        plan.kept.extend(recapture::within(transaction, table).await?.refused);
    }
    Ok(plan)
}
