//! The job queue: jobs that do nothing, worked off; against River, which keeps a row for each, and Graphile Worker, which keeps none.
//!
//! `./dev bench jobs [--strict] [--quick] [FIGURE-FILTER...]`, written to `target/bench/jobs.json`. All on one server, with fsync, one after
//! the other. Each run fills an empty queue, vacuums, and takes the time from starting the worker until every job is stored as done.

#[path = "jobs/ours.rs"]
mod ours;
#[path = "jobs/rivals.rs"]
mod rivals;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use postrider_testkit::bench::{Bench, Figure, Goal, pairs, print_facts, quantile};
use postrider_testkit::{PostgresServer, Settings, Version};

use ours::Ours;
use rivals::{Graphile, River};

const KEPT: &str = "1 burn-down, results kept";
const DROPPED: &str = "2 burn-down, results dropped";
const HELD: &str = "3 burn-down, a REPEATABLE READ transaction held open";
const DEAD: &str = "4 dead rows left by that";
const IDLE: &str = "5 from commit to handler, idle, p50";
const IDLE_99: &str = "6 from commit to handler, idle, p99";
const BUSY: &str = "7 from commit to handler, 1,000 jobs/s, p50";

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let mut bench = Bench::from_arguments(std::env::args().skip(1))?;
    let server = PostgresServer::private(Version::V15, Settings::durable()).await?;
    print_facts(&server).await?;
    let (jobs, runs) = (bench.size(200_000, 20_000), bench.size(3, 1));
    let mut ours = Ours::new(&server);

    if bench.wants(KEPT) {
        let mut river = River::new(&server);
        let measured =
            pairs(runs, async || ours.burn(jobs, true).await, async || river.burn(jobs).await).await?;
        bench.add(Figure::paired(KEPT, "jobs/s", "River 0.50", &measured).goal(Goal::RatioAtLeast(1.3)));
    }
    if bench.wants(DROPPED) {
        let mut graphile = Graphile::new(&server);
        let measured =
            pairs(runs, async || ours.burn(jobs, false).await, async || graphile.burn(jobs).await).await?;
        bench.add(
            Figure::paired(DROPPED, "jobs/s", "Graphile Worker 0.17, batched", &measured)
                .goal(Goal::RatioAtLeast(1.3)),
        );
    }
    if bench.wants(HELD) || bench.wants(DEAD) {
        let mut dead = 0;
        let measured = pairs(
            runs,
            async || {
                let (rate, rows) = ours.burn_held(jobs).await?;
                dead = rows.max(dead);
                Ok(rate)
            },
            async || ours_again(&server, jobs).await,
        )
        .await?;
        bench.add(Figure::paired(HELD, "jobs/s", "nothing held", &measured).goal(Goal::RatioAtLeast(0.9)));
        bench.add(Figure::measured(DEAD, "rows", f64::from(u32::try_from(dead)?)));
    }
    if bench.wants(IDLE) || bench.wants(IDLE_99) {
        let samples = ours.latencies(bench.size(500, 50), None).await?;
        bench.add(
            Figure::measured(IDLE, "ms", quantile(&samples, 0.5)).goal(Goal::Below(5.0)).runs(samples.len()),
        );
        bench.add(Figure::measured(IDLE_99, "ms", quantile(&samples, 0.99)).runs(samples.len()));
    }
    if bench.wants(BUSY) {
        let samples = ours.latencies(bench.size(500, 50), Some(1000)).await?;
        bench.add(Figure::measured(BUSY, "ms", quantile(&samples, 0.5)).runs(samples.len()));
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    bench.finish(&target.with_file_name("bench").join("jobs.json"))
}

async fn ours_again(server: &PostgresServer, jobs: u32) -> Result<f64> {
    Ours::new(server).burn(jobs, true).await
}
