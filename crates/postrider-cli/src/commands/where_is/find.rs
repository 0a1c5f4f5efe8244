//! Looking for it.

use std::time::Duration;

use postrider::log::error::Result;
use postrider::log::parking::admin::{self, Parked, Selection};
use postrider::log::{Record, Report};
use postrider_relay::SinkSettings;
use sqlx::{FromRow, PgConnection};
use time::OffsetDateTime;
use uuid::Uuid;

use super::filter::{self, Filter};

const BY_ID: &str = concat!(include_str!("event.sql"), "where e.id = $1");
const BY_SOURCE_ID: &str =
    concat!(include_str!("event.sql"), "where e.source_id = $1 order by e.seq desc limit 1");

/// An event of the log.
#[derive(Debug, FromRow)]
pub(super) struct Event {
    #[sqlx(flatten)]
    pub(super) record: Record,
    pub(super) xid: String,
    pub(super) slot: i16,
}

/// What the cursors and the holder of its lane say about an event at one sink.
#[derive(Debug, Clone, FromRow)]
pub(super) struct Standing {
    pub(super) sink: String,
    /// `None`: the cursor of the lane is missing.
    pub(super) is_settled: Option<bool>,
    /// How many are before it in its lane.
    pub(super) before: i64,
    pub(super) settled_at: Option<OffsetDateTime>,
    /// The first progress row that is known: what it had settled, it had settled by then.
    pub(super) history_begins: Option<OffsetDateTime>,
    /// The sink began behind it.
    pub(super) is_skipped: bool,
    pub(super) paused_at: Option<OffsetDateTime>,
    /// Who holds its lane and lives.
    pub(super) reader: Option<String>,
    pub(super) trouble: Option<String>,
    pub(super) trouble_since: Option<OffsetDateTime>,
    /// `sending` or `unsettled`, by the holder's last word.
    pub(super) flight: Option<String>,
    pub(super) sending_since: Option<OffsetDateTime>,
    pub(super) heard_at: Option<OffsetDateTime>,
    /// The holder has more in flight than it names.
    pub(super) names_only_some: bool,
}

/// What became of an event at a sink after it had been parked there.
#[derive(Debug, Clone, FromRow)]
pub(super) struct Unparked {
    pub(super) sink: String,
    /// `delivered`, `filtered` or `discarded`.
    pub(super) fate: String,
    pub(super) ended_at: OffsetDateTime,
}

/// An event at one sink.
pub(super) struct AtSink {
    pub(super) standing: Standing,
    pub(super) parked: Vec<Parked>,
    pub(super) unparked: Option<Unparked>,
    pub(super) filter: Filter,
}

pub(super) enum Found {
    InLog(Box<Event>, Vec<AtSink>),
    /// Its slot was emptied.
    Gone {
        written_at: OffsetDateTime,
        parked: Vec<Parked>,
    },
    Nowhere,
}

pub(super) async fn find(
    connection: &mut PgConnection,
    id: &str,
    configured: Option<&[SinkSettings]>,
) -> Result<Found> {
    let selection = Selection { ids: vec![id.to_owned()], include_parked: true, ..Selection::default() };
    let parked = admin::list(connection, &selection, 0, i64::MAX).await?;
    let Some(event) = in_log(connection, id).await? else {
        return gone(connection, id, parked).await;
    };
    let standings: Vec<Standing> = sqlx::query_as(include_str!("standing.sql"))
        .bind(event.record.lane)
        .bind(event.record.seq)
        .bind(&event.xid)
        .bind(i32::try_from(Report::MOST).unwrap_or(i32::MAX))
        .fetch_all(&mut *connection)
        .await?;
    let unparked = unparked(connection, event.record.id).await?;
    let sinks = standings
        .into_iter()
        .map(|standing| {
            let parked = parked.iter().filter(|parked| parked.sink == standing.sink).cloned().collect();
            let unparked = unparked.iter().find(|unparked| unparked.sink == standing.sink).cloned();
            let filter = filter::judge(configured, &standing.sink, &event.record);
            AtSink { standing, parked, unparked, filter }
        })
        .collect();
    Ok(Found::InLog(Box::new(event), sinks))
}

/// The last end at each sink comes first.
async fn unparked(connection: &mut PgConnection, id: Uuid) -> Result<Vec<Unparked>> {
    Ok(sqlx::query_as(
        "select s.name as sink, u.fate, u.ended_at from postrider.unparked u join postrider.sinks s using (sink)
         where u.id = $1 order by u.ended_at desc",
    )
    .bind(id)
    .fetch_all(connection)
    .await?)
}

async fn in_log(connection: &mut PgConnection, id: &str) -> Result<Option<Event>> {
    if let Ok(id) = Uuid::parse_str(id) {
        let event = sqlx::query_as(BY_ID).bind(id).fetch_optional(&mut *connection).await?;
        if event.is_some() {
            return Ok(event);
        }
    }
    // There is no index on it: adopted tables are few, and each costs one walk through the log.
    Ok(sqlx::query_as(BY_SOURCE_ID).bind(id).fetch_optional(connection).await?)
}

/// It is not in the log: was it ever? An id holds the time at which it was written.
async fn gone(connection: &mut PgConnection, id: &str, parked: Vec<Parked>) -> Result<Found> {
    if let Some(event) = parked.first() {
        return Ok(Found::Gone { written_at: event.created_at, parked });
    }
    let Some(written_at) = Uuid::parse_str(id).ok().and_then(time_of) else {
        return Ok(Found::Nowhere);
    };
    let oldest: Option<OffsetDateTime> =
        sqlx::query_scalar(include_str!("oldest.sql")).fetch_one(connection).await?;
    match oldest {
        Some(oldest) if written_at < oldest => Ok(Found::Gone { written_at, parked }),
        _ => Ok(Found::Nowhere),
    }
}

/// When a UUIDv7 was made.
fn time_of(id: Uuid) -> Option<OffsetDateTime> {
    if id.get_version_num() != 7 {
        return None;
    }
    let (seconds, nanos) = id.get_timestamp()?.to_unix();
    // Anybody can write an id: this one may be of the year 10,000.
    let since = time::Duration::try_from(Duration::new(seconds, nanos)).ok()?;
    OffsetDateTime::UNIX_EPOCH.checked_add(since)
}
