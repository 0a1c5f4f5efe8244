//! What is installed against what is declared.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::{Connection, PgConnection, Row};

use super::declaration::{Replicated, Table};
use super::failure::{Error, Result};
use super::generate::{self, TRIGGER, literal};
use super::shape::Shape;
use super::{expressions, partitions};

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
    /// What a person must know besides.
    pub notes: Vec<String>,
}

/// What is installed against what is declared.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Declared tables and their parents, then orphans.
    pub tables: Vec<Difference>,
    /// A declared table with a partition that has an orphaned trigger: together they would fire twice for one row.
    pub(super) twice: Option<(String, String)>,
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_done(&self) -> bool {
        self.tables.iter().all(|table| table.state == State::Installed)
    }
}

/// A trigger of ours, as it stands.
pub(super) struct Found {
    pub(super) relation: i64,
    pub(super) relation_name: String,
    pub(super) name: String,
    enabled: u8,
    pub(super) inherited: bool,
    body: String,
    arguments: Vec<u8>,
    function: String,
    definition: String,
    function_definition: String,
}

impl Found {
    /// Whether it fires when it should.
    fn fires(&self, replicated: Replicated) -> bool {
        self.enabled == if replicated == Replicated::Capture { b'A' } else { b'O' }
    }

    /// Whether it does not fire in ordinary sessions.
    pub(super) fn is_off(&self) -> bool {
        !matches!(self.enabled, b'A' | b'O')
    }
}

/// Compares the declarations with what is installed.
pub async fn plan(connection: &mut PgConnection, tables: &[Table]) -> Result<Plan> {
    let mut transaction = connection.begin().await?;
    as_triggers_see(&mut transaction).await?;
    let plan = within(&mut transaction, tables).await?;
    transaction.rollback().await?;
    Ok(plan)
}

/// The search path of the triggers, for this transaction. Names of types and tables come out as they must be written there, and
/// the same for everybody who compares.
pub(super) async fn as_triggers_see(connection: &mut PgConnection) -> Result<()> {
    sqlx::query("select set_config('search_path', 'pg_catalog, pg_temp', true)").execute(connection).await?;
    Ok(())
}

/// As [`plan`], in the caller's transaction, which sees names as triggers do.
pub(super) async fn within(connection: &mut PgConnection, tables: &[Table]) -> Result<Plan> {
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
        expressions::check(connection, table, &shape).await?;
        let body = generate::function(table, &shape)?;
        wanted.extend([(shape.oid, ROWS), (shape.oid, TRUNCATE)]);
        plan.tables.push(captured(connection, &shape, &body, table.replicated, &found).await?);
        if let Some(parent) = &table.parent {
            parents.insert((parent.table.clone(), parent.column.clone()));
        }
    }
    for (parent, column) in &parents {
        let shape = Shape::of(connection, &Table::new(parent.clone(), "parent")).await?;
        wanted.push((shape.oid, DEPARTED));
        plan.tables.push(departing(&shape, column, &found));
    }
    let captured: Vec<i64> = seen.keys().copied().collect();
    if let Some((table, partition)) = partitions::overlap(connection, &captured, &captured).await? {
        return Err(Error::Overlap { table, partition });
    }
    let mut orphans = Vec::new();
    for found in found.iter().filter(|found| !found.inherited) {
        if !wanted.contains(&(found.relation, found.name.as_str())) {
            orphans.push(found.relation);
            plan.tables.push(orphan(found));
        }
    }
    plan.twice = partitions::overlap(connection, &captured, &orphans).await?;
    Ok(plan)
}

pub(super) async fn installed(connection: &mut PgConnection) -> Result<Vec<Found>> {
    let rows = sqlx::query(include_str!("sql/installed.sql")).fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            Ok(Found {
                relation: row.try_get("relation")?,
                relation_name: row.try_get("relation_name")?,
                name: row.try_get("name")?,
                enabled: row.try_get::<i8, _>("enabled")?.cast_unsigned(),
                inherited: row.try_get("inherited")?,
                body: row.try_get("body")?,
                arguments: row.try_get("tgargs")?,
                function: row.try_get("function")?,
                definition: row.try_get("definition")?,
                function_definition: row.try_get("function_definition")?,
            })
        })
        .collect()
}

/// The row and the truncate trigger of one table.
pub(super) async fn captured(
    connection: &mut PgConnection,
    shape: &Shape,
    body: &str,
    replicated: Replicated,
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
        both if both.iter().any(|found| !found.fires(replicated)) => State::Disabled,
        _ => State::Installed,
    };
    let partitions_off = found.iter().any(|found| {
        found.inherited
            && !found.fires(replicated)
            && found.function == ours.first().map_or("", |ours| &ours.function)
    });
    let state = if state == State::Installed && partitions_off { State::Disabled } else { state };
    let mut notes = Vec::new();
    if let [one] = ours.as_slice() {
        let other = if one.name == ROWS { TRUNCATE } else { ROWS };
        notes.push(format!("the trigger \"{other}\" is gone"));
    }
    let moved = if shape.partitioned { partitions::moved(connection, shape).await? } else { Vec::new() };
    notes.extend(moved.iter().cloned());
    let mut statements = Vec::new();
    if state != State::Installed {
        statements.push(create_function(&function, body));
        statements.push(format!("revoke all on function {function}() from public"));
        statements.push(format!("drop trigger if exists \"{ROWS}\" on {name}"));
        statements.push(format!("drop trigger if exists \"{TRUNCATE}\" on {name}"));
        statements.push(format!(
            "create trigger \"{ROWS}\" after insert or update or delete on {name} for each row execute function {function}()"
        ));
        statements.push(format!(
            "create trigger \"{TRUNCATE}\" before truncate on {name} for each statement execute function {function}()"
        ));
        statements.extend(enable(name, &[ROWS, TRUNCATE], shape.partitioned, replicated));
    }
    if shape.partitioned && (state != State::Installed || !moved.is_empty()) {
        statements.push(format!("select postrider.note_partitions({})", literal(name)));
    }
    let state = if state == State::Installed && !moved.is_empty() { State::Outdated } else { state };
    let reverse = match ours.first() {
        Some(before) => vec![create_function(&function, &before.body)],
        None => vec![
            format!("drop trigger if exists \"{ROWS}\" on {name}"),
            format!("drop trigger if exists \"{TRUNCATE}\" on {name}"),
            format!("drop function if exists {function}()"),
        ],
    };
    Ok(Difference { table: name.clone(), state, statements, reverse, notes })
}

fn create_function(name: &str, body: &str) -> String {
    format!(
        "create or replace function {name}() returns trigger\n    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp\nas {}",
        dollar_quoted(body)
    )
}

/// `ENABLE ALWAYS` of the triggers; on a partitioned table of every partition's too, because not every version passes it on.
fn enable(name: &str, triggers: &[&str], partitioned: bool, replicated: Replicated) -> Vec<String> {
    let enable = if replicated == Replicated::Capture { "enable always" } else { "enable" };
    let mut statements: Vec<String> =
        triggers.iter().map(|trigger| format!("alter table {name} {enable} trigger \"{trigger}\"")).collect();
    if partitioned {
        statements.push(format!(
            "do $postrider$\ndeclare\n    part regclass;\nbegin\n    for part in select relid from pg_partition_tree({}) where parentrelid is not null loop\n        execute format('alter table %s {enable} trigger \"{ROWS}\"', part);\n    end loop;\nend\n$postrider$",
            literal(name)
        ));
    }
    statements
}

/// The trigger of a parent.
pub(super) fn departing(shape: &Shape, column: &str, found: &[Found]) -> Difference {
    let name = &shape.name;
    let arguments = [column.as_bytes(), b"\0"].concat();
    let ours = found.iter().find(|found| found.relation == shape.oid && found.name == DEPARTED);
    let state = match ours {
        None => State::Missing,
        Some(ours) if ours.arguments != arguments => State::Outdated,
        Some(ours) if !ours.fires(Replicated::Capture) => State::Disabled,
        Some(_) => State::Installed,
    };
    let mut statements = Vec::new();
    if state != State::Installed {
        statements.push(format!("drop trigger if exists \"{DEPARTED}\" on {name}"));
        statements.push(format!(
            "create trigger \"{DEPARTED}\" after delete on {name} for each row execute function postrider.remember_departed({})",
            literal(column)
        ));
        statements.extend(enable(name, &[DEPARTED], false, Replicated::Capture));
    }
    let reverse = match ours {
        Some(_) => Vec::new(),
        None => vec![format!("drop trigger if exists \"{DEPARTED}\" on {name}")],
    };
    Difference { table: name.clone(), state, statements, reverse, notes: Vec::new() }
}

fn orphan(found: &Found) -> Difference {
    let mut statements =
        vec![format!("drop trigger if exists \"{}\" on {}", found.name, found.relation_name)];
    if found.name == TRUNCATE {
        statements.push(format!("drop function if exists {}", found.function));
    }
    Difference {
        table: found.relation_name.clone(),
        state: State::Orphaned,
        statements,
        reverse: vec![
            found.function_definition.trim_end().to_owned(),
            found.definition.clone(),
            format!("alter table {} enable always trigger \"{}\"", found.relation_name, found.name),
        ],
        notes: vec![format!("its trigger \"{}\" is of a table that is not declared", found.name)],
    }
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

/// Between dollars that do not occur in it.
pub(crate) fn dollar_quoted(body: &str) -> String {
    let mut tag = "$postrider$".to_owned();
    while body.contains(&tag) {
        tag = format!("$postrider_{}$", tag.len());
    }
    format!("{tag}{body}{tag}")
}
