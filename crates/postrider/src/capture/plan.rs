//! What is installed against what is declared.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use super::declaration::Table;
use super::failure::{Error, Result};
use super::generate::{self, TRIGGER, literal};
use super::recapture;
use super::shape::Shape;

/// On every captured table, for each row.
const ROWS: &str = TRIGGER;
/// On every captured table, for a TRUNCATE.
const TRUNCATE: &str = "00_postrider_truncate";
/// On the parents of captured tables.
const DEPARTED: &str = "00_postrider_departed";

/// How a table's triggers stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// There is none.
    Missing,
    /// As declared.
    Installed,
    /// Of another declaration, or of columns that have changed since.
    Outdated,
    /// Switched off, or only on in ordinary sessions.
    Disabled,
    /// On a table that is not declared.
    Orphaned,
}

impl State {
    /// In a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Installed => "installed",
            Self::Outdated => "outdated",
            Self::Disabled => "disabled",
            Self::Orphaned => "orphaned",
        }
    }
}

/// One table of a plan.
#[derive(Debug, Clone)]
pub struct Difference {
    /// The table, quoted, with its schema.
    pub table: String,
    /// How its triggers stand.
    pub state: State,
    /// What brings them to where they should be.
    pub statements: Vec<String>,
    /// What takes that back.
    pub reverse: Vec<String>,
}

/// What is installed against what is declared.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Declared tables and their parents, then orphans.
    pub tables: Vec<Difference>,
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_done(&self) -> bool {
        self.tables.iter().all(|table| table.state == State::Installed)
    }
}

/// A trigger of ours, as it stands.
struct Found {
    relation: i64,
    relation_name: String,
    name: String,
    always: bool,
    inherited: bool,
    body: String,
    arguments: Vec<u8>,
    function: String,
}

/// Compares the declarations with what is installed.
pub async fn plan(connection: &mut PgConnection, tables: &[Table]) -> Result<Plan> {
    let found = installed(connection).await?;
    let mut seen: BTreeMap<i64, &Table> = BTreeMap::new();
    let mut parents: BTreeSet<(String, String)> = BTreeSet::new();
    let mut plan = Plan::default();
    let mut wanted: Vec<(i64, &str)> = Vec::new();
    for table in tables {
        let shape = Shape::of(connection, table).await?;
        if let Some(first) = seen.insert(shape.oid, table) {
            return Err(Error::Twice { first: first.name.clone(), second: table.name.clone() });
        }
        check_expressions(connection, table, &shape).await?;
        let body = generate::function(table, &shape)?;
        wanted.extend([(shape.oid, ROWS), (shape.oid, TRUNCATE)]);
        plan.tables.push(captured(connection, &shape, &body, &found).await?);
        if let Some(parent) = &table.parent {
            parents.insert((parent.table.clone(), parent.column.clone()));
        }
    }
    for (parent, column) in &parents {
        let shape = Shape::of(connection, &Table::new(parent.clone(), "parent")).await?;
        wanted.push((shape.oid, DEPARTED));
        plan.tables.push(departing(&shape, column, &found));
    }
    for found in found.iter().filter(|found| !found.inherited) {
        if !wanted.contains(&(found.relation, found.name.as_str())) {
            plan.tables.push(orphan(found));
        }
    }
    Ok(plan)
}

async fn installed(connection: &mut PgConnection) -> Result<Vec<Found>> {
    let rows = sqlx::query(include_str!("sql/installed.sql")).fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            Ok(Found {
                relation: row.try_get("relation")?,
                relation_name: row.try_get("relation_name")?,
                name: row.try_get("name")?,
                always: row.try_get::<i8, _>("enabled")? == b'A'.cast_signed(),
                inherited: row.try_get("inherited")?,
                body: row.try_get("body")?,
                arguments: row.try_get("tgargs")?,
                function: row.try_get("function")?,
            })
        })
        .collect()
}

/// The row and the truncate trigger of one table.
async fn captured(
    connection: &mut PgConnection,
    shape: &Shape,
    body: &str,
    found: &[Found],
) -> Result<Difference> {
    let function = function_name(connection, shape).await?;
    let name = &shape.name;
    let ours: Vec<&Found> =
        found.iter().filter(|found| found.relation == shape.oid && found.name != DEPARTED).collect();
    let state = match ours.as_slice() {
        [] => State::Missing,
        [_] => State::Outdated,
        both if both.iter().any(|found| found.body != body) => State::Outdated,
        both if both.iter().any(|found| !found.always) => State::Disabled,
        _ => State::Installed,
    };
    let partitions_off = found.iter().any(|found| {
        found.inherited && !found.always && found.function == ours.first().map_or("", |ours| &ours.function)
    });
    let state = if state == State::Installed && partitions_off { State::Disabled } else { state };
    let mut statements = Vec::new();
    if state != State::Installed {
        statements.push(format!(
            "create or replace function {function}() returns trigger\n    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp\nas {}",
            dollar_quoted(body)
        ));
        statements.push(format!("revoke all on function {function}() from public"));
        statements.push(format!("drop trigger if exists \"{ROWS}\" on {name}"));
        statements.push(format!("drop trigger if exists \"{TRUNCATE}\" on {name}"));
        statements.push(format!(
            "create trigger \"{ROWS}\" after insert or update or delete on {name} for each row execute function {function}()"
        ));
        statements.push(format!(
            "create trigger \"{TRUNCATE}\" before truncate on {name} for each statement execute function {function}()"
        ));
        statements.extend(always(name, &[ROWS, TRUNCATE], shape.partitioned));
    }
    let reverse = vec![
        format!("drop trigger if exists \"{ROWS}\" on {name}"),
        format!("drop trigger if exists \"{TRUNCATE}\" on {name}"),
        format!("drop function if exists {function}()"),
    ];
    Ok(Difference { table: name.clone(), state, statements, reverse })
}

/// `ENABLE ALWAYS` of the triggers; on a partitioned table of every partition's too, because not every version passes it on.
fn always(name: &str, triggers: &[&str], partitioned: bool) -> Vec<String> {
    let mut statements: Vec<String> = triggers
        .iter()
        .map(|trigger| format!("alter table {name} enable always trigger \"{trigger}\""))
        .collect();
    if partitioned {
        statements.push(format!(
            "do $postrider$\ndeclare\n    part regclass;\nbegin\n    for part in select relid from pg_partition_tree({}) where parentrelid is not null loop\n        execute format('alter table %s enable always trigger \"{ROWS}\"', part);\n    end loop;\nend\n$postrider$",
            literal(name)
        ));
    }
    statements
}

/// The trigger of a parent.
fn departing(shape: &Shape, column: &str, found: &[Found]) -> Difference {
    let name = &shape.name;
    let arguments = [column.as_bytes(), b"\0"].concat();
    let ours = found.iter().find(|found| found.relation == shape.oid && found.name == DEPARTED);
    let state = match ours {
        None => State::Missing,
        Some(ours) if ours.arguments != arguments => State::Outdated,
        Some(ours) if !ours.always => State::Disabled,
        Some(_) => State::Installed,
    };
    let mut statements = Vec::new();
    if state != State::Installed {
        statements.push(format!("drop trigger if exists \"{DEPARTED}\" on {name}"));
        statements.push(format!(
            "create trigger \"{DEPARTED}\" after delete on {name} for each row execute function postrider.remember_departed({})",
            literal(column)
        ));
        statements.extend(always(name, &[DEPARTED], false));
    }
    let reverse = vec![format!("drop trigger if exists \"{DEPARTED}\" on {name}")];
    Difference { table: name.clone(), state, statements, reverse }
}

fn orphan(found: &Found) -> Difference {
    let mut statements =
        vec![format!("drop trigger if exists \"{}\" on {}", found.name, found.relation_name)];
    if found.name == TRUNCATE {
        statements.push(format!("drop function if exists {}", found.function));
    }
    Difference { table: found.relation_name.clone(), state: State::Orphaned, statements, reverse: Vec::new() }
}

/// Unique for the table, and readable.
async fn function_name(connection: &mut PgConnection, shape: &Shape) -> Result<String> {
    Ok(sqlx::query_scalar(
        "select 'postrider.' || quote_ident(case when octet_length(n) <= 63 then n else left(n, 40) || '_' || left(md5(n), 8) end)
         from (select 'capture_' || n.nspname || '_' || c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
               where c.oid = $1::bigint::oid) as f (n)",
    )
    .bind(shape.oid)
    .fetch_one(connection)
    .await?)
}

/// Asks the server about every expression: a function is not looked at before it is called.
async fn check_expressions(connection: &mut PgConnection, table: &Table, shape: &Shape) -> Result<()> {
    let mut expressions: Vec<(String, &str)> = Vec::new();
    let one = |name: &str, expression: &'_ Option<String>| -> Option<(String, String)> {
        expression.as_ref().map(|expression| (name.to_owned(), expression.clone()))
    };
    let single = [one("type", &table.r#type), one("key", &table.key), one("tenant", &table.tenant)];
    for (name, expression) in single.iter().flatten() {
        expressions.push((name.clone(), expression));
    }
    expressions.extend(table.extra.iter().map(|(name, text)| (format!("extra.{name}"), text.as_str())));
    expressions.extend(table.headers.iter().map(|(name, text)| (format!("headers.{name}"), text.as_str())));
    let mut from = format!("(select (null::{}).*) as {}", shape.name, shape.alias);
    if let Some(parent) = &table.parent {
        expressions.insert(0, ("parent.by".to_owned(), &parent.on));
        from = format!("{from} cross join (select (null::{}).*) as parent", parent.table);
    }
    for (key, expression) in expressions {
        // In the extended protocol, which takes one statement: what closes the bracket and goes on is refused.
        let asked = format!("select ({expression}\n)::text from {from} limit 0");
        let answer =
            sqlx::query(AssertSqlSafe(asked)).persistent(false).fetch_optional(&mut *connection).await;
        if let Err(sqlx::Error::Database(error)) = answer {
            let hint = match error.code().as_deref() {
                Some("42P01") => "; another table must be named with its schema",
                Some("42702") => "; put the table's name before the column",
                _ => "",
            };
            return Err(Error::Expression {
                table: table.name.clone(),
                key,
                expression: expression.to_owned(),
                reason: error.message().to_owned(),
                hint,
            });
        }
    }
    Ok(())
}

/// Between dollars that do not occur in it.
pub(super) fn dollar_quoted(body: &str) -> String {
    let mut tag = "$postrider$".to_owned();
    while body.contains(&tag) {
        tag = format!("$postrider_{}$", tag.len());
    }
    format!("{tag}{body}{tag}")
}

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
    let plan = plan(&mut transaction, tables).await?;
    for difference in &plan.tables {
        if difference.state == State::Orphaned && !remove_orphans {
            continue;
        }
        for statement in &difference.statements {
            sqlx::raw_sql(AssertSqlSafe(statement.clone())).execute(&mut *transaction).await?;
        }
    }
    // The tables whose triggers were made anew are locked against writers until the commit: what is kept of them comes before
    // everything that follows.
    for table in tables {
        recapture::within(&mut transaction, table).await?;
    }
    transaction.commit().await?;
    Ok(plan)
}
