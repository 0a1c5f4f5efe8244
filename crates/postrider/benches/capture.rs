//! What capture costs a write: an update of many rows and updates of single ones, without a trigger, with ours, with one that loops
//! over the catalog, and beside the least there can be, the update and a bare insert of the same events.
//!
//! `./dev bench capture [--strict] [--quick] [FIGURE-FILTER...]`. A complete run takes some ten minutes, most of them the loop's,
//! wants the machine for itself, and is written to `target/bench/capture.json`.

#[path = "capture/bulk.rs"]
mod bulk;
#[path = "capture/singles.rs"]
mod singles;
#[path = "capture/ways.rs"]
mod ways;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use postrider_testkit::bench::Bench;

use ways::Ways;

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let mut bench = Bench::from_arguments(std::env::args().skip(1))?;
    let ways = Ways::start(bench.size(50_000, 2_000)).await?;
    bulk::figures(&ways, &mut bench).await?;
    singles::figures(&ways, &mut bench).await?;
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    bench.finish(&target.with_file_name("bench").join("capture.json"))
}
