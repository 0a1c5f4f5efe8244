//! Transactions that have written events and are still open.

use std::time::{Duration, Instant};

use sqlx::PgConnection;

use crate::log::error::{Error, Result};

const STEP: Duration = Duration::from_millis(20);

/// In every transaction that wrote an event a lock on its table stands until the end.
const OPEN: &str = "select l.virtualtransaction || coalesce(' (process ' || l.pid || ')', ' (prepared)')
    from pg_locks l
    where l.locktype = 'relation' and l.mode = 'RowExclusiveLock' and l.granted and l.pid is distinct from pg_backend_pid()
      and l.database = (select oid from pg_database where datname = current_database())
      and l.relation in (select relid from pg_partition_tree('postrider.events'))
    group by l.virtualtransaction, l.pid";

/// Waits for those that are open now. They are not blocked, and neither is anybody else.
pub(super) async fn wait_until_done(connection: &mut PgConnection, patience: Duration) -> Result<()> {
    let mut before: Vec<String> = sqlx::query_scalar(OPEN).fetch_all(&mut *connection).await?;
    let deadline = Instant::now() + patience;
    while !before.is_empty() {
        if Instant::now() > deadline {
            return Err(Error::WritersOpen { transactions: before.join(", ") });
        }
        tokio::time::sleep(STEP).await;
        let now: Vec<String> = sqlx::query_scalar(OPEN).fetch_all(&mut *connection).await?;
        before.retain(|writer| now.contains(writer));
    }
    Ok(())
}
