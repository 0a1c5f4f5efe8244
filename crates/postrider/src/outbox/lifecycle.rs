//! The table's own columns, kept true: when every sink has a row, and why one refuses it.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection};

use super::failure::Result;
use super::mapping::{Mapping, moment};

/// How many rows of one lane are marked by one statement.
const SET: i64 = 500;
/// How many rows one statement deletes.
const BATCH: i64 = 1000;

/// The statements for one table.
#[derive(Debug, Clone)]
pub(super) struct Lifecycle {
    outbox: String,
    settle: String,
    refused: String,
    freed: String,
    cleanup: Option<String>,
}

impl Lifecycle {
    /// Of a table; `None` if nothing in it could be kept.
    pub(super) fn of(mapping: &Mapping) -> Option<Self> {
        mapping.has_lifecycle().then(|| Self {
            outbox: mapping.shape.name.clone(),
            settle: settle(mapping),
            refused: refused(mapping),
            freed: freed(mapping),
            cleanup: cleanup(mapping),
        })
    }

    /// Marks rows that every sink has settled, a set of each lane; how many. Those that a sink has parked are not.
    pub(super) async fn settle(&self, connection: &mut PgConnection) -> Result<u64> {
        let count: i64 = sqlx::query_scalar(AssertSqlSafe(self.settle.clone()))
            .bind(&self.outbox)
            .bind(SET)
            .fetch_one(connection)
            .await?;
        Ok(count.unsigned_abs())
    }

    /// Tells of refusals since the last time, and lets go of rows that nobody refuses any more.
    pub(super) async fn tell_refusals(&self, connection: &mut PgConnection) -> Result<()> {
        sqlx::query(AssertSqlSafe(self.refused.clone())).bind(&self.outbox).execute(&mut *connection).await?;
        sqlx::query(AssertSqlSafe(self.freed.clone())).bind(&self.outbox).execute(connection).await?;
        Ok(())
    }

    /// Deletes a batch of rows that were sent so long ago; whether there may be more.
    pub(super) async fn clean(&self, connection: &mut PgConnection, age: Duration) -> Result<bool> {
        let Some(cleanup) = &self.cleanup else { return Ok(false) };
        let deleted = sqlx::query(AssertSqlSafe(cleanup.clone()))
            .bind(age.as_secs_f64())
            .bind(BATCH)
            .execute(connection)
            .await?
            .rows_affected();
        Ok(deleted == BATCH.unsigned_abs())
    }
}

/// A lane counts as far as the cursors of all sinks have come; behind that, what was not visible to one of them is still owed to it.
fn settle(mapping: &Mapping) -> String {
    let marked = mapping.sent.as_ref().map_or_else(String::new, |sent| {
        format!(
            ",
marked as (
    update {name} o set {sent} = {now} from due d where o.{id} = d.source_id::{kind} and o.{sent} is null{born})",
            name = mapping.shape.name,
            sent = sent.ident,
            // Not when the statement began: while it waited for a lock, rows may have come and been sent that it sees all the same.
            now = moment(sent, "clock_timestamp()"),
            id = mapping.id.ident,
            kind = mapping.id.type_name,
            born = mapping.is_born("d", "o"),
        )
    });
    format!("{}{marked}\nselect count(*) from due", include_str!("sql/due.sql"))
}

fn refused(mapping: &Mapping) -> String {
    let mut sets = Vec::new();
    if let Some(attempts) = &mapping.attempts {
        sets.push(format!("{0} = greatest(r.attempts, 0)", attempts.ident));
    }
    if let Some(last_error) = &mapping.last_error {
        // A cast that is spelled out cuts off what is too long.
        sets.push(format!("{} = r.reason::{}", last_error.ident, last_error.type_name));
    }
    let told = if sets.is_empty() {
        String::new()
    } else {
        format!(
            ",
told as (
    update {name} o set {sets} from refused r where o.{id} = r.source_id::{kind}{born})",
            name = mapping.shape.name,
            sets = sets.join(", "),
            id = mapping.id.ident,
            kind = mapping.id.type_name,
            born = mapping.is_born("r", "o"),
        )
    };
    format!(
        "{}{told}
update postrider.all_adopted a set attempts = r.attempts from refused r where a.lane = r.lane and a.seq = r.seq and a.event = r.event",
        include_str!("sql/refused.sql")
    )
}

/// Rows that nobody refuses any more. One that was never tried has only waited, which is no error of it: nothing is left of that.
fn freed(mapping: &Mapping) -> String {
    let forgotten = mapping.last_error.as_ref().map_or_else(String::new, |last_error| {
        format!(
            ",
forgotten as (
    update {name} o set {last_error} = null from freed f where f.attempts = 0 and o.{id} = f.source_id::{kind}{born})",
            name = mapping.shape.name,
            last_error = last_error.ident,
            id = mapping.id.ident,
            kind = mapping.id.type_name,
            born = mapping.is_born("f", "o"),
        )
    });
    format!(
        "{}{forgotten}
update postrider.all_adopted a set attempts = null from freed f where a.lane = f.lane and a.seq = f.seq and a.event = f.event",
        include_str!("sql/freed.sql")
    )
}

fn cleanup(mapping: &Mapping) -> Option<String> {
    let sent = mapping.sent.as_ref()?;
    Some(format!(
        "delete from {name} o where o.{id} in (
            select c.{id} from {name} c where c.{sent} is not null and c.{sent} < {then} order by c.{sent} limit $2)
          and o.{sent} is not null",
        name = mapping.shape.name,
        id = mapping.id.ident,
        sent = sent.ident,
        then = moment(sent, "(now() - make_interval(secs => $1))"),
    ))
}
