//! What some worker has to do now and then, whichever: take over from the dead, turn the rings, keep the schedules.

use std::sync::Arc;
use std::time::Duration;

use super::cron::Cron;
use super::error::{Error, Result};
use super::link::Link;
use super::schedule;
use super::telemetry::{self, Telemetry};

const TEND: Duration = Duration::from_secs(5);
/// A tending empties one table of a ring, so that it holds no lock while it waits for another; this is how many follow each other.
const MOST_TABLES: usize = 16;

/// For ever.
pub(super) async fn tend(
    mut link: Link,
    lease: Duration,
    crons: Vec<Cron>,
    queues: Vec<String>,
    telemetry: Arc<Telemetry>,
) {
    // A job of a dead worker waits for its lease and for the next look: a tenth of the lease more at most.
    let look = (lease / 10).clamp(Duration::from_millis(100), Duration::from_secs(1));
    let mut next_tending = tokio::time::Instant::now();
    let mut undeclared = crons.clone();
    loop {
        let is_time = tokio::time::Instant::now() >= next_tending;
        let tended = once(&mut link, &crons, &mut undeclared, &telemetry, is_time.then_some(&queues)).await;
        match tended {
            Ok(()) | Err(Error::Schedule { .. }) if !is_time => {}
            Ok(()) => next_tending = tokio::time::Instant::now() + TEND,
            // It is not the connection's fault.
            Err(error @ Error::Schedule { .. }) => {
                next_tending = tokio::time::Instant::now() + TEND;
                tracing::error!(%error, "a schedule is left out");
            }
            Err(error) => {
                link.lost(&error).await;
                continue;
            }
        }
        tokio::time::sleep(look).await;
    }
}

async fn once(
    link: &mut Link,
    crons: &[Cron],
    undeclared: &mut Vec<Cron>,
    telemetry: &Telemetry,
    queues: Option<&Vec<String>>,
) -> Result<()> {
    let connection = link.get().await?;
    let taken: i32 = sqlx::query_scalar("select postrider.reap_jobs()").fetch_one(&mut *connection).await?;
    if taken > 0 {
        telemetry.taken_over(taken.unsigned_abs().into());
        tracing::warn!(jobs = taken, "jobs of workers that vanished are tried again");
    }
    // Before the schedules: one of those that is wrong must not keep the rings from turning.
    if let Some(queues) = queues {
        for _ in 0..MOST_TABLES {
            let emptied: i32 =
                sqlx::query_scalar("select postrider.tend_jobs()").fetch_one(&mut *connection).await?;
            if emptied == 0 {
                break;
            }
        }
        telemetry::measure(connection, queues).await?;
        let declared = schedule::declare(connection, undeclared).await;
        if !matches!(declared, Ok(()) | Err(Error::Schedule { .. })) {
            return declared;
        }
        // The others are kept all the same.
        return schedule::tick(connection, crons).await.and(declared);
    }
    schedule::tick(connection, crons).await
}
