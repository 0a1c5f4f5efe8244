//! Brings what is installed to what is declared, and takes the rows that are there.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::declaration::Outbox;
use super::failure::{Error, Result};
use super::mapping::{Mapping, moment};
use super::plan::plan;
use super::transfer;
use crate::capture::lock::Patience;
use crate::capture::{self, Plan, State};

/// Brings every declared table to where it should be, in one transaction, and takes the rows that are there; orphans only with
/// `remove_orphans`. What there was to do.
pub async fn apply(connection: &mut PgConnection, outboxes: &[Outbox], remove_orphans: bool) -> Result<Plan> {
    let mut patience = Patience::default();
    loop {
        match attempted(connection, outboxes, remove_orphans).await {
            Err(Error::Database(error)) if patience.is_left(&error).await => {}
            done => return done,
        }
    }
}

async fn attempted(connection: &mut PgConnection, outboxes: &[Outbox], remove_orphans: bool) -> Result<Plan> {
    let mut transaction = connection.begin_with("begin isolation level read committed").await?;
    Patience::take_turn(&mut transaction).await?;
    let plan = apply_within(&mut transaction, outboxes, remove_orphans).await?;
    transaction.commit().await?;
    Ok(plan)
}

/// The same in the caller's transaction, which is of the isolation level read committed: the rows are to be seen as they are under
/// the lock.
pub(crate) async fn apply_within(
    transaction: &mut PgConnection,
    outboxes: &[Outbox],
    remove_orphans: bool,
) -> Result<Plan> {
    Patience::set(transaction).await?;
    sqlx::query(
        "select set_config(name, value, true)
         from (values ('timezone', 'UTC'), ('intervalstyle', 'iso_8601'), ('extra_float_digits', '1'), ('bytea_output', 'hex'),
                      ('datestyle', 'ISO, MDY')) as s (name, value)",
    )
    .execute(&mut *transaction)
    .await?;
    let plan = plan(transaction, outboxes).await?;
    for (number, difference) in plan.tables.iter().enumerate() {
        if difference.state == State::Orphaned && !remove_orphans {
            continue;
        }
        for statement in &difference.statements {
            sqlx::raw_sql(AssertSqlSafe(statement.clone())).execute(&mut *transaction).await?;
            // Under the lock, and before the rows are taken.
            if statement.starts_with("lock table")
                && let Some(outbox) = outboxes.get(number)
            {
                refuse_claims(transaction, outbox).await?;
            }
        }
    }
    Ok(plan)
}

/// A claim of a moment ago means that the old poller is at work: what it sends now would be sent twice.
async fn refuse_claims(connection: &mut PgConnection, outbox: &Outbox) -> Result<()> {
    let mapping = Mapping::of(connection, outbox).await?;
    let Some(claimed) = &mapping.claimed else { return Ok(()) };
    let asked = format!(
        "select count(*) as claims from {} o where {} and o.{} > {}",
        mapping.shape.name,
        transfer::waiting(&mapping, "o"),
        claimed.ident,
        moment(
            claimed,
            &format!("(clock_timestamp() - make_interval(secs => {}))", outbox.stale_after.as_secs_f64())
        ),
    );
    let answer = capture::asked(connection, mapping.shape.oid, &asked).await?;
    let claims = answer["claims"].as_i64().unwrap_or_default();
    if claims > 0 {
        return Err(Error::Claimed { table: outbox.name.clone(), claims, stale_after: outbox.stale_after });
    }
    Ok(())
}
