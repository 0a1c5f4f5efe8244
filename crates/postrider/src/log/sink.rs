//! Sinks as the log knows them: a name, a lease and a cursor for every lane, complete from birth.

use std::collections::BTreeMap;
use std::sync::Arc;

use sqlx::{Connection, PgConnection, Row};
use time::OffsetDateTime;

use super::cursor::Cursor;
use super::error::{Error, Result};
use super::progress::{self, Tenure};

/// Where a new sink begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Start {
    /// With what commits from now on.
    #[default]
    Now,
    /// With the oldest event that the log still has.
    Earliest,
    /// With the first event written by a transaction that began at this time or later.
    At(OffsetDateTime),
}

/// Finds the sink or creates it. Only the first call decides where it begins.
pub async fn open(connection: &mut PgConnection, name: &str, start: Start) -> Result<Tenure> {
    if let Some(tenure) = find(connection, name).await? {
        return Ok(tenure);
    }
    let mut transaction = connection.begin().await?;
    // Against the ring being turned: without it a row that is owed to us could be emptied before our cursor is there to hold it.
    // A table lock, because a row lock would take an xid, and the bound's xid must be younger than what is read next.
    sqlx::query("lock table postrider.ring in exclusive mode").execute(&mut *transaction).await?;
    if let Some(tenure) = find(&mut transaction, name).await? {
        return Ok(tenure);
    }
    let row = sqlx::query(
        "select coalesce(pg_sequence_last_value('postrider.seq'), 0), pg_current_snapshot()::text, postrider.lanes()::smallint",
    )
    .fetch_one(&mut *transaction)
    .await?;
    let position = match start {
        Start::Now => row.try_get(0)?,
        Start::Earliest => 0,
        Start::At(time) => position_at(&mut transaction, time).await?.unwrap_or(row.try_get(0)?),
    };
    let snapshot: Arc<str> = Arc::from(row.try_get::<String, _>(1)?);
    let lanes: i16 = row.try_get(2)?;

    sqlx::query("insert into postrider.ring (slot) select generate_series(0, 7) on conflict do nothing")
        .execute(&mut *transaction)
        .await?;
    let sink: i32 = sqlx::query_scalar("insert into postrider.sinks (name) values ($1) returning sink")
        .bind(name)
        .fetch_one(&mut *transaction)
        .await?;
    sqlx::query("insert into postrider.leases (sink, lane, epoch) select $1, lane, 1 from generate_series(0, $2 - 1) lane")
        .bind(sink)
        .bind(i32::from(lanes))
        .execute(&mut *transaction)
        .await?;
    let cursors: BTreeMap<i16, Cursor> =
        (0..lanes).map(|lane| (lane, Cursor::new(position, Arc::clone(&snapshot)))).collect();
    let mut tenure = Tenure { sink, name: name.to_owned(), epoch: 1, number: 0 };
    progress::append(&mut transaction, &mut tenure, &cursors).await?;
    transaction.commit().await?;
    // Nobody holds a lane yet: the first balance brings an epoch of one's own.
    Ok(Tenure { epoch: 0, number: 0, ..tenure })
}

/// Just before the first event of that time. Walks the log once, when a sink is created; there is no index to keep for it.
async fn position_at(connection: &mut PgConnection, time: OffsetDateTime) -> Result<Option<i64>> {
    Ok(sqlx::query_scalar("select min(seq) - 1 from postrider.events where created_at >= $1")
        .bind(time)
        .fetch_one(connection)
        .await?)
}

async fn find(connection: &mut PgConnection, name: &str) -> Result<Option<Tenure>> {
    let sink: Option<(i32, bool)> =
        sqlx::query_as("select sink, is_consumer from postrider.sinks where name = $1")
            .bind(name)
            .fetch_optional(connection)
            .await?;
    match sink {
        // Its lanes are held by whoever has a batch of them, not by a lease.
        Some((_, true)) => Err(Error::IsConsumer { sink: name.to_owned() }),
        Some((sink, false)) => Ok(Some(Tenure { sink, name: name.to_owned(), epoch: 0, number: 0 })),
        None => Ok(None),
    }
}

/// Removes a sink with its cursors; the events it held may then go. Answers whether there was one.
pub async fn forget(connection: &mut PgConnection, name: &str) -> Result<bool> {
    let mut transaction = connection.begin().await?;
    let gone = sqlx::query(
        "with gone as (delete from postrider.sinks where name = $1 returning sink)
         delete from postrider.progress p using gone where p.sink = gone.sink",
    )
    .bind(name)
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(gone.rows_affected() > 0)
}
