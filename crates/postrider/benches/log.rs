//! The log measured against what it replaces, on a private server that really writes to disk.
//!
//! `./dev bench log [--strict] [--quick] [FIGURE-FILTER...]`. A complete run takes some minutes, wants the machine for itself, and
//! is written to `target/bench/log.json`.

#[path = "log/clients.rs"]
mod clients;
#[path = "log/idle.rs"]
mod idle;
#[path = "log/reading.rs"]
mod reading;
#[path = "log/rounds.rs"]
mod rounds;
#[path = "log/world.rs"]
mod world;
#[path = "log/writing.rs"]
mod writing;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use postrider_testkit::bench::Bench;

use world::World;

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let mut bench = Bench::from_arguments(std::env::args().skip(1))?;
    let world = World::start().await?;
    reading::figures(&world, &mut bench).await?;
    writing::figures(&world, &mut bench).await?;
    clients::figures(&world, &mut bench).await?;
    idle::figures(&world, &mut bench).await?;
    rounds::figures(&world, &mut bench).await?;
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    bench.finish(&target.with_file_name("bench").join("log.json"))
}
