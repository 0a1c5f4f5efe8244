//! Settling: the cursors of one epoch, appended as one row.

use std::collections::BTreeMap;
use std::sync::Arc;

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::cursor::{Cursor, Late, Snapshot};
use super::error::{Error, Result};

/// Which lanes' cursors a row of progress speaks for.
#[derive(Debug, Clone)]
pub struct Tenure {
    /// The sink's number.
    pub sink: i32,
    /// The sink's name, for messages.
    pub name: String,
    /// Higher than that of everybody who held these lanes before.
    pub epoch: i64,
    /// Of the last row under this epoch.
    pub number: i64,
}

/// What settling returned.
#[derive(Debug, Clone)]
pub struct Settled {
    /// The xid of the settling transaction: bounds everything read before.
    pub bound: u64,
    /// The lanes that are still ours.
    pub lanes: Vec<i16>,
}

/// Appends the complete cursors. Must run in a transaction of its own that begins after the read: its xid becomes their bound.
pub async fn append(
    connection: &mut PgConnection,
    tenure: &mut Tenure,
    cursors: &BTreeMap<i16, Cursor>,
) -> Result<Settled> {
    append_past(connection, tenure, cursors, 0).await
}

/// As [`append`], and says that it moves past so many events.
pub async fn append_past(
    connection: &mut PgConnection,
    tenure: &mut Tenure,
    cursors: &BTreeMap<i16, Cursor>,
    events: u64,
) -> Result<Settled> {
    let columns = Columns::of(cursors);
    let row = sqlx::query(include_str!("sql/settle.sql"))
        .bind(tenure.sink)
        .bind(tenure.epoch)
        .bind(tenure.number + 1)
        .bind(columns.lanes)
        .bind(columns.positions)
        .bind(columns.late_positions)
        .bind(columns.snapshots)
        .bind(columns.snapshot_of)
        .bind(columns.target_of)
        .bind(columns.bounds)
        .bind(i64::try_from(events).unwrap_or(i64::MAX))
        .fetch_optional(connection)
        .await?
        .ok_or_else(|| Error::LeaseLost { sink: tenure.name.clone(), epoch: tenure.epoch })?;
    tenure.number += 1;
    Ok(Settled { bound: parse_xid(row.try_get(0)?)?, lanes: row.try_get(1)? })
}

/// A cursor as stored, with who holds its lane.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Of the lease.
    pub epoch: i64,
    /// Who holds the lane.
    pub owner: Option<Uuid>,
    /// Whether that one's heartbeat is in time.
    pub alive: bool,
    /// Where the lane stands.
    pub cursor: Cursor,
}

/// Loads the cursors that count for a sink.
pub async fn load(connection: &mut PgConnection, sink: i32, name: &str) -> Result<BTreeMap<i16, Stored>> {
    let rows = sqlx::query(include_str!("sql/cursors.sql")).bind(sink).fetch_all(connection).await?;
    rows.iter().map(|row| stored(row, name)).collect()
}

fn stored(row: &PgRow, name: &str) -> Result<(i16, Stored)> {
    let lane = row.try_get("lane")?;
    let missing = || Error::CursorMissing { sink: name.to_owned(), lane };
    let snapshot: Option<String> = row.try_get("snapshot")?;
    let target: Option<String> = row.try_get("target")?;
    let late_position: Option<i64> = row.try_get("late_position")?;
    let cursor = Cursor {
        position: row.try_get::<Option<i64>, _>("position")?.ok_or_else(missing)?,
        snapshot: Arc::from(snapshot.ok_or_else(missing)?),
        late: match (target, late_position) {
            (Some(target), Some(position)) => Some(Late { target: Arc::from(target), position }),
            _ => None,
        },
        bound: Some(parse_xid(row.try_get("bound")?)?),
    };
    let stored = Stored {
        epoch: row.try_get("epoch")?,
        owner: row.try_get("owner")?,
        alive: row.try_get("alive")?,
        cursor,
    };
    Ok((lane, stored))
}

/// An xid8 in its text form.
pub(crate) fn parse_xid(text: &str) -> Result<u64> {
    text.parse().map_err(|_| Error::Xid { text: text.to_owned() })
}

/// Cursors as the arrays of a progress row, each distinct snapshot once.
struct Columns {
    lanes: Vec<i16>,
    positions: Vec<i64>,
    late_positions: Vec<Option<i64>>,
    snapshots: Vec<String>,
    snapshot_of: Vec<i32>,
    target_of: Vec<Option<i32>>,
    bounds: Vec<Option<String>>,
}

impl Columns {
    fn of(cursors: &BTreeMap<i16, Cursor>) -> Self {
        let mut snapshots: Vec<Snapshot> = Vec::new();
        let mut place = |wanted: &Snapshot| -> i32 {
            let index = snapshots.iter().position(|known| known == wanted).unwrap_or_else(|| {
                snapshots.push(Arc::clone(wanted));
                snapshots.len() - 1
            });
            i32::try_from(index + 1).unwrap_or(i32::MAX)
        };
        let snapshot_of = cursors.values().map(|cursor| place(&cursor.snapshot)).collect();
        let target_of =
            cursors.values().map(|cursor| cursor.late.as_ref().map(|late| place(&late.target))).collect();
        Self {
            lanes: cursors.keys().copied().collect(),
            positions: cursors.values().map(|cursor| cursor.position).collect(),
            late_positions: cursors
                .values()
                .map(|cursor| cursor.late.as_ref().map(|late| late.position))
                .collect(),
            snapshots: snapshots.iter().map(std::string::ToString::to_string).collect(),
            snapshot_of,
            target_of,
            bounds: cursors.values().map(|cursor| cursor.bound.map(|bound| bound.to_string())).collect(),
        }
    }
}
