//! Events for rows that were there before their table was captured.
//!
//! Page by page along the primary key. Every row is locked, as it is now, before its event is written, and until that is committed:
//! whoever wrote it before has recorded that before, and whoever changes it afterwards records that behind the snapshot. The place
//! that was reached is stored in the page's own transaction, so whoever goes on after a crash repeats nothing and leaves nothing out.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::declaration::Table;
use super::difference::State;
use super::failure::{Error, Result};
use super::generate;
use super::plan::{dollar_quoted, plan};
use super::shape::{Column, Shape};

/// A walk over the rows of a table.
#[derive(Debug)]
pub struct Backfill {
    relation: String,
    condition: String,
    /// The page behind a place, and the first of all.
    next: String,
    first: String,
}

/// Where a walk stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reached {
    /// Events that it has written so far.
    pub emitted: u64,
    /// Whether it has seen every row.
    pub is_done: bool,
}

impl Backfill {
    /// Begins, or goes on where an earlier walk with the same condition was ended. One that has seen every row begins anew.
    ///
    /// The connection keeps a function for the pages: they must be asked of the same one.
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
        make_function(connection, table, &shape).await?;
        let backfill = Self {
            relation: shape.name.clone(),
            condition: condition.unwrap_or("true").to_owned(),
            first: page(table, &shape, &keys, condition, false),
            next: page(table, &shape, &keys, condition, true),
        };
        let emitted: i64 = sqlx::query_scalar(
            "insert into postrider.backfills as b (relation, condition) values ($1, $2)
             on conflict (relation, condition) do update set
                 place = case when b.finished_at is null then b.place end,
                 emitted = case when b.finished_at is null then b.emitted else 0 end,
                 started_at = case when b.finished_at is null then b.started_at else now() end,
                 finished_at = null
             returning emitted",
        )
        .bind(&backfill.relation)
        .bind(&backfill.condition)
        .fetch_one(connection)
        .await?;
        Ok((backfill, Reached { emitted: emitted.unsigned_abs(), is_done: false }))
    }

    /// The next page, in a transaction of its own. Two walks at once share the pages.
    pub async fn page(&self, connection: &mut PgConnection, rows: u32) -> Result<Reached> {
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
            let statement = if place.is_some() { &self.next } else { &self.first };
            let mut query =
                sqlx::query_as(AssertSqlSafe(statement.clone())).bind(i64::from(rows)).persistent(false);
            if let Some(place) = place {
                query = query.bind(place);
            }
            (emitted, seen, reached) =
                query.fetch_one(&mut *transaction).await.map_err(|error| self.refused(error))?;
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

    /// What the server says of a condition that it does not take.
    fn refused(&self, error: sqlx::Error) -> Error {
        let says = error.as_database_error().map(|said| (said.code().unwrap_or_default(), said.message()));
        match says {
            // Syntax errors and names that are not there.
            Some((code, message)) if self.condition != "true" && code.starts_with("42") => {
                Error::Condition { condition: self.condition.clone(), reason: message.to_owned() }
            }
            _ => error.into(),
        }
    }
}

/// The function that makes a row's event, for this session. What a trigger would record as `created` is a snapshot here.
async fn make_function(connection: &mut PgConnection, table: &Table, shape: &Shape) -> Result<()> {
    let mut snapshot = table.clone();
    snapshot.verbs.insert.clone_from(&table.verbs.snapshot);
    let body = dollar_quoted(&generate::again(&snapshot, shape)?);
    let name = &shape.name;
    let statement = format!(
        "create or replace function pg_temp.postrider_backfill(tg_op text, tg_relid oid, old {name}, new {name}) returns text language plpgsql as {body}"
    );
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await?;
    Ok(())
}

/// The statement of a page: how many events, how many rows were looked at, and the place of the last one.
///
/// The place is that of the rows as they were found: one whose key has changed while it was locked is left out (that change is an
/// event of its own), and must not take the place along.
fn page(table: &Table, shape: &Shape, keys: &[&Column], condition: Option<&str>, is_next: bool) -> String {
    let list = |of: &dyn Fn(usize, &Column) -> String| {
        keys.iter().enumerate().map(|(n, key)| of(n, key)).collect::<Vec<_>>().join(", ")
    };
    let (name, alias, oid) = (&shape.name, &shape.alias, shape.oid);
    let idents = list(&|_, key| key.ident.clone());
    let backwards = list(&|_, key| format!("{} desc", key.ident));
    let texts = list(&|_, key| format!("{}::text", key.ident));
    let behind = if is_next {
        let of_table = list(&|_, key| format!("{alias}.{}", key.ident));
        let of_place = list(&|n, key| format!("($2::text[])[{}]::{}", n + 1, key.type_name));
        format!(" and row({of_table}) > row({of_place})")
    } else {
        String::new()
    };
    // What is deleted softly is no more. It is asked again of the locked row.
    let soft =
        table.soft_delete.as_ref().and_then(|soft| shape.columns.iter().find(|column| column.name == *soft));
    let living = soft.map_or_else(|| "true".to_owned(), |column| format!("{} is null", column.ident));
    let condition = condition.unwrap_or("true");
    format!(
        "with page as materialized (
             select {idents} from {name} as {alias} where ({condition}\n) and {living}{behind} order by {idents} limit $1),
         locked as materialized (
             select (postrider_row.*)::{name} as captured from {name} as postrider_row join page using ({idents})
             where {living} order by {idents} for share of postrider_row)
         select (select count(pg_temp.postrider_backfill('INSERT', {oid}::oid, null, l.captured)) + count(*) from locked l),
                (select count(*) from page),
                (select array[{texts}] from page order by {backwards} limit 1)"
    )
}
