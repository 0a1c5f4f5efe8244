//! What is installed against what is declared.

use std::collections::BTreeMap;

use sqlx::{Connection, PgConnection};

use super::captured::captured;
use super::declaration::Table;
use super::difference::Plan;
use super::failure::{Error, Result};
use super::found::{DEPARTED, ROWS, TRUNCATE, doubles, installed, strays};
use super::orphan::orphan;
use super::recorder::Recorder;
use super::remembering::Parents;
use super::shape::Shape;
use super::{expressions, generate, partitions};

/// Of every function of ours.
pub(super) const SEARCH_PATH: &str = "pg_catalog, pg_temp";

/// Compares the declarations with what is installed.
pub async fn plan(connection: &mut PgConnection, tables: &[Table]) -> Result<Plan> {
    let mut transaction = connection.begin().await?;
    as_triggers_see(&mut transaction).await?;
    let (plan, _) = within(&mut transaction, tables).await?;
    transaction.rollback().await?;
    Ok(plan)
}

/// The search path of the triggers, for this transaction. Names of types and tables come out as they must be written there, and
/// the same for everybody who compares, and so do strings. Columns may have the names of our own variables, whatever the server is told
/// to think of that.
pub(super) async fn as_triggers_see(connection: &mut PgConnection) -> Result<()> {
    sqlx::query(
        "select set_config('search_path', $1, true), set_config('standard_conforming_strings', 'on', true),
                set_config('quote_all_identifiers', 'off', true), set_config('plpgsql.extra_errors', 'none', true)",
    )
    .bind(SEARCH_PATH)
    .execute(connection)
    .await?;
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
        if let Some(parent) = &shape.parent {
            parent.check(connection, table).await?;
        }
        expressions::check(connection, table, &shape).await?;
        let body = generate::function(table, &shape)?;
        wanted.extend([(shape.oid, ROWS), (shape.oid, TRUNCATE)]);
        wanted.extend(doubles(&shape, &found).map(|double| (double.relation, double.name.as_str())));
        // Those of its partitions that were detached go with its own.
        wanted.extend(strays(&shape, &found).map(|stray| (stray.relation, TRUNCATE)));
        plan.tables.push(captured(connection, table, &shape, &body, &found).await?);
        parents.add(table, &shape);
    }
    for (parent, difference) in parents.all(connection, &found).await? {
        wanted.push((parent, DEPARTED));
        plan.tables.push(difference);
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
