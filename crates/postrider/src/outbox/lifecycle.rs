//! The table's own columns, kept true: when every sink has a row, and why one refuses it.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use uuid::Uuid;

use super::failure::Result;
use super::functions::{self, Answer, answered, called};
use super::mapping::Mapping;
use super::marker::Part;
use super::marks::{CLEANED, Task};

/// The statements for one table.
#[derive(Debug, Clone)]
pub(super) struct Lifecycle {
    outbox: String,
    settle: String,
    refused: String,
    freed: String,
    cleanup: Option<String>,
}

/// What is said of rows.
#[derive(Debug, Clone, Copy)]
pub(super) enum Say {
    /// That every sink has settled them. Those that a sink has parked are not.
    Settled,
    /// That they were refused once more since the last time.
    Refused,
    /// That nobody refuses them any more.
    Freed,
}

impl Lifecycle {
    /// Of a table; `None` if nothing in it could be kept.
    pub(super) async fn of(connection: &mut PgConnection, mapping: &Mapping) -> Result<Option<Self>> {
        if !mapping.has_lifecycle() {
            return Ok(None);
        }
        let function = functions::name(connection, mapping, "keep").await?;
        let is_told = mapping.attempts.is_some() || mapping.last_error.is_some();
        Ok(Some(Self {
            outbox: mapping.shape.name.clone(),
            settle: settle(&function, mapping.sent.is_some()),
            refused: refused(&function, is_told),
            freed: freed(&function, mapping.last_error.is_some()),
            cleanup: mapping
                .sent
                .as_ref()
                .map(|_| format!("select {}", called(&Task::Clean.call(&function, CLEANED, "$1")))),
        }))
    }

    /// Says it of a set of rows of a part of the lanes, and in the case of settled ones of each lane, but for those that are passed over; of how many.
    pub(super) async fn say(
        &self,
        connection: &mut PgConnection,
        say: Say,
        part: Part,
        set: i64,
        passed: &[Uuid],
    ) -> Result<u64> {
        let statement = match say {
            Say::Settled => &self.settle,
            Say::Refused => &self.refused,
            Say::Freed => &self.freed,
        };
        // Planned for what the tables hold now: notes that were none when the session was new are many when it matters.
        let planned_now = sqlx::query_as(AssertSqlSafe(statement.clone())).persistent(false);
        let (before, marked, after, count): (String, Option<i64>, String, i64) = planned_now
            .bind(&self.outbox)
            .bind(set)
            .bind(part.of)
            .bind(part.number)
            .bind(passed)
            .fetch_one(connection)
            .await?;
        answered(&self.outbox, (before, marked, after))?;
        Ok(count.unsigned_abs())
    }

    /// The next row of which it would be said, by its event and its own id.
    pub(super) async fn next(
        &self,
        connection: &mut PgConnection,
        say: Say,
        part: Part,
        passed: &[Uuid],
    ) -> Result<Option<(Uuid, String)>> {
        let (rows, name) = match say {
            Say::Settled => (include_str!("sql/due.sql"), "due"),
            Say::Refused => (include_str!("sql/refused.sql"), "refused"),
            Say::Freed => (include_str!("sql/freed.sql"), "freed"),
        };
        // What it does beside looking is not meant.
        let mut transaction = connection.begin().await?;
        let next = sqlx::query_as(AssertSqlSafe(format!("{rows} select r.event, r.source_id from {name} r")))
            .persistent(false)
            .bind(&self.outbox)
            .bind(1_i64)
            .bind(part.of)
            .bind(part.number)
            .bind(passed)
            .fetch_optional(&mut *transaction)
            .await?;
        transaction.rollback().await?;
        Ok(next)
    }

    /// Deletes so many rows that were sent so long ago, but for the oldest, which cannot be; how many it were.
    pub(super) async fn clean(
        &self,
        connection: &mut PgConnection,
        age: Duration,
        set: i32,
        passed: i32,
    ) -> Result<u64> {
        let Some(cleanup) = &self.cleanup else { return Ok(0) };
        let answer: Answer = sqlx::query_as(AssertSqlSafe(cleanup.clone()))
            .bind(age.as_secs_f64())
            .bind(set)
            .bind(passed)
            .fetch_one(connection)
            .await?;
        Ok(answered(&self.outbox, answer)?.unsigned_abs())
    }
}

/// A call with all rows of `r`, if there are any and the table has a place for what is to be said of them.
fn kept(is_kept: bool, task: Task, function: &str, of_each: &str) -> String {
    if !is_kept {
        // One line of an answer, as of every other.
        return called("count(*)");
    }
    let rows = format!("array_agg(r.source_id), array_agg(r.born), {of_each}");
    called(&format!("case when count(*) > 0 then {} end", task.call(function, &rows, "null")))
}

/// Nothing is said of each but what is said of all.
const ALIKE: &str = "null::integer[], null::text[]";

/// A lane counts as far as the cursors of all sinks have come; behind that, what was not visible to one of them is still owed to it.
fn settle(function: &str, is_kept: bool) -> String {
    format!(
        "{}\nselect {}, count(*) from due r",
        include_str!("sql/due.sql"),
        kept(is_kept, Task::Sent, function, ALIKE)
    )
}

fn refused(function: &str, is_kept: bool) -> String {
    format!(
        "{},
noted as (
    update postrider.all_adopted a set attempts = r.attempts from refused r where a.lane = r.lane and a.seq = r.seq and a.event = r.event)
select {}, count(*) from refused r",
        include_str!("sql/refused.sql"),
        kept(is_kept, Task::Refused, function, "array_agg(r.attempts), array_agg(r.reason)")
    )
}

/// Rows that nobody refuses any more. One that was never tried has only waited, which is no error of it: nothing is left of that.
fn freed(function: &str, is_kept: bool) -> String {
    format!(
        "{},
noted as (
    update postrider.all_adopted a set attempts = null from freed f where a.lane = f.lane and a.seq = f.seq and a.event = f.event)
select {}, count(*) from freed r where r.attempts = 0",
        include_str!("sql/freed.sql"),
        kept(is_kept, Task::Freed, function, ALIKE)
    )
}
