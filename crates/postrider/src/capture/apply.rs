//! Brings what is installed to what is declared.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::declaration::Table;
use super::failure::{Error, Result};
use super::plan::{Difference, Plan, State, as_triggers_see, within};
use super::recapture;

/// How long a lock on a user's table is waited for before everybody else goes first.
const LOCK_TIMEOUT: &str = "500ms";
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(250);

/// Brings every declared table to where it should be, in one transaction; orphans only with `remove_orphans`. True if something was done.
///
/// A lock that is queued holds up everybody behind it, so it is asked for with a short patience, again and again.
pub async fn apply(connection: &mut PgConnection, tables: &[Table], remove_orphans: bool) -> Result<Plan> {
    let mut attempt = 1;
    loop {
        match attempted(connection, tables, remove_orphans).await {
            Err(Error::Database(sqlx::Error::Database(error)))
                if error.code().as_deref() == Some("55P03") && attempt < TRIES =>
            {
                attempt += 1;
                tokio::time::sleep(PAUSE).await;
            }
            done => return done,
        }
    }
}

async fn attempted(connection: &mut PgConnection, tables: &[Table], remove_orphans: bool) -> Result<Plan> {
    let mut transaction = connection.begin().await?;
    sqlx::query("select set_config('lock_timeout', $1, true)")
        .bind(LOCK_TIMEOUT)
        .execute(&mut *transaction)
        .await?;
    as_triggers_see(&mut transaction).await?;
    let plan = within(&mut transaction, tables).await?;
    if !remove_orphans && let Some((table, partition)) = &plan.twice {
        return Err(Error::Overlap { table: table.clone(), partition: partition.clone() });
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
        recapture::within(&mut transaction, table).await?;
    }
    transaction.commit().await?;
    Ok(plan)
}
