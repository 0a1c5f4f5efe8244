//! Brings what is installed to what is declared.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::declaration::Table;
use super::difference::{Difference, Plan, State};
use super::failure::{Error, Result};
use super::lock::Patience;
use super::plan::{as_triggers_see, within};
use super::recapture;

/// Brings every declared table to where it should be, in one transaction; orphans only with `remove_orphans`. What there was to do.
pub async fn apply(connection: &mut PgConnection, tables: &[Table], remove_orphans: bool) -> Result<Plan> {
    let mut patience = Patience::default();
    loop {
        match attempted(connection, tables, remove_orphans).await {
            Err(Error::Database(error)) if patience.is_left(&error).await => {}
            done => return done,
        }
    }
}

async fn attempted(connection: &mut PgConnection, tables: &[Table], remove_orphans: bool) -> Result<Plan> {
    let mut transaction = connection.begin().await?;
    let plan = apply_within(&mut transaction, tables, remove_orphans).await?;
    transaction.commit().await?;
    Ok(plan)
}

/// The same in the caller's transaction, which sees names as triggers do from then on.
pub(crate) async fn apply_within(
    transaction: &mut PgConnection,
    tables: &[Table],
    remove_orphans: bool,
) -> Result<Plan> {
    Patience::set(transaction).await?;
    as_triggers_see(transaction).await?;
    let (plan, twice) = within(transaction, tables).await?;
    if !remove_orphans && let Some((table, partition)) = twice {
        return Err(Error::Overlap { table, partition });
    }
    // Orphans first: one on a partition is in the way of the trigger that its table is to get.
    let (orphans, declared): (Vec<&Difference>, Vec<&Difference>) =
        plan.tables.iter().partition(|difference| difference.state == State::Orphaned);
    let orphans = orphans.into_iter().filter(|_| remove_orphans);
    for statement in orphans.chain(declared).flat_map(|difference| &difference.statements) {
        sqlx::raw_sql(AssertSqlSafe(statement.clone())).execute(&mut *transaction).await?;
    }
    // The tables whose triggers were made anew are locked against writers until the commit: what is kept of them comes before
    // everything that follows.
    for table in tables {
        recapture::within(transaction, table).await?;
    }
    Ok(plan)
}
