//! A reader with nothing to do: how fast it wakes up, and what it costs until then.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postrider_testkit::Database;
use postrider_testkit::bench::{Bench, Figure, Goal, quantile};
use sqlx::{Connection, PgConnection};

use crate::world::{Running, World};

const MEDIAN: &str = "5 idle wake-up, p50";
const TAIL: &str = "5 idle wake-up, p99";
const CPU: &str = "6 CPU of an idle reader";
const SERVER_CPU: &str = "6 CPU of its server processes";

pub(crate) async fn figures(world: &World, bench: &mut Bench) -> Result<()> {
    if bench.wants(MEDIAN) || bench.wants(TAIL) {
        let database = world.database().await?;
        let delays = wake_ups(&database, bench.size(200, 10)).await?;
        bench.add(
            Figure::measured(MEDIAN, "ms", quantile(&delays, 0.5)).runs(delays.len()).goal(Goal::AtMost(2.0)),
        );
        bench.add(
            Figure::measured(TAIL, "ms", quantile(&delays, 0.99))
                .runs(delays.len())
                .goal(Goal::AtMost(10.0))
                .reason("the third slowest of 200 decides: two stalls of the machine are enough (measured again it was 2 to 7 ms)"),
        );
    }
    if bench.wants(CPU) || bench.wants(SERVER_CPU) {
        let database = world.database().await?;
        let (ours, server) = cpu(&database, bench.size(20, 2)).await?;
        bench.add(Figure::measured(CPU, "% of a core", ours).goal(Goal::Below(1.0)));
        bench.add(Figure::measured(SERVER_CPU, "% of a core", server));
    }
    Ok(())
}

/// Milliseconds from COMMIT's return until the event is in hand, each time with a reader that is asleep.
async fn wake_ups(database: &Database, samples: u32) -> Result<Vec<f64>> {
    let mut reader = Running::start(database, "idle").await?;
    let mut producer = database.connect().await?;
    let mut side = database.connect().await?;
    let mut delays = Vec::new();
    let mut before = 0;
    // The first one warms everything up.
    for sample in 0..=samples {
        before = asleep(&mut side, before).await?;
        let mut transaction = producer.begin().await?;
        sqlx::query("select postrider.emit('order.paid', '{\"order\":7}', key => 'customer-7')")
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        let committed = std::time::Instant::now();
        let (arrived, events) = reader.next().await?;
        ensure!(events == 1, "{events} events came instead of one");
        if sample > 0 {
            // It may even be here before the producer knows that it has committed.
            delays.push(arrived.saturating_duration_since(committed).as_secs_f64() * 1e3);
        }
    }
    reader.stop().await?;
    Ok(delays)
}

/// Waits until the reader has taken a ticket above `before`, and a little longer; answers the ticket.
pub(crate) async fn asleep(side: &mut PgConnection, before: i64) -> Result<i64> {
    for _ in 0..2_000 {
        let (armed, disarmed): (i64, i64) = sqlx::query_as(
            "select coalesce(pg_sequence_last_value('postrider.armed'), 0), coalesce(pg_sequence_last_value('postrider.disarmed'), 0)",
        )
        .fetch_one(&mut *side)
        .await?;
        if armed > before && armed > disarmed {
            tokio::time::sleep(Duration::from_millis(150)).await;
            return Ok(armed);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    anyhow::bail!("the reader does not fall asleep")
}

/// Percent of a core that a sleeping reader and its server processes use.
async fn cpu(database: &Database, seconds: u32) -> Result<(f64, f64)> {
    let reader = Running::start(database, "idle").await?;
    let mut side = database.connect().await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let backends: Vec<i32> = sqlx::query_scalar(
        "select pid from pg_stat_activity where application_name like 'postrider%' and datname = current_database()",
    )
    .fetch_all(&mut side)
    .await?;
    ensure!(!backends.is_empty(), "the reader has no server process");
    side.close().await?;
    let used = || -> Result<(f64, f64)> {
        let server = backends.iter().map(|pid| cpu_seconds(&pid.to_string())).sum::<Result<f64>>()?;
        Ok((cpu_seconds("self")?, server))
    };
    let begin = used()?;
    tokio::time::sleep(Duration::from_secs(seconds.into())).await;
    let end = used()?;
    reader.stop().await?;
    let percent = |from: f64, to: f64| (to - from) * 100.0 / f64::from(seconds);
    Ok((percent(begin.0, end.0), percent(begin.1, end.1)))
}

/// User and system time of a process, from `/proc`.
fn cpu_seconds(process: &str) -> Result<f64> {
    /// Of the kernel's interface, whatever its timer does.
    const TICKS_PER_SECOND: f64 = 100.0;
    let text = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name in parentheses may hold anything; utime and stime are the 12th and 13th fields after it.
    let (_, fields) = text.rsplit_once(')').context("no name in /proc/…/stat")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? / TICKS_PER_SECOND)
}
