//! A test run: the directory that owns every private server, and what makes them vanish with it.
//!
//! The run's owner holds the write end of the FIFO `alive`. Each server has a guardian (`guardian.sh`) that
//! reads from it and stops its server at end of file, which the kernel delivers however the owner ended.
//! One janitor (`janitor.sh`) per run then removes the directory. Nobody else has to tidy up.

mod sweep;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};

use crate::server::{Place, Stop};

/// Names the directory of a run that somebody else owns: `./dev test` shares one among all test binaries.
pub(crate) const RUN_VARIABLE: &str = "POSTRIDER_TEST_RUN";

/// How the name of every run's directory begins; nothing else is ever removed.
pub(crate) const PREFIX: &str = "postrider-test-";

/// A test run: a directory, the servers in it, and the promise that both vanish with the run's owner.
#[derive(Debug)]
pub struct Run {
    dir: PathBuf,
    /// Write end of `alive` when this process is the owner. Never read or written: being open is the message.
    _alive: Option<File>,
}

impl Run {
    /// The run this process belongs to: the one `POSTRIDER_TEST_RUN` names, else its own, made at first use.
    ///
    /// The directory that variable names must be called `postrider-test-…`, let any user pass (mode 0711)
    /// and hold a FIFO `alive` whose write end its owner keeps open. A file `pid` with the owner's process
    /// id lets a later run remove it should everything have been killed.
    pub fn current() -> Result<&'static Self> {
        static CURRENT: Mutex<Option<&'static Run>> = Mutex::new(None);
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(run) = *current {
            return Ok(run);
        }
        let run = match std::env::var_os(RUN_VARIABLE) {
            Some(dir) => Self::join(PathBuf::from(dir))?,
            None => Self::own(&std::env::temp_dir())?,
        };
        // Leaked on purpose: the write end of `alive` must stay open until the process ends.
        Ok(current.insert(Box::leak(Box::new(run))))
    }

    fn own(parent: &Path) -> Result<Self> {
        sweep::stale_runs(parent);
        let pid = std::process::id();
        let dir = parent.join(format!("{PREFIX}{pid}-{:08x}", rand::random::<u32>()));
        // The servers' user must be able to pass through, whatever our umask says.
        fs::DirBuilder::new()
            .mode(0o711)
            .create(&dir)
            .with_context(|| format!("making {}", dir.display()))?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o711))?;
        fs::write(dir.join("pid"), pid.to_string())?;
        let fifo = dir.join("alive");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0)
            .with_context(|| format!("making the FIFO {}", fifo.display()))?;
        // Opened for both, because opening a FIFO for writing alone waits for a reader.
        let alive = OpenOptions::new().read(true).write(true).open(&fifo)?;
        let run = Self { dir, _alive: Some(alive) };
        run.start_janitor()?;
        Ok(run)
    }

    fn join(dir: PathBuf) -> Result<Self> {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        ensure!(
            name.starts_with(PREFIX),
            "{RUN_VARIABLE}={} is not called {PREFIX}…; it is removed at the end, so nothing else is accepted",
            dir.display()
        );
        let is_fifo = fs::metadata(dir.join("alive")).is_ok_and(|file| file.file_type().is_fifo());
        ensure!(is_fifo, "{RUN_VARIABLE}={}: there is no FIFO `alive` in it", dir.display());
        let run = Self { dir, _alive: None };
        let _lock = run.lock("janitor")?;
        if !run.dir.join("janitor.pid").exists() {
            run.start_janitor()?;
        }
        Ok(run)
    }

    /// The run's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Takes the run-wide lock `name`, across threads and processes, until the file is dropped. Waits.
    pub fn lock(&self, name: &str) -> Result<File> {
        let path = self.dir.join(format!("{name}.lock"));
        let file = open_lock(&path)?;
        file.lock().with_context(|| format!("locking {}", path.display()))?;
        Ok(file)
    }

    fn start_janitor(&self) -> Result<()> {
        open_lock(&self.dir.join("servers.lock"))?;
        let janitor = self
            .script("janitor.sh", include_str!("run/janitor.sh"))?
            .arg(&self.dir)
            .stdout(Stdio::null())
            .spawn()
            .context("starting the janitor (needs `setsid` of util-linux)")?;
        fs::write(self.dir.join("janitor.pid"), janitor.id().to_string())?;
        Ok(())
    }

    /// Starts `command` under a guardian. The child is the guardian; it ends after the server has.
    pub(crate) fn start_guardian(&self, place: &Place, stop: &Stop, command: &[String]) -> Result<Child> {
        let servers = open_lock(&self.dir.join("servers.lock"))?;
        // Locked before the guardian exists and inherited by it, so there is no moment in which the
        // janitor could take the run for empty.
        servers.lock_shared()?;
        self.script("guardian.sh", include_str!("run/guardian.sh"))?
            .arg(&place.dir)
            .arg(stop.signal_name())
            .arg(stop.target_name())
            .arg(stop.grace.as_secs().to_string())
            .args(command)
            .stdout(servers)
            .spawn()
            .context("starting a guardian (needs `setsid` of util-linux)")
    }

    /// A shell script in a session of its own (Ctrl-C in the terminal is not for it), reading from `alive`.
    fn script(&self, name: &str, text: &str) -> Result<Command> {
        let path = self.dir.join(name);
        if !path.exists() {
            // Renamed into place: a script half written by another process must not be run.
            let draft = self.dir.join(format!("{name}.{}-{:08x}", std::process::id(), rand::random::<u32>()));
            fs::write(&draft, text)?;
            fs::rename(&draft, &path)?;
        }
        let fifo = self.dir.join("alive");
        // Opening for reading waits for a writer. Should the owner be dead already, this one is the writer for
        // a moment, and the script sees end of file as soon as it is closed.
        let _writer = OpenOptions::new().read(true).write(true).open(&fifo)?;
        let alive = File::open(&fifo)?;
        let mut command = Command::new("setsid");
        command.arg("sh").arg(path).stdin(alive);
        // Whoever reads our standard error to its end must not wait for a guardian.
        command.stderr(OpenOptions::new().create(true).append(true).open(self.dir.join("guardians.log"))?);
        Ok(command)
    }
}

pub(crate) fn open_lock(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .with_context(|| format!("opening {} (has the test run ended?)", path.display()))
}
