//! Storing how jobs ended: everything that has come together meanwhile, in one statement.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::error::{Error, Result};
use super::link::Link;
use super::telemetry::Telemetry;
use super::unsettled::Settlement;

/// Null where it was stored, the reason where it was refused.
const SETTLE: &str =
    "select s.claim, postrider.settle_jobs(s.claim, s.outcomes::json, s.done::bigint[])
     from unnest($1::bigint[], $2::text[], $3::text[]) with ordinality as s (claim, outcomes, done, place) order by s.place";

/// So many settlements in one transaction at most.
const MOST: usize = 64;

/// Stores until the other end is closed and everything is stored.
pub(super) async fn settle(
    mut link: Link,
    telemetry: Arc<Telemetry>,
    mut settlements: mpsc::UnboundedReceiver<Settlement>,
) -> Result<()> {
    let mut batch = Vec::with_capacity(MOST);
    while settlements.recv_many(&mut batch, MOST).await > 0 {
        loop {
            match store(&mut link, &telemetry, &batch).await {
                Ok(()) => break,
                // What was stored although no answer came is refused the second time, which does no harm.
                Err(error) if error.is_transient() => link.lost(&error).await,
                Err(Error::Database(error)) => {
                    one_by_one(&mut link, &telemetry, &batch, error).await?;
                    break;
                }
                Err(error) => link.lost(&error).await,
            }
        }
        batch.clear();
    }
    Ok(())
}

async fn store(link: &mut Link, telemetry: &Telemetry, batch: &[Settlement]) -> Result<()> {
    let claims: Vec<i64> = batch.iter().map(|settlement| settlement.claim).collect();
    let outcomes: Vec<Option<&str>> = batch.iter().map(|settlement| settlement.outcomes.as_deref()).collect();
    let done: Vec<Option<&str>> = batch.iter().map(|settlement| settlement.done.as_deref()).collect();
    let answers: Vec<(i64, Option<String>)> =
        sqlx::query_as(SETTLE).bind(claims).bind(outcomes).bind(done).fetch_all(link.get().await?).await?;
    for (claim, refused) in answers {
        if let Some(reason) = refused {
            telemetry.refused();
            tracing::warn!(claim, reason, "a late result is refused: another worker has the jobs");
        }
    }
    Ok(())
}

/// One of them cannot be stored as it is: the others can, and of that one it is said that it failed.
async fn one_by_one(
    link: &mut Link,
    telemetry: &Telemetry,
    batch: &[Settlement],
    error: sqlx::Error,
) -> Result<()> {
    tracing::error!(%error, "how jobs ended could not be stored; trying one claim at a time");
    for settlement in batch {
        match store(link, telemetry, std::slice::from_ref(settlement)).await {
            Ok(()) => {}
            // Its lease must run out, so that others take the jobs: this worker cannot go on renewing it.
            Err(Error::Database(error)) => return Err(Error::Settle(error)),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
