//! What every server has in common: a place to live, a command, a way to tell that it is ready, and an end.

mod command;
mod handle;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::user::User;
pub use command::{CommandLine, run_to_end};
pub use handle::Server;

/// A kind of server that a test run can hold. Implementations describe; [`Server`] does the work.
///
/// All methods block and may be called from any thread. `prepare` runs once, before the first start;
/// `command` before every start, so a server comes back on the same ports and with the same directory.
pub trait Service: Send + Sync + 'static {
    /// Names the server within its run, for example `pg15`. Two services with one name are taken for the same
    /// server, so everything that makes them differ (version, settings) must be in it. Used as a file name.
    fn name(&self) -> String;

    /// How many TCP ports it listens on. They are [`Place::ports`], in an order the service defines.
    fn ports(&self) -> usize {
        1
    }

    /// Fills the (existing, empty) directory: configuration, data files.
    fn prepare(&self, place: &Place) -> Result<()>;

    /// What runs it in the foreground, logging to standard output or error.
    fn command(&self, place: &Place) -> Result<CommandLine>;

    /// Whether it serves clients now. Asked every few milliseconds; must not wait long.
    fn is_ready(&self, place: &Place) -> bool;

    /// How it is stopped when nobody needs it any more.
    fn stop(&self) -> Stop;

    /// How long a start may take.
    fn start_deadline(&self) -> Duration {
        Duration::from_mins(3)
    }

    /// Called after every end of the server, to give back what outlives a killed process (shared memory).
    fn after_end(&self, _place: &Place) {}
}

/// Where a server lives.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its own directory, owned by [`Place::user`]. Holds `log`, `server.pid` and what the service puts there.
    pub dir: PathBuf,
    /// Its ports on 127.0.0.1.
    pub ports: Vec<u16>,
    /// Whom it runs as.
    pub user: User,
}

impl Place {
    /// The first port.
    pub fn port(&self) -> u16 {
        self.ports[0]
    }

    /// Writes a file that the server may read and change.
    pub fn write(&self, name: &str, contents: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        std::fs::write(&path, contents)?;
        self.user.own(&path)?;
        Ok(path)
    }

    /// The last lines of what the server said.
    pub fn log_tail(&self) -> String {
        let Ok(log) = std::fs::read(self.dir.join("log")) else {
            return "(no log)".to_owned();
        };
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

/// How a server is stopped.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    /// The signal that asks it to end.
    pub signal: Signal,
    /// Who gets it.
    pub target: StopTarget,
    /// How long it may take before it is killed.
    pub grace: Duration,
}

/// Who gets the stop signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopTarget {
    /// The process that was started: right for a server that execs in place.
    Process,
    /// Its whole process group: for a server that is started by a shell script.
    Group,
}

impl Stop {
    /// `signal` to the process itself, killed after ten seconds.
    pub fn with(signal: Signal) -> Self {
        Self { signal, target: StopTarget::Process, grace: Duration::from_secs(10) }
    }

    /// As the shell and `setpriv` call it.
    ///
    /// # Panics
    /// If it is not a signal that servers are stopped with.
    pub(crate) fn signal_name(&self) -> &'static str {
        match self.signal {
            Signal::INT => "INT",
            Signal::TERM => "TERM",
            Signal::QUIT => "QUIT",
            Signal::KILL => "KILL",
            other => panic!("{other:?} is not a signal that stops a server"),
        }
    }

    pub(crate) fn target_name(&self) -> &'static str {
        match self.target {
            StopTarget::Process => "process",
            StopTarget::Group => "group",
        }
    }
}
