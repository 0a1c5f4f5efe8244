//! What some worker has to do now and then, whichever: take over from the dead, turn the rings, keep the schedules.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgConnection;

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
        if is_time {
            // Whatever came of it: what fails for ever would be tried without a pause.
            next_tending = tokio::time::Instant::now() + TEND;
        }
        match tended {
            Ok(()) => {}
            // It is not the connection's fault.
            Err(error @ Error::Schedule { .. }) => {
                if is_time {
                    tracing::error!(%error, "a schedule is left out");
                }
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
    let Some(queues) = queues else { return schedule::tick(connection, crons).await };
    // Neither keeps the other from its turn: a schedule that is wrong, or rings that cannot be turned.
    let turned = turn_rings(connection).await;
    let measured = telemetry::measure(connection, queues).await;
    let declared = schedule::declare(connection, undeclared).await;
    let ticked = schedule::tick(connection, crons).await;
    turned.and(measured).and(ticked).and(declared)
}

async fn turn_rings(connection: &mut PgConnection) -> Result<()> {
    for _ in 0..MOST_TABLES {
        let emptied: i32 =
            sqlx::query_scalar("select postrider.tend_jobs()").fetch_one(&mut *connection).await?;
        if emptied == 0 {
            break;
        }
    }
    Ok(())
}
