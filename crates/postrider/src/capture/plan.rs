//! What is installed against what is declared.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::{Connection, PgConnection, Row};

use super::declaration::{Replicated, Table};
use super::difference::{Difference, Plan, State};
use super::expressions;
use super::failure::{Error, Result};
use super::generate::{self, TRIGGER, literal};
use super::partitions::{self, Watch, on_partitions};
use super::shape::{ParentShape, Shape};

/// On every captured table, for each row.
const ROWS: &str = TRIGGER;
/// On every captured table, for a TRUNCATE.
pub(super) const TRUNCATE: &str = "00_postrider_truncate";
/// On the parents of captured tables.
const DEPARTED: &str = "00_postrider_departed";

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
    let (plan, _) = within(&mut transaction, tables).await?;
    transaction.rollback().await?;
    Ok(plan)
}

/// The search path of the triggers, for this transaction. Names of types and tables come out as they must be written there, and
/// the same for everybody who compares.
pub(super) async fn as_triggers_see(connection: &mut PgConnection) -> Result<()> {
    sqlx::query("select set_config('search_path', 'pg_catalog, pg_temp', true)").execute(connection).await?;
    Ok(())
}

/// A declared table, and a partition of it that has an orphaned trigger: together they would fire twice for one row.
pub(super) type Twice = Option<(String, String)>;

/// As [`plan`], in the caller's transaction, which sees names as triggers do.
pub(super) async fn within(connection: &mut PgConnection, tables: &[Table]) -> Result<(Plan, Twice)> {
    let found = installed(connection).await?;
    let mut seen: BTreeMap<i64, &Table> = BTreeMap::new();
    let mut parents = Parents::default();
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
        // Those of its partitions that were detached go with its own.
        wanted.extend(strays(&shape, &found).map(|stray| (stray.relation, TRUNCATE)));
        plan.tables.push(captured(connection, &shape, &body, table.replicated, &found).await?);
        parents.add(&shape);
    }
    for (parent, columns) in parents.0.values() {
        wanted.push((parent.oid, DEPARTED));
        plan.tables.push(departing(parent, columns, &found));
    }
    let captured: Vec<i64> = seen.keys().copied().collect();
    if let Some((table, partition)) = partitions::overlap(connection, &captured, &captured).await? {
        return Err(Error::Overlap { table, partition });
    }
    let mut orphans = Vec::new();
    for one in found.iter().filter(|found| !found.inherited) {
        if !wanted.contains(&(one.relation, one.name.as_str())) {
            orphans.push(one.relation);
            plan.tables.push(orphan(one, &found));
        }
    }
    let twice = partitions::overlap(connection, &captured, &orphans).await?;
    Ok((plan, twice))
}

/// The tables that captured ones hang on, each with the columns by which it is known.
#[derive(Default)]
pub(super) struct Parents(BTreeMap<i64, (ParentShape, BTreeSet<String>)>);

impl Parents {
    /// That of a captured table.
    pub(super) fn add(&mut self, shape: &Shape) {
        if let Some(parent) = &shape.parent {
            let (_, columns) = self.0.entry(parent.oid).or_insert_with(|| (parent.clone(), BTreeSet::new()));
            columns.insert(parent.column.clone());
        }
    }

    /// How the trigger of this one's stands.
    pub(super) fn departing(&self, shape: &Shape, found: &[Found]) -> Option<Difference> {
        let (parent, columns) = self.0.get(&shape.parent.as_ref()?.oid)?;
        Some(departing(parent, columns, found))
    }
}

/// Triggers for TRUNCATE on tables that were partitions of this one: a detached partition loses all its other triggers.
fn strays<'a>(shape: &Shape, found: &'a [Found]) -> impl Iterator<Item = &'a Found> {
    let ours = found.iter().find(|found| found.relation == shape.oid && found.name == ROWS);
    let function = ours.filter(|_| shape.partitioned).map(|ours| ours.function.clone());
    let oid = shape.oid;
    found.iter().filter(move |one| {
        function.as_ref() == Some(&one.function)
            && one.relation != oid
            && !one.inherited
            && !found.iter().any(|other| other.relation == one.relation && other.name == ROWS)
    })
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
    let function = function_name(connection, shape.oid, "capture").await?;
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
        statements.extend(enable(name, &[ROWS, TRUNCATE], replicated));
    }
    let mut undone = Vec::new();
    let mut is_watched = true;
    if shape.partitioned {
        let watch = Watch::of(connection, shape, &function, replicated, found).await?;
        is_watched = watch.is_done();
        // Every one is new to a table that is new.
        notes.extend(watch.notes().filter(|_| state != State::Missing));
        if state != State::Installed {
            statements.push(enable_clones(name, ROWS, replicated));
        }
        if state != State::Installed || !is_watched {
            statements.extend(watch.statements(connection, name, &function, replicated).await?);
        }
        undone = vec![partitions::unwatch(name), watch.reverse()];
    }
    let strays: Vec<&Found> = strays(shape, found).collect();
    statements.extend(
        strays
            .iter()
            .map(|stray| format!("drop trigger if exists \"{TRUNCATE}\" on {}", stray.relation_name)),
    );
    if shape.partitioned && (state != State::Installed || !is_watched || !moved.is_empty()) {
        statements.push(format!("select postrider.note_partitions({})", literal(name)));
    }
    let is_outdated = !moved.is_empty() || !is_watched || !strays.is_empty();
    let state = if state == State::Installed && is_outdated { State::Outdated } else { state };
    let reverse = if let Some(before) = ours.first() {
        vec![create_function(&function, &before.body)]
    } else {
        undone.extend([
            format!("drop trigger if exists \"{ROWS}\" on {name}"),
            format!("drop trigger if exists \"{TRUNCATE}\" on {name}"),
            format!("drop function if exists {function}()"),
        ]);
        undone
    };
    Ok(Difference { table: name.clone(), state, statements, reverse, notes })
}

fn create_function(name: &str, body: &str) -> String {
    format!(
        "create or replace function {name}() returns trigger\n    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp\nas {}",
        dollar_quoted(body)
    )
}

/// How a trigger is switched on.
pub(super) fn enabling(replicated: Replicated) -> &'static str {
    if replicated == Replicated::Capture { "enable always" } else { "enable" }
}

fn enable(name: &str, triggers: &[&str], replicated: Replicated) -> Vec<String> {
    let enable = enabling(replicated);
    triggers.iter().map(|trigger| format!("alter table {name} {enable} trigger \"{trigger}\"")).collect()
}

/// The same of every partition's, because not every version passes it on.
fn enable_clones(name: &str, trigger: &str, replicated: Replicated) -> String {
    on_partitions(name, &[format!("'alter table %s {} trigger \"{trigger}\"', part", enabling(replicated))])
}

/// The trigger of a parent.
fn departing(parent: &ParentShape, columns: &BTreeSet<String>, found: &[Found]) -> Difference {
    let name = &parent.name;
    let arguments: Vec<u8> = columns.iter().flat_map(|column| [column.as_bytes(), b"\0"].concat()).collect();
    let ours = found.iter().find(|found| found.relation == parent.oid && found.name == DEPARTED);
    let state = match ours {
        None => State::Missing,
        Some(ours) if ours.arguments != arguments => State::Outdated,
        Some(ours) if !ours.fires(Replicated::Capture) => State::Disabled,
        Some(_) => State::Installed,
    };
    let mut statements = Vec::new();
    if state != State::Installed {
        let columns: Vec<String> = columns.iter().map(|column| literal(column)).collect();
        statements.push(format!("drop trigger if exists \"{DEPARTED}\" on {name}"));
        statements.push(format!(
            "create trigger \"{DEPARTED}\" after delete on {name} for each row execute function postrider.remember_departed({})",
            columns.join(", ")
        ));
        statements.extend(enable(name, &[DEPARTED], Replicated::Capture));
        if parent.partitioned {
            statements.push(enable_clones(name, DEPARTED, Replicated::Capture));
        }
    }
    let reverse = match ours {
        Some(_) => Vec::new(),
        None => vec![format!("drop trigger if exists \"{DEPARTED}\" on {name}")],
    };
    Difference { table: name.clone(), state, statements, reverse, notes: Vec::new() }
}

fn orphan(one: &Found, found: &[Found]) -> Difference {
    let (name, table) = (&one.name, &one.relation_name);
    let mut statements = Vec::new();
    // With the last trigger of a table goes its function; that of a detached partition is its table's.
    let is_shared = found
        .iter()
        .any(|other| other.function == one.function && other.relation != one.relation && !other.inherited);
    let goes = name == TRUNCATE && !is_shared;
    if goes && found.iter().any(|other| other.function == one.function && other.inherited) {
        statements.push(partitions::unwatch(table));
    }
    statements.push(format!("drop trigger if exists \"{name}\" on {table}"));
    if goes {
        statements.push(format!("drop function if exists {}", one.function));
        statements
            .push(format!("drop function if exists {}", one.function.replacen("capture_", "watch_", 1)));
    }
    Difference {
        table: table.clone(),
        state: State::Orphaned,
        statements,
        reverse: vec![
            one.function_definition.trim_end().to_owned(),
            one.definition.clone(),
            format!("alter table {table} enable always trigger \"{name}\""),
        ],
        notes: vec![format!("its trigger \"{name}\" is of a table that is not declared")],
    }
}

/// Unique for the table and the purpose, and readable.
pub(crate) async fn function_name(
    connection: &mut PgConnection,
    oid: i64,
    purpose: &str,
) -> sqlx::Result<String> {
    sqlx::query_scalar(include_str!("sql/function_name.sql"))
        .bind(oid)
        .bind(purpose)
        .fetch_one(connection)
        .await
}

/// Between dollars that do not occur in it.
pub(crate) fn dollar_quoted(body: &str) -> String {
    let mut tag = "$postrider$".to_owned();
    while body.contains(&tag) {
        tag = format!("$postrider_{}$", tag.len());
    }
    format!("{tag}{body}{tag}")
}
