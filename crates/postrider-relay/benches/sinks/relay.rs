//! The real binary.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use postrider_testkit::Database;
use tokio::process::{Child, Command};

/// `postrider run` on one database.
pub(crate) struct Relay<'d> {
    database: &'d Database,
    postrider: PathBuf,
    folder: PathBuf,
    sinks: u32,
}

/// What a run came to.
pub(crate) struct Run {
    /// Events per second.
    pub(crate) rate: f64,
    /// The most memory that it had, in MB.
    pub(crate) memory: f64,
}

impl<'d> Relay<'d> {
    pub(crate) fn new(database: &'d Database) -> Result<Self> {
        // Beside the folder of this benchmark, whatever it was compiled for.
        let this = std::env::current_exe()?;
        let folder = this.parent().and_then(Path::parent).context("no folder above the benchmark")?;
        let postrider = folder.join("postrider");
        ensure!(
            postrider.exists(),
            "{} is not there: run ./dev bench sinks, which builds it",
            postrider.display()
        );
        let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let folder = scratch.join(format!("sinks-{}-{}", std::process::id(), database.name()));
        std::fs::create_dir_all(&folder)?;
        Ok(Self { database, postrider, folder, sinks: 0 })
    }

    /// Works off the whole log, from the start of the process to its end.
    pub(crate) async fn drain(&mut self, sink: &str, events: u32) -> Result<Run> {
        self.sinks += 1;
        // Progress belongs to a sink's name: each run needs a new one.
        let name = format!("bench-{}", self.sinks);
        let sinks = format!("  {name}: {{ {sink}, start: earliest }}\n");
        let begin = Instant::now();
        let mut child = self.start(&sinks, &["--once"])?;
        let pid = child.id().context("it has ended at once")?;
        let mut memory: f64 = 0.0;
        let status = loop {
            tokio::select! {
                status = child.wait() => break status?,
                () = tokio::time::sleep(Duration::from_millis(50)) => memory = memory.max(resident(pid).unwrap_or_default()),
            }
        };
        let rate = f64::from(events) / begin.elapsed().as_secs_f64();
        ensure!(status.success(), "postrider run ended with {status}");
        Ok(Run { rate, memory })
    }

    /// Starts it with these sinks.
    pub(crate) fn start(&self, sinks: &str, words: &[&str]) -> Result<Child> {
        let config = self.folder.join("postrider.yaml");
        std::fs::write(&config, format!("sinks:\n{sinks}http: {{ listen: \"off\" }}\n"))?;
        let child = Command::new(&self.postrider)
            .arg("run")
            .args(words)
            .arg("--config")
            .arg(&config)
            .env("DATABASE_URL", self.database.url())
            .env("POSTRIDER_LOG", "error")
            .kill_on_drop(true)
            .spawn()?;
        Ok(child)
    }
}

impl Drop for Relay<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The most memory that was resident, in MB.
pub(crate) fn resident(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()? / 1000.0)
}
