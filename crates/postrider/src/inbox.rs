//! The inbox: which events a consumer has had, so that a message that is delivered twice takes effect once.

use std::time::Duration;

use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::log::error::{Error, Result};

/// No id is remembered for longer. The server's times end somewhere.
const LONGEST: Duration = Duration::from_hours(24 * 365 * 100);

/// Whether this consumer has this event for the first time: true once, for the transaction that commits. Ask in the transaction of the
/// effect, before the effect; if it is false, do nothing and acknowledge. Whoever asks at the same time waits for the other to end.
pub async fn first_time(connection: &mut PgConnection, consumer: &str, event_id: &str) -> Result<bool> {
    Ok(sqlx::query_scalar("select postrider.first_time($1, $2::text)")
        .bind(consumer)
        .bind(event_id)
        .fetch_one(connection)
        .await?)
}

/// One step of turning the ring of the inbox, if it is due; about once a minute, by anybody. `log_retention` is how long the log keeps
/// events: the inbox remembers at least that long, because they may be sent again from there.
pub async fn turn(connection: &mut PgConnection, log_retention: Option<Duration>) -> Result<String> {
    Ok(sqlx::query_scalar("select postrider.turn_inbox(make_interval(secs => $1))")
        .bind(log_retention.map(|keep| keep.as_secs_f64()))
        .fetch_one(connection)
        .await?)
}

/// For how long every id is remembered at least. A message that comes again later than that takes effect again.
pub async fn retention(connection: &mut PgConnection) -> Result<Duration> {
    let seconds: f64 = sqlx::query_scalar("select postrider.inbox_retention()").fetch_one(connection).await?;
    // More than a duration holds is for ever.
    Ok(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX))
}

/// What is known of one consumer.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct Stats {
    /// Its name.
    pub consumer: String,
    /// How many ids are remembered.
    pub ids: i64,
    /// When the oldest of them came.
    pub oldest: OffsetDateTime,
    /// When the newest of them came.
    pub newest: OffsetDateTime,
}

/// How long ids are remembered, and how large that makes the inbox.
#[derive(Debug, Clone, Copy, PartialEq, sqlx::FromRow)]
pub struct Size {
    /// As it is set, in seconds.
    pub retention: f64,
    /// How long the log keeps events, in seconds; none while no relay has said so.
    pub log_retention: Option<f64>,
    /// On disk, with its indexes.
    pub bytes: i64,
}

/// How large the inbox is.
pub async fn size(connection: &mut PgConnection) -> Result<Size> {
    Ok(sqlx::query_as(
        "select extract(epoch from coalesce(max(retention), '14 days'))::double precision as retention,
                extract(epoch from max(log_retention))::double precision as log_retention, coalesce(sum(bytes), 0)::bigint as bytes
         from postrider.inbox_state",
    )
    .fetch_one(connection)
    .await?)
}

/// Every consumer that has used the inbox. Walks all of it.
pub async fn stats(connection: &mut PgConnection) -> Result<Vec<Stats>> {
    Ok(sqlx::query_as(
        "select consumer, count(distinct event_id) as ids, min(seen_at) as oldest, max(seen_at) as newest
         from postrider.inbox group by consumer order by consumer",
    )
    .fetch_all(connection)
    .await?)
}

/// An id that is remembered.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct Seen {
    /// Who had it.
    pub consumer: String,
    /// The event.
    pub event_id: String,
    /// When the transaction of its effect began.
    pub seen_at: OffsetDateTime,
}

/// As the inbox keeps it: one uuid may be written in two ways.
fn as_kept(event_id: &str) -> String {
    let is_uuid = event_id.len() == 36 && uuid::Uuid::try_parse(event_id).is_ok();
    if is_uuid { event_id.to_ascii_lowercase() } else { event_id.to_owned() }
}

/// The newest ids first; of one consumer, or one event, if asked for.
pub async fn list(
    connection: &mut PgConnection,
    consumer: Option<&str>,
    event_id: Option<&str>,
    limit: u32,
) -> Result<Vec<Seen>> {
    Ok(sqlx::query_as(
        "select consumer, event_id, min(seen_at) as seen_at from postrider.inbox
         where ($1::text is null or consumer = $1) and ($2::text is null or event_id = $2)
         group by consumer, event_id order by 3 desc, 1, 2 limit $3",
    )
    .bind(consumer)
    .bind(event_id.map(as_kept))
    .bind(i64::from(limit))
    .fetch_all(connection)
    .await?)
}

/// Forgets one event of a consumer, or all of them: a delivery after that takes effect again. Answers how many there were.
pub async fn forget(connection: &mut PgConnection, consumer: &str, event_id: Option<&str>) -> Result<u64> {
    let gone: i64 = sqlx::query_scalar(
        "with gone as (
             delete from postrider.inbox where consumer = $1 and ($2::text is null or event_id = $2) returning event_id)
         select count(distinct event_id) from gone",
    )
    .bind(consumer)
    .bind(event_id.map(as_kept))
    .fetch_one(connection)
    .await?;
    Ok(gone.unsigned_abs())
}

/// How many ids [`forget`] would forget.
pub async fn count(connection: &mut PgConnection, consumer: &str, event_id: Option<&str>) -> Result<u64> {
    let there: i64 = sqlx::query_scalar(
        "select count(distinct event_id) from postrider.inbox where consumer = $1 and ($2::text is null or event_id = $2)",
    )
    .bind(consumer)
    .bind(event_id.map(as_kept))
    .fetch_one(connection)
    .await?;
    Ok(there.unsigned_abs())
}

/// Sets how long ids are remembered, 100 years at most. Less than the log keeps events has no effect.
pub async fn keep(connection: &mut PgConnection, retention: Duration) -> Result<()> {
    if retention > LONGEST {
        let words = "ids are remembered for 100 years at most; name a shorter time, such as 30d";
        return Err(Error::Input(sqlx::Error::InvalidArgument(words.to_owned())));
    }
    // Before any turn: one by the old time may forget what is to be kept for longer.
    if !set_retention(connection, retention).await? {
        // After a schema-only restore there is nothing to set yet.
        turn(connection, None).await?;
        set_retention(connection, retention).await?;
    }
    Ok(())
}

/// Whether there was something to set.
async fn set_retention(connection: &mut PgConnection, retention: Duration) -> Result<bool> {
    let set = sqlx::query("update postrider.inbox_ring set retention = make_interval(secs => $1)")
        .bind(retention.as_secs_f64())
        .execute(connection)
        .await?;
    Ok(set.rows_affected() > 0)
}
