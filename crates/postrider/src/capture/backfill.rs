//! Events for rows that were there before their table was captured.
//!
//! Page by page along the primary key. Every row is locked, as it is now, before its event is written, and until that is committed:
//! whoever wrote it before has recorded that before, and whoever changes it afterwards records that behind the snapshot. The place
//! that was reached is stored in the page's own transaction, so whoever goes on after a crash repeats nothing and leaves nothing out.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::declaration::Table;
use super::difference::State;
use super::expressions::hand_over;
use super::failure::{Error, Result};
use super::fence::Fence;
use super::generate;
use super::making::{dollar_quoted, settings_of};
use super::plan::plan;
use super::shape::{Column, Order, Shape};

/// A walk over the rows of a table.
#[derive(Debug)]
pub struct Backfill {
    oid: i64,
    /// What makes the function of the pages.
    function: Function,
    relation: String,
    condition: String,
    /// Rows that are free, or none.
    free: Pages,
    /// A row that somebody has locked, when he lets go of it.
    waited_for: Pages,
}

/// The function that makes a row's event. What a trigger would record as `created` is a snapshot here.
#[derive(Debug)]
struct Function {
    signature: String,
    create: String,
}

/// The bodies of the function that reads a page: the one behind a place, and the first of all.
#[derive(Debug)]
struct Pages {
    next: String,
    first: String,
}

/// Reads a page, of so many rows and the place.
const PAGE: &str = "pg_temp.postrider_backfill_page(bigint, text[])";

/// How long a single row is waited for at a time, less than any server takes to look for deadlocks; and the rest between two times.
const LOCK_TIMEOUT: &str = "200ms";
const PAUSE: Duration = Duration::from_millis(100);

/// Where a walk stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reached {
    /// Events that it has written so far.
    pub emitted: u64,
    /// Whether it has seen every row.
    pub is_done: bool,
}

impl Backfill {
    /// Begins, or goes on where an earlier walk with the same condition was ended. One that has seen every row begins anew, and so does
    /// one of another table that had the name before.
    pub async fn open(
        connection: &mut PgConnection,
        table: &Table,
        condition: Option<&str>,
    ) -> Result<(Self, Reached)> {
        if table.verbs.snapshot.is_none() {
            return Err(Error::NoSnapshot { table: table.name.clone() });
        }
        let plan = plan(connection, std::slice::from_ref(table)).await?;
        let shape = Shape::of(connection, table).await?;
        let is_captured =
            plan.tables.iter().any(|found| found.table == shape.name && found.state == State::Installed);
        if !is_captured {
            return Err(Error::NotCaptured { table: table.name.clone() });
        }
        let keys: Vec<&Column> = shape.columns.iter().filter(|column| column.in_key).collect();
        if keys.is_empty() {
            return Err(Error::NoPrimaryKey { table: table.name.clone() });
        }
        if let Some(condition) = condition {
            check_condition(connection, &shape, condition).await?;
        }
        let backfill = Self {
            oid: shape.oid,
            function: Function::of(table, &shape)?,
            relation: shape.name.clone(),
            condition: condition.unwrap_or("true").to_owned(),
            free: pages(table, &shape, &keys, condition, " nowait"),
            waited_for: pages(table, &shape, &keys, condition, ""),
        };
        let emitted: i64 = sqlx::query_scalar(
            "insert into postrider.backfills as b (relation, condition, relid) values ($1, $2, $3::bigint::oid)
             on conflict (relation, condition) do update set
                 (place, emitted, started_at) = (
                     select case when w.goes_on then b.place end, case when w.goes_on then b.emitted else 0 end,
                            case when w.goes_on then b.started_at else now() end
                     -- Neither where every row was seen, nor in a table that was made anew.
                     from (select b.finished_at is null and b.relid = excluded.relid and b.origin = excluded.origin) w (goes_on)),
                 finished_at = null, relid = excluded.relid, origin = excluded.origin
             returning emitted",
        )
        .bind(&backfill.relation)
        .bind(&backfill.condition)
        .bind(backfill.oid)
        .fetch_one(connection)
        .await?;
        Ok((backfill, Reached { emitted: emitted.unsigned_abs(), is_done: false }))
    }

    /// The next page, in a transaction of its own. Two walks at once share the pages.
    ///
    /// Whoever writes may lock rows in any order: so nothing is waited for while rows are locked here. A page with a row that somebody
    /// has is given back and asked for in halves, and only a single row is waited for.
    pub async fn page(&self, connection: &mut PgConnection, rows: u32) -> Result<Reached> {
        let mut rows = rows;
        loop {
            match self.attempted(connection, rows).await {
                Err(Error::Database(error)) if is_locked(&error) => {
                    if rows == 1 {
                        tokio::time::sleep(PAUSE).await;
                    }
                    rows = (rows / 2).max(1);
                }
                done => return done,
            }
        }
    }

    async fn attempted(&self, connection: &mut PgConnection, rows: u32) -> Result<Reached> {
        let mut transaction = connection.begin().await?;
        let (place, done): (Option<Vec<String>>, bool) = sqlx::query_as(
            "select place, finished_at is not null from postrider.backfills where relation = $1 and condition = $2 for update",
        )
        .bind(&self.relation)
        .bind(&self.condition)
        .fetch_one(&mut *transaction)
        .await?;
        let (mut emitted, mut seen, mut reached) = (0, 0, None);
        if !done {
            sqlx::query("select set_config('lock_timeout', $1, true)")
                .bind(LOCK_TIMEOUT)
                .execute(&mut *transaction)
                .await?;
            let fence = Fence::around(&mut transaction, self.oid).await?;
            self.function.make(&mut transaction, self.oid).await?;
            let pages = if rows == 1 { &self.waited_for } else { &self.free };
            let body = if place.is_some() { &pages.next } else { &pages.first };
            make_page(&mut transaction, body, self.oid).await?;
            (emitted, seen, reached) =
                sqlx::query_as("select emitted, seen, reached from pg_temp.postrider_backfill_page($1, $2)")
                    .bind(i64::from(rows))
                    .bind(place)
                    .persistent(false)
                    .fetch_one(&mut *transaction)
                    .await
                    .map_err(|error| refused(&self.condition, error))?;
            if let Some(fence) = fence {
                fence.close(&mut transaction).await?;
            }
            // Asked behind the locks: whoever wrote these rows before has kept his events by now.
            let is_kept: bool = sqlx::query_scalar("select postrider.has_failures($1::bigint::oid)")
                .bind(self.oid)
                .fetch_one(&mut *transaction)
                .await?;
            if is_kept {
                return Err(Error::Kept { table: self.relation.clone() });
            }
        }
        let is_done = done || seen < i64::from(rows);
        let total: i64 = sqlx::query_scalar(
            "update postrider.backfills set place = coalesce($3, place), emitted = emitted + $4,
                 finished_at = coalesce(finished_at, case when $5 then now() end)
             where relation = $1 and condition = $2 returning emitted",
        )
        .bind(&self.relation)
        .bind(&self.condition)
        .bind::<Option<Vec<String>>>(reached)
        .bind::<i64>(emitted)
        .bind(is_done)
        .fetch_one(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(Reached { emitted: total.unsigned_abs(), is_done })
    }
}

/// A condition is one expression. What closes the bracket of a page's statement, and opens another, has a closing one too many where
/// there is none around it; what goes on behind the CASE is no expression between brackets. No text is taken in both places but one
/// that is whole.
async fn check_condition(connection: &mut PgConnection, shape: &Shape, condition: &str) -> Result<()> {
    let Shape { name, alias, .. } = shape;
    let mut transaction = connection.begin().await?;
    let fence = Fence::around(&mut transaction, shape.oid).await?;
    for asked in [
        format!("select case when {condition}\n then 1 end from {name} as {alias} limit 0"),
        format!("select from {name} as {alias} where ({condition}\n) limit 0"),
    ] {
        let answer = if let Some(fence) = &fence {
            fence.probe(&mut transaction, &asked).await
        } else {
            // In the extended protocol, which takes one statement.
            let query = sqlx::query(AssertSqlSafe(asked)).persistent(false);
            query.fetch_optional(&mut *transaction).await.map(|_| ())
        };
        answer.map_err(|error| refused(condition, error))?;
    }
    transaction.rollback().await?;
    Ok(())
}

/// What the server says of a condition that it does not take.
fn refused(condition: &str, error: sqlx::Error) -> Error {
    let says = error.as_database_error().map(|said| (said.code().unwrap_or_default(), said.message()));
    match says {
        // Syntax errors and names that are not there.
        Some((code, message)) if condition != "true" && code.starts_with("42") => {
            Error::Condition { condition: condition.to_owned(), reason: message.to_owned() }
        }
        _ => error.into(),
    }
}

impl Function {
    fn of(table: &Table, shape: &Shape) -> Result<Self> {
        let mut snapshot = table.clone();
        snapshot.verbs.insert.clone_from(&table.verbs.snapshot);
        let body = dollar_quoted(&generate::snapshot(&snapshot, shape)?);
        let name = &shape.name;
        Ok(Self {
            signature: format!("pg_temp.postrider_backfill(text, oid, {name}, {name})"),
            create: format!(
                "create function pg_temp.postrider_backfill(tg_op text, tg_relid oid, old {name}, new {name}) returns text
                     language plpgsql security definer set search_path = pg_catalog, pg_temp{} as {body}",
                settings_of(&body)
            ),
        })
    }

    /// Anew for every page: it belongs to the table's owner, and what he has made of it meanwhile is not called.
    async fn make(&self, connection: &mut PgConnection, table: i64) -> Result<()> {
        let Self { signature, create } = self;
        // Not looked at before it is called: with `plpgsql.extra_errors` the server would refuse columns with the names of our variables.
        let made =
            format!("set local check_function_bodies = off; drop function if exists {signature}; {create}");
        sqlx::raw_sql(AssertSqlSafe(made)).execute(&mut *connection).await?;
        hand_over(connection, signature, table).await
    }
}

/// The function that reads a page, anew for each as the other: keys and conditions may call what is the owner's, so nobody else looks at
/// them before. Names mean in it what they mean to whoever asks. What row security hides from the owner is an error, not left out.
async fn make_page(connection: &mut PgConnection, body: &str, table: i64) -> Result<()> {
    let made = format!(
        "set local check_function_bodies = off;
         drop function if exists {PAGE};
         create function pg_temp.postrider_backfill_page(bigint, text[], out emitted bigint, out seen bigint, out reached text[])
             language sql security definer set search_path from current set row_security = off as {}",
        dollar_quoted(body)
    );
    sqlx::raw_sql(AssertSqlSafe(made)).execute(&mut *connection).await?;
    hand_over(connection, PAGE, table).await
}

/// Whether somebody else has a row, or has been found in a circle with us.
fn is_locked(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    matches!(code.as_deref(), Some("55P03" | "40P01"))
}

fn pages(table: &Table, shape: &Shape, keys: &[&Column], condition: Option<&str>, lock: &str) -> Pages {
    Pages {
        first: page(table, shape, keys, condition, false, lock),
        next: page(table, shape, keys, condition, true, lock),
    }
}

/// The query of a page: how many events, how many rows were looked at, and the place of the last one.
///
/// The place is that of the rows as they were found: one whose key has changed while it was locked is left out (that change is an
/// event of its own), and must not take the place along.
///
/// Keys are compared by the operators of their own order: by those that the search path finds, a page may begin elsewhere than the one
/// before it has ended.
fn page(
    table: &Table,
    shape: &Shape,
    keys: &[&Column],
    condition: Option<&str>,
    is_next: bool,
    lock: &str,
) -> String {
    let list = |between: &str, of: &dyn Fn(&Column) -> String| {
        keys.iter().map(|key| of(key)).collect::<Vec<_>>().join(between)
    };
    let (name, alias, oid) = (&shape.name, &shape.alias, shape.oid);
    let idents = list(", ", &|key| key.ident.clone());
    let forwards = |of: &str| list(", ", &|key| format!("{of}.{} using {}", key.ident, key.order.less));
    let (in_table, in_row) = (forwards(alias), forwards("postrider_row"));
    let backwards = list(", ", &|key| format!("{} using {}", key.ident, key.order.greater));
    let same = list(" and ", &|key| format!("postrider_row.{0} {1} page.{0}", key.ident, key.order.equal));
    let texts = list(", ", &|key| format!("{}::text", key.ident));
    let behind = if is_next { format!(" and ({})", behind(alias, keys)) } else { String::new() };
    // What is deleted softly is no more. It is asked again of the locked row.
    let soft =
        table.soft_delete.as_ref().and_then(|soft| shape.columns.iter().find(|column| column.name == *soft));
    let living =
        |of: &str| soft.map_or_else(|| "true".to_owned(), |column| format!("{of}.{} is null", column.ident));
    let (living, still_living) = (living(alias), living("postrider_row"));
    let condition = condition.unwrap_or("true");
    format!(
        "with page as materialized (
             select {idents} from {name} as {alias} where ({condition}\n) and {living}{behind} order by {in_table} limit $1),
         locked as materialized (
             select (postrider_row.*)::{name} as captured from {name} as postrider_row join page on {same}
             where {still_living} order by {in_row} for share of postrider_row{lock})
         select (select count(pg_temp.postrider_backfill('INSERT'::text, {oid}::oid, null::{name}, l.captured)) + count(*) from locked l),
                (select count(*) from page),
                (select array[{texts}] from page order by {backwards} limit 1)"
    )
}

/// Whether a row is behind the place.
fn behind(alias: &str, keys: &[&Column]) -> String {
    let sides = keys.iter().enumerate().map(|(n, key)| {
        let place = format!("($2::text[])[{}]::{}", n + 1, key.type_name);
        (format!("{alias}.{}", key.ident), place, &key.order)
    });
    let (columns, places): (Vec<_>, Vec<_>) = sides.clone().map(|(column, place, _)| (column, place)).unzip();
    match keys {
        // The server looks this up in the index at once, and takes one operator for all.
        [first, others @ ..] if others.iter().all(|key| key.order.greater == first.order.greater) => {
            format!("row({}) {} row({})", columns.join(", "), first.order.greater, places.join(", "))
        }
        _ => sides.rev().fold("false".to_owned(), |rest, (column, place, order)| {
            let Order { not_less, greater, .. } = order;
            format!("{column} {not_less} {place} and ({column} {greater} {place} or {rest})")
        }),
    }
}
