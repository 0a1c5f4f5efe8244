//! A `PostgreSQL` cluster as a service of a test run.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;

use super::{Settings, Version, answers};
use crate::run::Run;
use crate::server::{CommandLine, Place, Service, Stop, run_to_end};

pub(crate) struct Cluster {
    pub(super) version: Version,
    pub(super) settings: Settings,
    pub(super) origin: Origin,
    /// Bytes of a small file system that the server sees at [`Cluster::small_disk`].
    pub(super) small_disk: Option<u64>,
}

/// Where the data comes from.
pub(super) enum Origin {
    Initdb,
    StandbyOf { port: u16 },
}

impl Service for Cluster {
    fn name(&self) -> String {
        format!("pg{}{}", self.version, self.settings.suffix())
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        let data = Self::data_dir(place);
        match self.origin {
            Origin::Initdb => {
                let fresh = self.fresh_cluster(place)?;
                run_to_end(Command::new("cp").arg("-a").arg(fresh).arg(&data))?;
            }
            Origin::StandbyOf { port } => {
                let program = self.version.bin_dir()?.join("pg_basebackup");
                ensure!(program.exists(), "PostgreSQL {} here comes without pg_basebackup", self.version);
                let mut command = place.user.command(program);
                command.args("-h 127.0.0.1 -U postgres -R -X stream -c fast -N".split(' '));
                run_to_end(command.args(["-p", &port.to_string()]).arg("-D").arg(&data))?;
            }
        }
        if self.small_disk.is_some() {
            let dir = Self::small_disk(place);
            fs::create_dir(&dir)?;
            place.user.own(&dir)?;
        }
        Self::configure(place, &self.settings)
    }

    fn command(&self, place: &Place) -> Result<CommandLine> {
        let command = CommandLine::new(self.version.bin_dir()?.join("postgres"));
        let command = match self.small_disk {
            Some(bytes) => command.small_disk(&Self::small_disk(place), bytes),
            None => command,
        };
        Ok(command
            .arg("-D")
            .arg(Self::data_dir(place).to_string_lossy())
            .args(["-h", "127.0.0.1", "-p", &place.port().to_string()])
            .args(["-c", "unix_socket_directories="]))
    }

    fn is_ready(&self, place: &Place) -> bool {
        Self::accepts(place).unwrap_or(false) && answers(place.port())
    }

    /// Immediate shutdown: nobody needs the checkpoint, and unlike `kill -9` it frees the shared memory.
    fn stop(&self) -> Stop {
        Stop::with(Signal::QUIT)
    }

    fn after_end(&self, place: &Place) {
        // A server that had time to free its memory has removed this file.
        // The seventh line of postmaster.pid names a System V segment, which outlives even the data directory.
        let Ok(text) = fs::read_to_string(Self::data_dir(place).join("postmaster.pid")) else {
            return;
        };
        let segment = text.lines().nth(6).and_then(|line| line.split_whitespace().nth(1));
        if let Some(segment) = segment {
            let _ = Command::new("ipcrm").args(["-m", segment]).stderr(Stdio::null()).status();
        }
    }
}

impl Cluster {
    pub(super) fn data_dir(place: &Place) -> PathBuf {
        place.dir.join("data")
    }

    pub(super) fn small_disk(place: &Place) -> PathBuf {
        place.dir.join("small")
    }

    /// Whether `postmaster.pid` says "ready", and says so about the process that was started now. Without this
    /// another server that was quicker to take the same port could answer in its place.
    fn accepts(place: &Place) -> Option<bool> {
        let started = fs::read_to_string(place.dir.join("server.pid")).ok()?;
        let status = fs::read_to_string(Self::data_dir(place).join("postmaster.pid")).ok()?;
        let mut lines = status.lines();
        Some(lines.next()? == started.trim() && lines.nth(6)?.trim() == "ready")
    }

    /// Adds settings for the next start. In the file, not on the command line, so that `alter system` wins.
    pub(super) fn configure(place: &Place, settings: &Settings) -> Result<()> {
        let path = Self::data_dir(place).join("postgresql.conf");
        let mut file =
            OpenOptions::new().append(true).open(&path).with_context(|| path.display().to_string())?;
        Ok(file.write_all(settings.lines().as_bytes())?)
    }

    /// What initdb makes, once per version and run: a copy takes a tenth of its time.
    fn fresh_cluster(&self, place: &Place) -> Result<PathBuf> {
        let test_run = Run::current()?;
        let name = format!("initdb-{}", self.version);
        let _lock = test_run.lock(&name)?;
        let home = test_run.dir().join(&name);
        let done = home.join("data");
        if done.exists() {
            return Ok(done);
        }
        // Left over only where initdb failed before.
        let _ = fs::remove_dir_all(&home);
        fs::create_dir(&home)?;
        place.user.own(&home)?;
        let draft = home.join("draft");
        let mut command = place.user.command(self.version.bin_dir()?.join("initdb"));
        command.args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "-D"]);
        run_to_end(command.arg(&draft))?;
        fs::rename(&draft, &done)?;
        Ok(done)
    }
}
