//! What is installed against what is declared.

use std::collections::{BTreeMap, BTreeSet};

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use super::declaration::{Replicated, Table};
use super::departed;
use super::difference::{Difference, Plan, State};
use super::expressions;
use super::failure::{Error, Result};
use super::generate::{self, TRIGGER, literal};
use super::partitions::{self, Watch, on_partitions};
use super::recorder::Recorder;
use super::shape::{ParentShape, Shape};

/// On every captured table, for each row.
const ROWS: &str = TRIGGER;
/// On every captured table, for a TRUNCATE.
pub(super) const TRUNCATE: &str = "00_postrider_truncate";
/// On the parents of captured tables.
const DEPARTED: &str = "00_postrider_departed";

/// Of every function of ours.
pub(super) const SEARCH_PATH: &str = "pg_catalog, pg_temp";

/// A trigger of ours, as it stands.
pub(super) struct Found {
    pub(super) relation: i64,
    pub(super) relation_name: String,
    pub(super) name: String,
    enabled: u8,
    pub(super) inherited: bool,
    /// Whether it is made as we make it.
    is_whole: bool,
    /// Whether its function belongs to the table's owner and has the search path and the rights that it was given.
    is_safe: bool,
    body: String,
    function: String,
    definition: String,
    function_definition: String,
}

impl Found {
    /// Whether it fires when it should.
    fn fires(&self, replicated: Replicated) -> bool {
        self.enabled == if replicated == Replicated::Capture { b'A' } else { b'O' }
    }

    /// Whether it has a name of ours.
    fn is_ours(&self) -> bool {
        [ROWS, TRUNCATE, DEPARTED].contains(&self.name.as_str())
    }

    /// Its name, quoted.
    fn ident(&self) -> String {
        format!("\"{}\"", self.name.replace('"', "\"\""))
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
    sqlx::query("select set_config('search_path', $1, true)").bind(SEARCH_PATH).execute(connection).await?;
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
        wanted.extend(doubles(&shape, &found).map(|double| (double.relation, double.name.as_str())));
        // Those of its partitions that were detached go with its own.
        wanted.extend(strays(&shape, &found).map(|stray| (stray.relation, TRUNCATE)));
        plan.tables.push(captured(connection, table, &shape, &body, &found).await?);
        parents.add(&shape);
    }
    for (parent, columns) in parents.0.values() {
        wanted.push((parent.oid, DEPARTED));
        plan.tables.push(departing(connection, parent, columns, &found).await?);
    }
    let captured: Vec<i64> = seen.keys().copied().collect();
    if let Some((table, partition)) = partitions::overlap(connection, &captured, &captured).await? {
        return Err(Error::Overlap { table, partition });
    }
    let mut orphans = Vec::new();
    for one in found.iter().filter(|found| !found.inherited) {
        if !wanted.contains(&(one.relation, one.name.as_str())) {
            orphans.push(one.relation);
            let recorder = Recorder::of_orphan(connection, &one.relation_name).await?;
            plan.tables.push(orphan(one, &found, recorder));
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
    pub(super) async fn departing(
        &self,
        connection: &mut PgConnection,
        shape: &Shape,
        found: &[Found],
    ) -> Result<Option<Difference>> {
        let Some((parent, columns)) = shape.parent.as_ref().and_then(|parent| self.0.get(&parent.oid)) else {
            return Ok(None);
        };
        Ok(Some(departing(connection, parent, columns, found).await?))
    }
}

/// Triggers for TRUNCATE on tables that were partitions of this one: a detached partition loses all its other triggers.
fn strays<'a>(shape: &Shape, found: &'a [Found]) -> impl Iterator<Item = &'a Found> {
    let ours = found.iter().find(|found| found.relation == shape.oid && found.name == ROWS);
    let function = ours.filter(|_| shape.partitioned).map(|ours| ours.function.clone());
    let oid = shape.oid;
    found.iter().filter(move |one| {
        function.as_ref() == Some(&one.function)
            && one.name == TRUNCATE
            && one.relation != oid
            && !one.inherited
            && !found.iter().any(|other| other.relation == one.relation && other.name == ROWS)
    })
}

/// Triggers on this table that call its function under another name: every change would be recorded again.
fn doubles<'a>(shape: &Shape, found: &'a [Found]) -> impl Iterator<Item = &'a Found> {
    let oid = shape.oid;
    found.iter().filter(move |one| {
        one.relation == oid && !one.inherited && !one.is_ours() && one.function.contains("capture_")
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
                is_whole: row.try_get("is_whole")?,
                is_safe: row.try_get::<Option<bool>, _>("is_safe")?.unwrap_or_default(),
                body: row.try_get("body")?,
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
    table: &Table,
    shape: &Shape,
    body: &str,
    found: &[Found],
) -> Result<Difference> {
    let replicated = table.replicated;
    let recorder = Recorder::of(table, shape);
    let rule = recorder.found(connection).await?;
    let function = function_name(connection, shape.oid, "capture").await?;
    let name = &shape.name;
    let ours: Vec<&Found> = found
        .iter()
        .filter(|found| found.relation == shape.oid && (found.name == ROWS || found.name == TRUNCATE))
        .collect();
    let state = match ours.as_slice() {
        [] => State::Missing,
        [one] if one.name == TRUNCATE => State::Missing,
        some if some.iter().any(|found| !found.is_whole) => State::Disabled,
        [_] => State::Outdated,
        both if both.iter().any(|found| found.body != body || !found.is_safe) => State::Outdated,
        _ if !recorder.is(rule.as_ref()) => State::Outdated,
        both if both.iter().any(|found| !found.fires(replicated)) => State::Disabled,
        _ => State::Installed,
    };
    let partitions_off = found.iter().any(|found| {
        found.inherited
            && !found.fires(replicated)
            && found.function == ours.first().map_or("", |ours| &ours.function)
    });
    let state = if state == State::Installed && partitions_off { State::Disabled } else { state };
    let doubles: Vec<&Found> = doubles(shape, found).collect();
    let mut notes = remarks(shape, &function, &ours, &doubles);
    let moved = if shape.partitioned { partitions::moved(connection, shape).await? } else { Vec::new() };
    notes.extend(moved.iter().cloned());
    let mut statements = Vec::new();
    if state != State::Installed {
        statements.push(create_function(&function, body));
        statements.push(format!("revoke all on function {function}() from public"));
        statements.push(hand_over(&function, name));
        statements.push(recorder.make());
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
    statements
        .extend(doubles.iter().map(|double| format!("drop trigger if exists {} on {name}", double.ident())));
    if shape.partitioned && (state != State::Installed || !is_watched || !moved.is_empty()) {
        statements.push(format!("select postrider.note_partitions({}::pg_catalog.regclass)", literal(name)));
    }
    let is_outdated = !moved.is_empty() || !is_watched || !strays.is_empty() || !doubles.is_empty();
    let state = if state == State::Installed && is_outdated { State::Outdated } else { state };
    let reverse = if let Some(before) = ours.first() {
        vec![recorder.back(rule.as_ref()), create_function(&function, &before.body)]
    } else {
        undone.extend([
            format!("drop trigger if exists \"{ROWS}\" on {name}"),
            format!("drop trigger if exists \"{TRUNCATE}\" on {name}"),
            format!("drop function if exists {function}()"),
            recorder.back(None),
        ]);
        undone
    };
    Ok(Difference { table: name.clone(), state, statements, reverse, notes })
}

/// What is to be said of the triggers that are there, and of the table.
fn remarks(shape: &Shape, function: &str, ours: &[&Found], doubles: &[&Found]) -> Vec<String> {
    let mut notes = Vec::new();
    if let [one] = ours {
        let other = if one.name == ROWS { TRUNCATE } else { ROWS };
        notes.push(format!("the trigger \"{other}\" is gone"));
    }
    for changed in ours.iter().filter(|found| !found.is_whole) {
        let Found { name, definition, .. } = changed;
        notes.push(format!(
            "the trigger \"{name}\" was changed by hand and does not fire for every change: {definition}"
        ));
    }
    if ours.iter().any(|found| !found.is_safe) {
        notes.push(format!(
            "the function {function}() has not the owner, the rights or the search path that it was given"
        ));
    }
    for double in doubles {
        notes.push(format!("the trigger {} records every change once more", double.ident()));
    }
    if shape.unlogged {
        notes.push("it is unlogged: a crash empties it, and no event tells of that".to_owned());
    }
    notes
}

fn create_function(name: &str, body: &str) -> String {
    format!(
        "create or replace function {name}() returns trigger\n    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp\nas {}",
        dollar_quoted(body)
    )
}

/// The table's owner gets it: what the table's types and casts make it do, it does with his rights.
///
/// With the types that ours is declared with: whoever may install may create another of its name that fits a bare literal better.
fn hand_over(function: &str, table: &str) -> String {
    format!(
        "select postrider.hand_over({}::pg_catalog.regprocedure, {}::pg_catalog.regclass)",
        literal(&format!("{function}()")),
        literal(table)
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

/// Whether whoever asks could give a function to the owner of the table `c`, who must be let to have one.
const MAY_GIVE: &str = "pg_catalog.pg_has_role(c.relowner, 'member')
    and (pg_catalog.current_setting('is_superuser') operator(pg_catalog.=) 'on'::pg_catalog.text or pg_catalog.has_schema_privilege(c.relowner, 'postrider', 'create'))";

/// It belongs to the parent's owner, as that of a captured table does, unless whoever installs has no right to give it to him.
fn create_remember(function: &str, parent: &str, body: &str) -> [String; 3] {
    let settings = "set timezone = 'UTC' set intervalstyle = 'iso_8601' set extra_float_digits = 1 set bytea_output = 'hex' set datestyle = 'ISO, MDY'";
    [
        format!(
            "create or replace function {function}() returns trigger\n    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp {settings}\nas {}",
            dollar_quoted(body)
        ),
        format!("revoke all on function {function}() from public"),
        format!(
            "{} from pg_catalog.pg_class c where c.oid operator(pg_catalog.=) {}::pg_catalog.regclass and {MAY_GIVE}",
            hand_over(function, parent),
            literal(parent)
        ),
    ]
}

/// The trigger of a parent.
async fn departing(
    connection: &mut PgConnection,
    parent: &ParentShape,
    columns: &BTreeSet<String>,
    found: &[Found],
) -> Result<Difference> {
    let name = &parent.name;
    let function = function_name(connection, parent.oid, "departed").await?;
    let body = departed::remember(parent, columns);
    let ours = found.iter().find(|found| found.relation == parent.oid && found.name == DEPARTED);
    let state = match ours {
        None => State::Missing,
        Some(ours) if ours.body != body => State::Outdated,
        Some(ours) if !ours.is_safe && may_give(connection, parent.oid).await? => State::Outdated,
        Some(ours) if !ours.is_whole || !ours.fires(Replicated::Capture) => State::Disabled,
        Some(_) => State::Installed,
    };
    let mut statements = Vec::new();
    if state != State::Installed {
        statements.extend(create_remember(&function, name, &body));
        statements.push(format!("drop trigger if exists \"{DEPARTED}\" on {name}"));
        statements.push(format!(
            "create trigger \"{DEPARTED}\" after delete on {name} for each row execute function {function}()"
        ));
        statements.extend(enable(name, &[DEPARTED], Replicated::Capture));
        if parent.partitioned {
            statements.push(enable_clones(name, DEPARTED, Replicated::Capture));
        }
    }
    let reverse = match ours {
        Some(_) => Vec::new(),
        None => vec![
            format!("drop trigger if exists \"{DEPARTED}\" on {name}"),
            format!("drop function if exists {function}()"),
        ],
    };
    let notes = vec!["as a parent: what hangs on it is captured".to_owned()];
    Ok(Difference { table: name.clone(), state, statements, reverse, notes })
}

async fn may_give(connection: &mut PgConnection, table: i64) -> Result<bool> {
    let asked = format!("select {MAY_GIVE} from pg_class c where c.oid = $1::bigint::oid");
    Ok(sqlx::query_scalar(AssertSqlSafe(asked)).bind(table).fetch_one(connection).await?)
}

/// With what it records by, and what that lets through.
fn orphan(one: &Found, found: &[Found], recorder: Option<(Recorder, String)>) -> Difference {
    let (name, table) = (&one.name, &one.relation_name);
    let mut statements = Vec::new();
    // With the last trigger of a table goes its function; that of a detached partition is its table's.
    let is_shared = found
        .iter()
        .any(|other| other.function == one.function && other.relation != one.relation && !other.inherited);
    let is_last = found
        .iter()
        .rfind(|other| other.function == one.function && other.relation == one.relation && !other.inherited)
        .is_some_and(|last| last.name == one.name);
    let goes = !one.function.contains("remember_departed") && is_last && !is_shared;
    if goes
        && one.name != DEPARTED
        && found.iter().any(|other| other.function == one.function && other.inherited)
    {
        statements.push(partitions::unwatch(table));
    }
    let ident = one.ident();
    statements.push(format!("drop trigger if exists {ident} on {table}"));
    if goes {
        statements.push(format!("drop function if exists {}", one.function));
        statements
            .push(format!("drop function if exists {}", one.function.replacen("capture_", "watch_", 1)));
    }
    let mut reverse = Vec::new();
    if let Some((recorder, rule)) = recorder.filter(|_| goes && one.name != DEPARTED) {
        statements.push(recorder.back(None));
        reverse.push(recorder.back(Some(&rule)));
    }
    reverse.extend([
        one.function_definition.trim_end().to_owned(),
        one.definition.clone(),
        format!("alter table {table} enable always trigger {ident}"),
    ]);
    Difference {
        table: table.clone(),
        state: State::Orphaned,
        statements,
        reverse,
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
