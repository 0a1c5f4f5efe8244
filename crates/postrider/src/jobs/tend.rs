//! What some worker has to do now and then, whichever: take over from the dead, turn the rings, keep the schedules.

use std::time::Duration;

use super::cron::Cron;
use super::error::Result;
use super::link::Link;
use super::schedule;

const TEND: Duration = Duration::from_secs(5);

/// For ever.
pub(super) async fn tend(mut link: Link, lease: Duration, crons: Vec<Cron>) {
    // A job of a dead worker waits for its lease and for the next look: a tenth of the lease more at most.
    let look = (lease / 10).clamp(Duration::from_millis(100), Duration::from_secs(1));
    let mut next_tending = tokio::time::Instant::now();
    let mut is_declared = false;
    loop {
        let is_time = tokio::time::Instant::now() >= next_tending;
        match once(&mut link, &crons, &mut is_declared, is_time).await {
            Ok(()) if is_time => next_tending = tokio::time::Instant::now() + TEND,
            Ok(()) => {}
            Err(error) => {
                link.lost(&error).await;
                continue;
            }
        }
        tokio::time::sleep(look).await;
    }
}

async fn once(link: &mut Link, crons: &[Cron], is_declared: &mut bool, is_time: bool) -> Result<()> {
    let connection = link.get().await?;
    let taken: i32 = sqlx::query_scalar("select postrider.reap_jobs()").fetch_one(&mut *connection).await?;
    if taken > 0 {
        tracing::warn!(jobs = taken, "jobs of workers that vanished are tried again");
    }
    if !*is_declared {
        for cron in crons {
            schedule::declare(connection, cron).await?;
        }
        *is_declared = true;
    }
    schedule::tick(connection, crons).await?;
    if is_time {
        sqlx::query("select postrider.tend_jobs()").execute(connection).await?;
    }
    Ok(())
}
