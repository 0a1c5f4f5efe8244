//! Parking: events that a sink refused, kept whole with their history, in order per key.
//!
//! Parking happens in the transaction that moves the cursor past the event, so that it is in one place or the other. Who holds a lane
//! parks for it and retries what is parked in it: the lease is the claim, and its owner the fence. Every transaction that parks,
//! resolves, retries or discards locks the sink's row first. Without that an event could be put behind one that is discarded at the same
//! moment, and wait for ever.

pub mod admin;

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{Connection, FromRow as _, PgConnection, Row};
use uuid::Uuid;

use super::error::Result;
use super::record::Record;

/// Who holds lanes of a sink: what is done to parked events counts only while it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The sink's number.
    pub sink: i32,
    /// The reader that holds the lanes.
    pub reader: Uuid,
}

/// Why an event was refused, and when it is tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// For machines.
    pub kind: String,
    /// For people.
    pub reason: String,
    /// `None`: it is dead, and waits for a person.
    pub retry_in: Option<Duration>,
}

/// An event to be parked.
#[derive(Debug, Clone)]
pub struct ToPark {
    /// As it stands in the log.
    pub record: Record,
    /// `None`: it was not tried, it only waits behind an earlier event of its key.
    pub refused: Option<Refused>,
}

/// Events to be parked together with the progress past them, in order of delivery.
#[derive(Debug, Clone, Default)]
pub struct Parking {
    /// Whether later events of a key wait behind an earlier one.
    pub strict: bool,
    /// In order of delivery.
    pub events: Vec<ToPark>,
}

/// A parked event whose time has come.
#[derive(Debug, Clone)]
pub struct Due {
    /// As it stood in the log.
    pub record: Record,
    /// How often it was refused so far.
    pub attempts: u32,
}

/// What came of trying a parked event again.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The event.
    pub id: Uuid,
    /// What came of it.
    pub outcome: Tried,
}

/// What came of trying a parked event again.
#[derive(Debug, Clone)]
pub enum Tried {
    /// The sink has it.
    Delivered,
    /// The sink's filter does not want it any more.
    Filtered,
    /// Once more.
    Refused(Refused),
}

impl Tried {
    fn refusal(&self) -> Option<&Refused> {
        match self {
            Self::Refused(refused) => Some(refused),
            Self::Delivered | Self::Filtered => None,
        }
    }

    /// As it is stored of an event that is done with.
    fn fate(&self) -> Option<&'static str> {
        match self {
            Self::Delivered => Some("delivered"),
            Self::Filtered => Some("filtered"),
            Self::Refused(_) => None,
        }
    }
}

/// Parks events, except in lanes that were lost. Inside the transaction that stores the progress past them, which has locked the sink.
pub(super) async fn park(
    connection: &mut PgConnection,
    holder: Holder,
    parking: &Parking,
    lost: &[i16],
) -> Result<()> {
    let events: Vec<&ToPark> =
        parking.events.iter().filter(|event| !lost.contains(&event.record.lane)).collect();
    let records = || events.iter().map(|event| &event.record);
    let refused = || events.iter().map(|event| event.refused.as_ref());
    sqlx::query(include_str!("sql/park.sql"))
        .bind(holder.sink)
        .bind(parking.strict)
        .bind(records().map(|record| record.id).collect::<Vec<_>>())
        .bind(records().map(|record| record.lane).collect::<Vec<_>>())
        .bind(records().map(|record| record.seq).collect::<Vec<_>>())
        .bind(records().map(|record| record.source_id.as_deref()).collect::<Vec<_>>())
        .bind(records().map(|record| record.r#type.as_str()).collect::<Vec<_>>())
        .bind(records().map(|record| record.entity.as_deref()).collect::<Vec<_>>())
        .bind(records().map(|record| record.key.as_deref()).collect::<Vec<_>>())
        .bind(records().map(|record| record.tenant.as_deref()).collect::<Vec<_>>())
        .bind(records().map(|record| record.payload.as_str()).collect::<Vec<_>>())
        .bind(records().map(|record| record.headers.as_deref()).collect::<Vec<_>>())
        .bind(records().map(|record| record.created_at).collect::<Vec<_>>())
        .bind(refused().map(|refused| Some(refused?.kind.as_str())).collect::<Vec<_>>())
        .bind(refused().map(|refused| Some(refused?.reason.as_str())).collect::<Vec<_>>())
        .bind(refused().map(|refused| Some(refused?.retry_in?.as_secs_f64())).collect::<Vec<_>>())
        .execute(connection)
        .await?;
    Ok(())
}

/// The parked events of these lanes that are due, those behind them with `ordering: strict` included, in order of delivery. Of lanes
/// that somebody else holds by now there are none.
pub async fn due(
    connection: &mut PgConnection,
    holder: Holder,
    lanes: &[i16],
    strict: bool,
    limit: u32,
) -> Result<Vec<Due>> {
    let rows = sqlx::query(include_str!("sql/parked_due.sql"))
        .bind(holder.sink)
        .bind(holder.reader)
        .bind(strict)
        .bind(i64::from(limit))
        .bind(lanes)
        .fetch_all(connection)
        .await?;
    rows.iter().map(due_of).collect()
}

/// When the next parked event of these lanes is due, as far as they are still held: from now, zero if it is already.
pub async fn due_in(
    connection: &mut PgConnection,
    holder: Holder,
    lanes: &[i16],
) -> Result<Option<Duration>> {
    let seconds: Option<f64> = sqlx::query_scalar(
        "select extract(epoch from min(d.next_attempt_at) - clock_timestamp())::double precision
         from postrider.leases l
         cross join lateral (select p.next_attempt_at from postrider.parked p
             where p.sink = l.sink and p.lane = l.lane and p.state = 'waiting' order by p.next_attempt_at limit 1) d
         where l.sink = $1 and l.owner = $2 and l.lane = any ($3)",
    )
    .bind(holder.sink)
    .bind(holder.reader)
    .bind(lanes)
    .fetch_one(connection)
    .await?;
    Ok(seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default()))
}

/// Stores what came of trying parked events again. Answers the keys that nothing is parked of any more.
pub async fn resolve(
    connection: &mut PgConnection,
    holder: Holder,
    attempts: &[Attempt],
) -> Result<Vec<String>> {
    let mut transaction = connection.begin().await?;
    lock(&mut transaction, holder.sink).await?;
    let (ids, fates): (Vec<Uuid>, Vec<&str>) =
        attempts.iter().filter_map(|attempt| Some((attempt.id, attempt.outcome.fate()?))).unzip();
    let keys: Vec<String> = sqlx::query_scalar(include_str!("sql/parked_delivered.sql"))
        .bind(holder.sink)
        .bind(holder.reader)
        .bind(ids)
        .bind(fates)
        .fetch_all(&mut *transaction)
        .await?;
    let refused: Vec<(Uuid, &Refused)> =
        attempts.iter().filter_map(|attempt| Some((attempt.id, attempt.outcome.refusal()?))).collect();
    if !refused.is_empty() {
        sqlx::query(include_str!("sql/parked_refused.sql"))
            .bind(holder.sink)
            .bind(holder.reader)
            .bind(refused.iter().map(|(id, _)| *id).collect::<Vec<_>>())
            .bind(refused.iter().map(|(_, refused)| refused.kind.as_str()).collect::<Vec<_>>())
            .bind(refused.iter().map(|(_, refused)| refused.reason.as_str()).collect::<Vec<_>>())
            .bind(
                refused.iter().map(|(_, refused)| Some(refused.retry_in?.as_secs_f64())).collect::<Vec<_>>(),
            )
            .execute(&mut *transaction)
            .await?;
    }
    promote(&mut transaction, holder.sink, &vec![String::new(); keys.len()], &keys).await?;
    let free = sqlx::query_scalar(include_str!("sql/parked_free.sql"))
        .bind(holder.sink)
        .bind(&keys)
        .fetch_all(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(free)
}

/// Removes what is known of events that the log has no more: those of a slot are there for eight sevenths of the retention, or longer.
pub(super) async fn forget_unparked(connection: &mut PgConnection, retention: Duration) -> Result<()> {
    sqlx::query(
        "delete from postrider.unparked u using (
             select id, sink, destination from postrider.unparked
             where ended_at < clock_timestamp() - make_interval(secs => 2 * $1) order by ended_at limit 10000) old
         where u.id = old.id and u.sink = old.sink and u.destination = old.destination",
    )
    .bind(retention.as_secs_f64())
    .execute(connection)
    .await?;
    Ok(())
}

/// The keys of these lanes that something is parked of.
pub async fn held_keys(connection: &mut PgConnection, sink: i32, lanes: &[i16]) -> Result<Vec<String>> {
    Ok(sqlx::query_scalar(
        "select distinct key from postrider.parked where sink = $1 and destination = '' and lane = any ($2) and key is not null",
    )
    .bind(sink)
    .bind(lanes)
    .fetch_all(connection)
    .await?)
}

/// Whoever parks, resolves, retries or discards events of a sink does it alone.
pub(super) async fn lock(connection: &mut PgConnection, sink: i32) -> Result<()> {
    sqlx::query("select from postrider.sinks where sink = $1 for no key update")
        .bind(sink)
        .execute(connection)
        .await?;
    Ok(())
}

/// Nothing waits behind anything any more in these lanes, as far as they are still held: for `ordering: relaxed`, where a relay with
/// `ordering: strict` was at work before.
pub async fn release(connection: &mut PgConnection, holder: Holder, lanes: &[i16]) -> Result<()> {
    let any: bool = sqlx::query_scalar(
        "select exists (select from unnest($2::smallint[]) as l (lane)
             cross join lateral (select from postrider.parked p
                 where p.sink = $1 and p.lane = l.lane and p.state = 'behind' limit 1) p)",
    )
    .bind(holder.sink)
    .bind(lanes)
    .fetch_one(&mut *connection)
    .await?;
    if !any {
        return Ok(());
    }
    let mut transaction = connection.begin().await?;
    lock(&mut transaction, holder.sink).await?;
    // All at the same moment: then they are tried in the order in which they were parked.
    sqlx::query(
        "update postrider.parked p set state = 'waiting', next_attempt_at = now()
         from postrider.leases l
         where l.sink = $1 and l.owner = $2 and l.lane = any ($3) and p.sink = l.sink and p.lane = l.lane and p.state = 'behind'",
    )
    .bind(holder.sink)
    .bind(holder.reader)
    .bind(lanes)
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(())
}

/// The first event of each of these keys, by destination, goes next, if it only waited behind another one.
pub(super) async fn promote(
    connection: &mut PgConnection,
    sink: i32,
    destinations: &[String],
    keys: &[String],
) -> Result<()> {
    sqlx::query(include_str!("sql/parking_promote.sql"))
        .bind(sink)
        .bind(destinations)
        .bind(keys)
        .execute(connection)
        .await?;
    Ok(())
}

fn due_of(row: &PgRow) -> Result<Due> {
    let record = Record::from_row(row)?;
    Ok(Due { record, attempts: row.try_get::<i32, _>("attempts")?.unsigned_abs() })
}
