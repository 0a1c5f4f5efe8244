//! Publishing only what is durable.
//!
//! Under `synchronous_commit=off` a row is visible before its commit record is on disk, and a crash takes it back. A round
//! is released once the WAL is flushed as far as it had been written when the round was read; where standbys are asked for, once
//! that many of them have flushed it too, because a failover takes back what the promoted one never had.

use std::time::{Duration, Instant};

use sqlx::PgConnection;

use super::error::Result;

/// How long somebody else's commit may do the flushing for us. A disk takes about a millisecond, so for so long it is asked again and
/// again, and then from time to time: a timer is rounded up, and of a millisecond makes two.
const PATIENCE: Duration = Duration::from_millis(5);
const EAGER: Duration = Duration::from_millis(2);
const STEP: Duration = Duration::from_millis(1);

const FLUSHED: &str = "select (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint";
/// Something that really writes: taking an xid or updating no row flushes nothing. Polling alone would never end on an idle server
/// with an open writer.
const NUDGE: &str = "select pg_logical_emit_message(true, 'postrider', '')::text";

/// Waits until the WAL is on disk up to `inserted`. `flushed` is what the round itself saw.
pub async fn until_durable(connection: &mut PgConnection, inserted: u64, flushed: u64) -> Result<()> {
    if flushed >= inserted {
        return Ok(());
    }
    let begun = Instant::now();
    while !is_flushed(connection, inserted).await? {
        match begun.elapsed() {
            waited if waited < EAGER => tokio::task::yield_now().await,
            waited if waited < PATIENCE => tokio::time::sleep(STEP).await,
            _ => {
                sqlx::query(NUDGE).execute(&mut *connection).await?;
            }
        }
    }
    Ok(())
}

async fn is_flushed(connection: &mut PgConnection, inserted: u64) -> Result<bool> {
    let flushed: i64 = sqlx::query_scalar(FLUSHED).fetch_one(connection).await?;
    Ok(u64::try_from(flushed).is_ok_and(|flushed| flushed >= inserted))
}

/// How long it is looked for standbys before something else gets a turn.
const TURN: Duration = Duration::from_millis(50);

/// A receiver of logical changes is no standby.
const STANDBYS: &str = "select count(*) >= $2 from pg_stat_replication r
    where (r.flush_lsn - '0/0'::pg_lsn)::bigint >= $1
      and not exists (select from pg_replication_slots s where s.active_pid = r.pid and s.slot_type = 'logical')";

/// Whether so many standbys have the WAL on disk up to `inserted`, or get there within a moment.
pub async fn is_at_standbys(connection: &mut PgConnection, inserted: u64, standbys: u32) -> Result<bool> {
    if standbys == 0 {
        return Ok(true);
    }
    let begun = tokio::time::Instant::now();
    loop {
        let enough: bool = sqlx::query_scalar(STANDBYS)
            .bind(i64::try_from(inserted).unwrap_or(i64::MAX))
            .bind(i64::from(standbys))
            .fetch_one(&mut *connection)
            .await?;
        if enough || begun.elapsed() >= TURN {
            return Ok(enough);
        }
        tokio::time::sleep(STEP).await;
    }
}
