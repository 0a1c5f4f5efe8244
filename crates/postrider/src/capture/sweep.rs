//! Whether the triggers of declared tables are at work, by the catalogs alone: this is asked every minute, by a role that has no
//! right to the tables.

use sqlx::{Connection, FromRow, PgConnection};
use time::OffsetDateTime;

use super::captured::captured;
use super::declaration::Table;
use super::difference::{Difference, State};
use super::failure::{Error, Result};
use super::found::{self, Found};
use super::plan::as_triggers_see;
use super::remembering::Parents;
use super::shape::Shape;
use super::{generate, partitions};

/// A declared table whose changes are not captured as declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alarm {
    /// With its schema.
    pub table: String,
    /// How its triggers stand.
    pub state: State,
    /// What that means, and what to do.
    pub reason: String,
}

/// Events of a table that could not be recorded when they happened.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct Missing {
    /// With its schema, quoted; a partition by its own name.
    pub relation: String,
    /// How many writes; counted to 10,000.
    pub failures: i64,
    /// When the first of them was.
    pub oldest: OffsetDateTime,
    /// The error of the last one.
    pub sqlstate: String,
}

/// What is wrong with the triggers of these tables. Partitions that were created since are remembered.
pub async fn sweep(connection: &mut PgConnection, tables: &[Table]) -> Result<Vec<Alarm>> {
    look(connection, tables, true).await
}

/// As [`sweep`], for those who may only look.
pub async fn alarms(connection: &mut PgConnection, tables: &[Table]) -> Result<Vec<Alarm>> {
    look(connection, tables, false).await
}

async fn look(connection: &mut PgConnection, tables: &[Table], learn: bool) -> Result<Vec<Alarm>> {
    let mut transaction = connection.begin().await?;
    as_triggers_see(&mut transaction).await?;
    if learn {
        for table in tables {
            partitions::watch(&mut transaction, table).await?;
        }
    }
    let found = found::installed(&mut transaction).await?;
    let mut alarms = Vec::new();
    let mut shapes = Vec::new();
    let mut parents = Parents::default();
    for table in tables {
        let shape = Shape::of(&mut transaction, table).await;
        if let Ok(shape) = &shape {
            parents.add(table, shape);
        }
        shapes.push((table, shape));
    }
    for (table, shape) in shapes {
        let examined = match shape {
            Ok(shape) => examine(&mut transaction, table, &shape, &parents, &found, learn).await,
            Err(error) => Err(error),
        };
        match examined {
            Ok(differences) => alarms.extend(differences.into_iter().filter_map(alarm)),
            Err(Error::Database(error)) => return Err(error.into()),
            Err(error) => {
                let state =
                    if matches!(error, Error::NoTable { .. }) { State::Missing } else { State::Outdated };
                alarms.push(Alarm { table: table.name.clone(), state, reason: error.to_string() });
            }
        }
    }
    transaction.commit().await?;
    // Siblings share a parent.
    alarms.dedup();
    Ok(alarms)
}

async fn examine(
    connection: &mut PgConnection,
    table: &Table,
    shape: &Shape,
    parents: &Parents,
    found: &[Found],
    learn: bool,
) -> Result<Vec<Difference>> {
    let body = generate::function(table, shape)?;
    let mut differences = vec![captured(connection, table, shape, &body, found).await?];
    if learn && shape.partitioned {
        partitions::learn(connection, shape).await?;
    }
    differences.extend(parents.departing(connection, shape, found).await?);
    Ok(differences)
}

fn alarm(difference: Difference) -> Option<Alarm> {
    let Difference { table, state, notes, .. } = difference;
    let meaning = match state {
        State::Installed | State::Orphaned => return None,
        State::Missing => "its changes make no events: `postrider apply` installs its trigger",
        State::Disabled => {
            "its changes make no events while its trigger is switched off: `postrider apply` switches it on"
        }
        State::Outdated if notes.is_empty() => {
            "its trigger is of another declaration or of columns that have changed: see `postrider plan`, then `postrider apply`"
        }
        State::Outdated => "see `postrider plan`; `postrider apply` takes note",
    };
    let reason = notes.into_iter().chain([meaning.to_owned()]).collect::<Vec<_>>().join("; ");
    Some(Alarm { table, state, reason })
}

/// Triggers of ours that are switched off, whatever is declared.
pub async fn disabled(connection: &mut PgConnection) -> Result<Vec<Alarm>> {
    let mut transaction = connection.begin().await?;
    as_triggers_see(&mut transaction).await?;
    let found = found::installed(&mut transaction).await?;
    transaction.rollback().await?;
    let mut alarms: Vec<Alarm> = found
        .into_iter()
        .filter(Found::is_off)
        .map(|found| Alarm {
            table: found.relation_name,
            state: State::Disabled,
            reason: "its changes make no events while its trigger is switched off: `postrider apply` switches it on".to_owned(),
        })
        .collect();
    alarms.dedup();
    Ok(alarms)
}

/// What waits for `recapture`, by table.
pub async fn missing(connection: &mut PgConnection) -> Result<Vec<Missing>> {
    Ok(sqlx::query_as(
        "select relation, failures, oldest, sqlstate from postrider.uncaptured order by relation",
    )
    .fetch_all(connection)
    .await?)
}
