//! Events that could not be recorded when they happened.
//!
//! While one of them is kept, later events of its key are kept too, so that none overtakes it: see `postrider.waits_behind`.

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use time::OffsetDateTime;

use super::declaration::Table;
use super::expressions::hand_over;
use super::failure::{Error, Result};
use super::fence::{self, Fence};
use super::generate::{self, literal};
use super::lock::Patience;
use super::making::dollar_quoted;
use super::plan::{SEARCH_PATH, as_triggers_see};
use super::shape::Shape;

/// Makes the events of one write: its operation, the table, the row before and behind it, and the row that it hung on.
const ROW_FUNCTION: &str = "pg_temp.postrider_recapture_row(text, oid, json, json, json)";

/// What became of what was kept of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recaptured {
    /// How many writes have their events now.
    pub writes: u64,
    /// The first that still cannot be recorded. It stays, and so does what has to come behind it.
    pub refused: Option<Kept>,
}

/// A write whose event is kept.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct Kept {
    /// Its number.
    pub failure: i64,
    /// The table, quoted, with its schema; a partition by its own name.
    pub relation: String,
    /// INSERT, UPDATE, DELETE or TRUNCATE.
    pub operation: String,
    /// The event's key, where it was known.
    pub key: Option<String>,
    /// Why it could not be recorded.
    pub sqlstate: String,
    /// In words.
    pub message: String,
    /// When that was.
    pub failed_at: OffsetDateTime,
}

/// Records what is kept of this table, in the order it happened. Whoever does it beside somebody else waits for the other.
///
/// What is written meanwhile is kept as well. The second time nobody may write, and it is little.
pub async fn recapture(connection: &mut PgConnection, table: &Table) -> Result<Recaptured> {
    let mut total = 0;
    let mut patience = Patience::default();
    let mut locks = false;
    loop {
        match round(connection, table, locks).await {
            Ok(Recaptured { writes, refused }) => {
                total += writes;
                if writes == 0 || refused.is_some() || locks {
                    settle(connection).await;
                    return Ok(Recaptured { writes: total, refused });
                }
                locks = true;
            }
            Err(Error::Database(error)) if patience.is_left(&error).await => {}
            Err(error) => return Err(error),
        }
    }
}

async fn round(connection: &mut PgConnection, table: &Table, locks: bool) -> Result<Recaptured> {
    let mut transaction = connection.begin_with("begin isolation level read committed").await?;
    as_triggers_see(&mut transaction).await?;
    if locks {
        let shape = Shape::of(&mut transaction, table).await?;
        if kept_of(&mut transaction, &shape).await? == 0 {
            return Ok(Recaptured::default());
        }
        Patience::set(&mut transaction).await?;
        let lock = format!("lock table {} in share row exclusive mode", shape.name);
        sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut *transaction).await?;
    }
    let done = within(&mut transaction, table).await?;
    transaction.commit().await?;
    Ok(done)
}

/// What is kept of a table: a row's failure is that of the partition it is in.
fn of_table(oid: i64) -> String {
    format!(
        "postrider.kept_table(f.relation, f.relid, f.origin, f.kept_by, (select postrider.here())) in
             (select {oid}::oid union select t.relid::oid from pg_partition_tree({oid}::oid::regclass) t)"
    )
}

async fn kept_of(connection: &mut PgConnection, shape: &Shape) -> Result<i64> {
    let asked = format!("select count(*) from postrider.capture_failures f where {}", of_table(shape.oid));
    Ok(sqlx::query_scalar(AssertSqlSafe(asked)).fetch_one(connection).await?)
}

/// The same in the caller's transaction, which sees names as triggers do.
pub(super) async fn within(connection: &mut PgConnection, table: &Table) -> Result<Recaptured> {
    let shape = Shape::of(connection, table).await?;
    if kept_of(connection, &shape).await? == 0 {
        return Ok(Recaptured::default());
    }
    // One at a time: the second finds what the first has left.
    sqlx::query("select pg_advisory_xact_lock(hashtextextended('postrider.recapture ' || $1, 0))")
        .bind(&shape.name)
        .execute(&mut *connection)
        .await?;
    let fence = Fence::around(connection, shape.oid).await?;
    let name = &shape.name;
    let made = format!(
        "create or replace function pg_temp.postrider_recapture(tg_op text, tg_relid oid, old {name}, new {name}, kept_parent json, kept_columns text[]) returns text
             language plpgsql as {};
         create or replace function {ROW_FUNCTION} returns text language sql security definer set search_path = pg_catalog, pg_temp as {};
         create or replace function pg_temp.postrider_recapture_all(out done bigint, out first bigint) language plpgsql as {};
         create or replace function pg_temp.postrider_recapture_each(out done bigint, out first bigint) language plpgsql as {}",
        dollar_quoted(&generate::again(table, &shape)?),
        dollar_quoted(&format!(
            "select pg_temp.postrider_recapture($1, $2, json_populate_record(null::{name}, $3), json_populate_record(null::{name}, $4), $5,
                 array(select json_object_keys(coalesce($4, $3))))"
        )),
        dollar_quoted(&one_by_one(table, &shape, false)),
        dollar_quoted(&one_by_one(table, &shape, true)),
    );
    sqlx::raw_sql(AssertSqlSafe(made)).execute(&mut *connection).await?;
    hand_over(connection, ROW_FUNCTION, shape.oid).await?;
    // A handler for each costs a transaction below this one for each: only where one is needed.
    let mut savepoint = connection.begin().await?;
    let done: sqlx::Result<(i64, Option<i64>)> =
        sqlx::query_as("select done, first from pg_temp.postrider_recapture_all()")
            .persistent(false)
            .fetch_one(&mut *savepoint)
            .await;
    let (writes, first) = match done {
        Ok(done) => {
            savepoint.commit().await?;
            done
        }
        Err(sqlx::Error::Database(_)) => {
            savepoint.rollback().await?;
            sqlx::query_as("select done, first from pg_temp.postrider_recapture_each()")
                .persistent(false)
                .fetch_one(&mut *connection)
                .await?
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(fence) = fence {
        fence.close(connection).await?;
    }
    let dropped = format!(
        "drop function pg_temp.postrider_recapture_all(); drop function pg_temp.postrider_recapture_each();
         drop function {ROW_FUNCTION};
         drop function pg_temp.postrider_recapture(text, oid, {name}, {name}, json, text[])"
    );
    sqlx::raw_sql(AssertSqlSafe(dropped)).execute(&mut *connection).await?;
    let refused = match first {
        Some(failure) => kept(connection, &Which::Failure(failure)).await?.1.pop(),
        None => None,
    };
    Ok(Recaptured { writes: writes.unsigned_abs(), refused })
}

/// The body of a function that makes the events of what is kept, oldest first: how many writes, and the first that cannot be recorded.
/// Behind that one its key waits, and everything if nobody knows its key.
fn one_by_one(table: &Table, shape: &Shape, is_careful: bool) -> String {
    let (name, of_table) = (&shape.name, of_table(shape.oid));
    let known: Vec<&str> = shape.columns.iter().map(|column| column.literal.as_str()).collect();
    let (before, behind) = if is_careful {
        (
            "        if failure.key is null and blocked <> '{}' then exit; end if;
        if failure.key = any (blocked) then continue; end if;
        begin\n",
            "        exception when others then
            reason := sqlerrm;
            state := sqlstate;
            update postrider.capture_failures f set sqlstate = state, message = reason where f.failure = failure.failure;
            first := coalesce(first, failure.failure);
            if failure.key is null then exit; end if;
            blocked := blocked || failure.key;
        end;\n",
        )
    } else {
        ("", "")
    };
    format!(
        "
declare
    failure record;
    setting record;
    its_table oid;
    -- Whoever it was handed over to could alter it from within.
    made constant tid := (select p.ctid from pg_proc p where p.oid = '{ROW_FUNCTION}'::regprocedure);
    named boolean;
    strange text;
    blocked text[] := '{{}}';
    state text;
    reason text;
begin
    done := 0;
    for failure in
        select * from postrider.capture_failures f
        where {of_table}
        order by f.failure
    loop
{before}            for setting in select s.key, s.value from json_each_text(failure.context) s where s.key = any (array[{settings}]::text[]) loop
                perform set_config(setting.key, coalesce(setting.value, ''), true);
            end loop;
            -- Columns are known by their numbers, as long as it is the same table.
            its_table := postrider.kept_table(failure.relation, failure.relid, failure.origin, failure.kept_by, postrider.here());
            named := failure.columns is null or failure.relid is distinct from its_table;
            strange := case when named and failure.operation <> 'TRUNCATE' then (
                select k.name from json_object_keys(coalesce(failure.new_row, failure.old_row)) k (name) where k.name <> all (array[{known}]) limit 1) end;
            if strange is not null then
                raise exception using errcode = '42703', message = format('the row that was kept has a column %s, and %s has none', strange, {table});
            end if;
            if made is distinct from (select p.ctid from pg_proc p where p.oid = '{ROW_FUNCTION}'::regprocedure) then
                raise exception using errcode = '42501', message = 'a function of the table''s owner has altered the one that makes its events';
            end if;
            perform pg_temp.postrider_recapture_row(failure.operation,
                (case when failure.operation = 'TRUNCATE' then its_table else {table}::regclass end)::oid,
                case when named then failure.old_row else postrider.kept_row(failure.old_row, failure.columns, failure.relid) end,
                case when named then failure.new_row else postrider.kept_row(failure.new_row, failure.columns, failure.relid) end,
                case when named or failure.parent_relid is distinct from {parent} or json_typeof(failure.parent_row) <> 'object' then failure.parent_row
                     else postrider.kept_row(failure.parent_row, failure.parent_columns, failure.parent_relid) end);
            {intact}
            delete from postrider.capture_failures f where f.failure = failure.failure;
            done := done + 1;
{behind}    end loop;
end
",
        known = known.join(", "),
        table = literal(name),
        parent = shape.parent.as_ref().map_or_else(|| "null".to_owned(), |parent| format!("{}::oid", parent.oid)),
        settings = settings(table).join(", "),
        intact = fence::intact(SEARCH_PATH),
    )
}

/// The settings that a trigger keeps, and none else: a kept row is what the table's owner says it is. Those of one's own have a dot.
fn settings(table: &Table) -> Vec<String> {
    let declared = table.context.iter().map(String::as_str).filter(|name| name.contains('.'));
    std::iter::once("postrider.context").chain(declared).map(literal).collect()
}

/// Lets triggers look no further where nothing is kept any more. Whoever may not, or comes in the way of somebody, leaves it: they look
/// a little longer.
pub(crate) async fn settle(connection: &mut PgConnection) {
    if let Err(error) = sqlx::query("select postrider.settle_failures()").execute(connection).await {
        tracing::debug!(%error, "triggers go on looking for kept events");
    }
}

/// Some of what is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// By its number.
    Failure(i64),
    /// All of a table, by the name that it is kept under.
    Relation(String),
}

impl Which {
    fn parts(&self) -> (Option<i64>, Option<&str>) {
        match self {
            Self::Failure(failure) => (Some(*failure), None),
            Self::Relation(relation) => (None, Some(relation)),
        }
    }
}

/// How much is kept of this, and the first few.
pub async fn kept(connection: &mut PgConnection, which: &Which) -> Result<(u64, Vec<Kept>)> {
    let (failure, relation) = which.parts();
    let count: i64 = sqlx::query_scalar(
        "select count(*) from postrider.capture_failures f where f.failure = $1 or f.relation = $2",
    )
    .bind(failure)
    .bind(relation)
    .fetch_one(&mut *connection)
    .await?;
    let first = sqlx::query_as(
        "select f.failure, f.relation, f.operation, f.key, f.sqlstate, f.message, f.failed_at
         from postrider.capture_failures f where f.failure = $1 or f.relation = $2 order by f.failure limit 5",
    )
    .bind(failure)
    .bind(relation)
    .fetch_all(connection)
    .await?;
    Ok((count.unsigned_abs(), first))
}

/// Lets go of what is kept: its events will never be recorded. How many writes it was.
pub async fn discard(connection: &mut PgConnection, which: &Which) -> Result<u64> {
    let (failure, relation) = which.parts();
    let gone =
        sqlx::query("delete from postrider.capture_failures f where f.failure = $1 or f.relation = $2")
            .bind(failure)
            .bind(relation)
            .execute(&mut *connection)
            .await?;
    settle(connection).await;
    Ok(gone.rows_affected())
}
