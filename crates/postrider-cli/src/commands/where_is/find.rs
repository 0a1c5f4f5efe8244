//! Looking for it.

use std::time::Duration;

use postrider::log::error::Result;
use postrider::log::parking::admin::State;
use postrider::log::{Record, Report};
use postrider_relay::SinkSettings;
use sqlx::{FromRow, PgConnection};
use time::OffsetDateTime;
use uuid::Uuid;

use super::filter::{self, Filter};

/// An event of the log, without its payload.
#[derive(Debug, FromRow)]
pub(super) struct Event {
    pub(super) id: Uuid,
    pub(super) source_id: Option<String>,
    pub(super) r#type: String,
    pub(super) entity: Option<String>,
    pub(super) key: Option<String>,
    pub(super) tenant: Option<String>,
    pub(super) created_at: OffsetDateTime,
    pub(super) xid: String,
    pub(super) seq: i64,
    pub(super) slot: i16,
    pub(super) lane: i16,
}

/// Where it is parked.
#[derive(Debug, Clone, FromRow)]
#[expect(clippy::struct_field_names, reason = "named like the columns")]
pub(super) struct Parked {
    pub(super) sink: String,
    pub(super) destination: String,
    pub(super) id: Uuid,
    pub(super) created_at: OffsetDateTime,
    #[sqlx(try_from = "String")]
    pub(super) state: State,
    pub(super) attempts: i32,
    pub(super) kind: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) parked_at: OffsetDateTime,
    pub(super) next_attempt_at: Option<OffsetDateTime>,
    pub(super) held_by: Option<Uuid>,
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
    let uuid = Uuid::parse_str(id).ok();
    let parked: Vec<Parked> = sqlx::query_as("select * from postrider.where_parked($1, $2)")
        .bind(uuid)
        .bind(id)
        .fetch_all(&mut *connection)
        .await?;
    let event: Option<Event> = sqlx::query_as("select * from postrider.where_event($1, $2)")
        .bind(uuid)
        .bind(id)
        .fetch_optional(&mut *connection)
        .await?;
    let Some(event) = event else {
        return gone(connection, uuid, parked).await;
    };
    let standings: Vec<Standing> =
        sqlx::query_as("select * from postrider.where_sinks($1, $2, $3::text::xid8, $4)")
            .bind(event.lane)
            .bind(event.seq)
            .bind(&event.xid)
            .bind(i32::try_from(Report::MOST).unwrap_or(i32::MAX))
            .fetch_all(&mut *connection)
            .await?;
    let unparked: Vec<Unparked> = sqlx::query_as("select * from postrider.where_unparked($1)")
        .bind(event.id)
        .fetch_all(&mut *connection)
        .await?;
    let record = match configured {
        Some(_) => record(connection, event.id).await?,
        None => None,
    };
    let sinks = standings
        .into_iter()
        .map(|standing| {
            let parked = parked.iter().filter(|parked| parked.sink == standing.sink).cloned().collect();
            let unparked = unparked.iter().find(|unparked| unparked.sink == standing.sink).cloned();
            let filter = filter::judge(configured, &standing.sink, record.as_ref());
            AtSink { standing, parked, unparked, filter }
        })
        .collect();
    Ok(Found::InLog(Box::new(event), sinks))
}

/// The whole event, for those who may read it.
async fn record(connection: &mut PgConnection, id: Uuid) -> Result<Option<Record>> {
    let may: bool = sqlx::query_scalar("select has_table_privilege('postrider.events', 'select')")
        .fetch_one(&mut *connection)
        .await?;
    if !may {
        return Ok(None);
    }
    Ok(sqlx::query_as("select * from postrider.events where id = $1")
        .bind(id)
        .fetch_optional(connection)
        .await?)
}

/// It is not in the log: was it ever? An id holds the time at which it was written.
async fn gone(connection: &mut PgConnection, id: Option<Uuid>, parked: Vec<Parked>) -> Result<Found> {
    if let Some(event) = parked.first() {
        return Ok(Found::Gone { written_at: event.created_at, parked });
    }
    let Some(written_at) = id.and_then(time_of) else {
        return Ok(Found::Nowhere);
    };
    let oldest: Option<OffsetDateTime> =
        sqlx::query_scalar("select postrider.where_oldest()").fetch_one(connection).await?;
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
