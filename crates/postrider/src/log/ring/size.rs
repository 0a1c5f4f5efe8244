//! Keeping the log below a size: delivered history goes before its time, what is owed to anybody never does.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::super::error::Result;
use super::{HeldSlot, Reason, Retention, SLOTS, current, empty};

/// What came of keeping the log below its size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shortened {
    /// The slots that were emptied before their retention was over.
    pub slots: Vec<i16>,
    /// Those that are in the way: the log is still too large. Empty if it is not, or if everything is in the slot that is written,
    /// which is closed when it has reached its share.
    pub held: Vec<HeldSlot>,
}

/// Empties closed slots, the oldest first, until the log is no larger than it may be. One transaction each: a lock on one slot is not
/// held while another is waited for.
pub async fn shorten(connection: &mut PgConnection, retention: Retention) -> Result<Shortened> {
    let mut shortened = Shortened::default();
    let Some(limit) = retention.max_log_bytes else { return Ok(shortened) };
    if total(connection).await? <= limit {
        return Ok(shortened);
    }
    let at_once = Retention { keep: std::time::Duration::ZERO, ..retention };
    for slot in oldest_first(connection).await? {
        let mut transaction = connection.begin_with("begin isolation level read committed").await?;
        sqlx::query("lock table postrider.ring in exclusive mode").execute(&mut *transaction).await?;
        if total(&mut transaction).await? <= limit {
            shortened.held.clear();
            break;
        }
        if current(&mut transaction).await? == slot || !has_rows(&mut transaction, slot).await? {
            continue;
        }
        if let Some(reason) = empty(&mut transaction, slot, at_once).await? {
            shortened.held.push(HeldSlot { slot, reason });
        } else {
            transaction.commit().await?;
            shortened.slots.push(slot);
        }
    }
    if total(connection).await? <= limit {
        shortened.held.clear();
    }
    Ok(shortened)
}

impl Shortened {
    /// The sinks that have not settled what is in the way.
    pub fn holders(&self) -> Vec<&str> {
        let mut holders: Vec<&str> = self
            .held
            .iter()
            .filter_map(|held| match &held.reason {
                Reason::Owed(sinks) => Some(sinks),
                _ => None,
            })
            .flatten()
            .map(String::as_str)
            .collect();
        holders.sort_unstable();
        holders.dedup();
        holders
    }
}

/// All slots with their indexes and long values.
async fn total(connection: &mut PgConnection) -> Result<u64> {
    let bytes: i64 = sqlx::query_scalar(
        "select sum(pg_total_relation_size(format('postrider.events_%s', slot)::regclass))::bigint
         from generate_series(0, $1) as slot",
    )
    .bind(i32::from(SLOTS) - 1)
    .fetch_one(connection)
    .await?;
    Ok(bytes.unsigned_abs())
}

/// By when each was closed: a slot that was passed over is older than its place in the ring says.
async fn oldest_first(connection: &mut PgConnection) -> Result<Vec<i16>> {
    Ok(sqlx::query_scalar(
        "select n.slot::smallint from generate_series(0, $1) as n (slot) left join postrider.ring r on r.slot = n.slot
         order by r.closed_at nulls first, n.slot",
    )
    .bind(i32::from(SLOTS) - 1)
    .fetch_all(connection)
    .await?)
}

async fn has_rows(connection: &mut PgConnection, slot: i16) -> Result<bool> {
    let statement = format!("select exists (select from postrider.events_{slot})");
    Ok(sqlx::query_scalar(AssertSqlSafe(statement)).fetch_one(connection).await?)
}
