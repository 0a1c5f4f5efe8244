//! A running server: started once per run and shared, or a test's own.

use std::fs;
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

use super::{Place, Service, StopTarget};
use crate::ports;
use crate::process::{POLL, Process};
use crate::run::Run;
use crate::user::User;

/// A server of a test run.
///
/// A *shared* one is started by the first test that asks, and lives as long as the run. A *private* one
/// belongs to one test, which may stop, kill and start it as it likes; it is removed when dropped.
/// Methods block: in async code call them through `spawn_blocking`.
pub struct Server<S: Service> {
    service: S,
    place: Place,
    shared: bool,
    incarnation: Mutex<Option<Incarnation>>,
}

/// One life of a server, between a start and an end.
struct Incarnation {
    process: Process,
    /// Absent where another process of the run started the server.
    guardian: Option<Child>,
}

/// What processes of one run tell each other about a shared server: `<run>/<name>.json`.
#[derive(Serialize, Deserialize)]
struct Card {
    /// Name of its directory in the run's.
    dir: String,
    process: Process,
    ports: Vec<u16>,
}

impl<S: Service> Server<S> {
    /// The run's server of that name, started if nobody has yet.
    pub fn shared(service: S) -> Result<Self> {
        let run = Run::current()?;
        let name = service.name();
        let _lock = run.lock(&name)?;
        let path = run.dir().join(format!("{name}.json"));
        if let Ok(card) = fs::read(&path) {
            let card: Card =
                serde_json::from_slice(&card).with_context(|| format!("reading {}", path.display()))?;
            let place =
                Place { dir: run.dir().join(card.dir), ports: card.ports, user: User::for_servers()? };
            let life = Incarnation { process: card.process, guardian: None };
            let server = Self { service, place, shared: true, incarnation: Mutex::new(Some(life)) };
            server.ensure_alive()?;
            return Ok(server);
        }
        let dir = unused(run, &name, &service);
        let server = Self::first_start(service, run, &dir, true)?;
        let card = Card { dir, process: server.process()?, ports: server.place.ports.clone() };
        // Renamed into place: whoever is killed here must not leave half a card.
        let draft = run.dir().join(format!("{name}.json.new"));
        fs::write(&draft, serde_json::to_vec(&card)?)?;
        fs::rename(&draft, &path)?;
        Ok(server)
    }

    /// A server for the caller alone.
    pub fn private(service: S) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}.{}-{number}", service.name(), std::process::id());
        Self::first_start(service, Run::current()?, &name, false)
    }

    fn first_start(service: S, run: &Run, name: &str, shared: bool) -> Result<Self> {
        let user = User::for_servers()?;
        let dir = run.dir().join(name);
        let mut server = Self {
            place: Place { dir, ports: Vec::new(), user },
            service,
            shared,
            incarnation: Mutex::new(None),
        };
        // More than one try only because another process may take a port between our look and the bind.
        for _ in 0..5 {
            server.place.ports = ports::free(server.service.ports())?;
            fs::create_dir(&server.place.dir)
                .with_context(|| format!("making {}", server.place.dir.display()))?;
            server.place.user.own(&server.place.dir)?;
            let prepared = server.service.prepare(&server.place).with_context(|| format!("preparing {name}"));
            let started =
                prepared.and_then(|()| server.launch_unchecked()).and_then(|()| server.wait_until_ready());
            match started {
                Ok(()) => return Ok(server),
                Err(error) => {
                    let port_taken = server.found_its_port_taken();
                    remove(&server.place.dir)?;
                    if !port_taken {
                        return Err(error);
                    }
                }
            }
        }
        bail!("{name} found its ports taken five times in a row")
    }

    /// The service it was made from.
    pub fn service(&self) -> &S {
        &self.service
    }

    /// Where it lives.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Its process.
    pub fn process(&self) -> Result<Process> {
        let life = self.incarnation();
        Ok(life.as_ref().with_context(|| format!("{} is stopped", self.service.name()))?.process)
    }

    /// Fails with the end of its log if it has died by itself.
    pub fn ensure_alive(&self) -> Result<()> {
        if self.process()?.is_alive() {
            return Ok(());
        }
        Err(self.died("died"))
    }

    /// Starts it again where it was, and waits until it is ready.
    pub fn start(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let started = self.launch().and_then(|()| self.wait_until_ready());
            // Somebody may have it for a moment.
            let port_taken = started.is_err() && self.found_its_port_taken();
            if !port_taken || begun.elapsed() > Duration::from_secs(30) {
                return started;
            }
            std::thread::sleep(POLL);
        }
    }

    fn found_its_port_taken(&self) -> bool {
        self.place.log_tail().contains("ddress already in use")
    }

    /// Starts it again where it was, without waiting: what clients see then is a server that is starting up.
    pub fn launch(&self) -> Result<()> {
        self.ensure_private()?;
        self.launch_unchecked()
    }

    /// Waits until it serves clients. If it ends before, or takes too long, it is stopped.
    pub fn wait_until_ready(&self) -> Result<()> {
        let started = Instant::now();
        let process = self.process()?;
        while process.is_alive() && started.elapsed() < self.service.start_deadline() {
            if self.service.is_ready(&self.place) {
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
        let alive = process.is_alive();
        self.kill_unchecked()?;
        Err(self.died(if alive { "was not ready in time" } else { "ended before it was ready" }))
    }

    /// Asks it to end with `signal` and waits for that; kills it after the grace period of its service.
    pub fn stop(&self, signal: Signal) -> Result<()> {
        self.ensure_private()?;
        self.end(signal)
    }

    /// `kill -9` of the server and all its children, at once.
    pub fn kill(&self) -> Result<()> {
        self.ensure_private()?;
        self.kill_unchecked()
    }

    fn ensure_private(&self) -> Result<()> {
        ensure!(!self.shared, "{} is shared by the whole run: ask for a private one", self.service.name());
        Ok(())
    }

    fn launch_unchecked(&self) -> Result<()> {
        let mut slot = self.incarnation();
        ensure!(slot.is_none(), "{} is running already", self.service.name());
        for stale in ["server.pid", "exit"] {
            let _ = fs::remove_file(self.place.dir.join(stale));
        }
        let stop = self.service.stop();
        let words = self.service.command(&self.place)?.into_words(&self.place.user, &stop);
        let mut guardian = Run::current()?.start_guardian(&self.place, &stop, &words)?;
        loop {
            // Looked at first: a guardian that has ended leaves no more to come.
            let ended = guardian.try_wait()?.is_some();
            if let Some(process) = read_pid(&self.place.dir) {
                *slot = Some(Incarnation { process, guardian: Some(guardian) });
                return Ok(());
            }
            if ended {
                return Err(self.died("ended before it was ready"));
            }
            std::thread::sleep(POLL);
        }
    }

    fn kill_unchecked(&self) -> Result<()> {
        let Some(mut life) = self.incarnation().take() else {
            return Ok(());
        };
        life.process.kill_tree()?;
        life.finish()?;
        self.service.after_end(&self.place);
        Ok(())
    }

    fn end(&self, signal: Signal) -> Result<()> {
        let Some(mut life) = self.incarnation().take() else {
            return Ok(());
        };
        let stop = self.service.stop();
        match stop.target {
            StopTarget::Process => life.process.signal(signal)?,
            StopTarget::Group => {
                if let Some(group) = Pid::from_raw(life.process.pid()) {
                    let _ = rustix::process::kill_process_group(group, signal);
                }
            }
        }
        // A frozen process would only get the signal once it is woken.
        life.process.signal(Signal::CONT)?;
        if life.process.wait_gone(stop.grace).is_err() {
            life.process.kill_tree()?;
        }
        life.finish()?;
        self.service.after_end(&self.place);
        Ok(())
    }

    fn died(&self, what: &str) -> anyhow::Error {
        let status = fs::read_to_string(self.place.dir.join("exit")).unwrap_or_default();
        let status =
            if status.is_empty() { String::new() } else { format!(" with status {}", status.trim()) };
        anyhow!("{} {what}{status}; the end of its log:\n{}", self.service.name(), self.place.log_tail())
    }

    fn incarnation(&self) -> MutexGuard<'_, Option<Incarnation>> {
        self.incarnation.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Incarnation {
    /// Waits for the guardian, which ends right after the server.
    fn finish(&mut self) -> Result<()> {
        if let Some(mut guardian) = self.guardian.take() {
            guardian.wait()?;
        }
        Ok(())
    }
}

impl<S: Service> Drop for Server<S> {
    fn drop(&mut self) {
        if self.shared {
            return;
        }
        // Nothing to be done about a failure here; the run's janitor gets another chance.
        let _ = self.end(self.service.stop().signal);
        let _ = remove(&self.place.dir);
    }
}

/// The name of a directory for a shared server. It is not the usual one where somebody was killed between making that and writing the
/// card: their guardian may be at work there still, so nothing in it is touched. It goes away with the run.
fn unused(run: &Run, name: &str, service: &impl Service) -> String {
    let mut unused = name.to_owned();
    for number in 2_u32.. {
        let dir = run.dir().join(&unused);
        if !dir.exists() {
            break;
        }
        if let Some(process) = read_pid(&dir) {
            // Nobody knows of it. Should this fail, it ends with the run.
            let _ = process.signal(service.stop().signal);
        }
        unused = format!("{name}.again-{number}");
    }
    unused
}

fn read_pid(dir: &Path) -> Option<Process> {
    Process::find(fs::read_to_string(dir.join("server.pid")).ok()?.trim().parse().ok()?)
}

/// Removes a directory in which a dying process may still write for a moment.
fn remove(dir: &Path) -> Result<()> {
    let start = Instant::now();
    loop {
        match fs::remove_dir_all(dir) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !dir.exists() => return Ok(()),
            Err(error) if start.elapsed() > Duration::from_mins(1) => {
                return Err(error).with_context(|| format!("removing {}", dir.display()));
            }
            Err(_) => std::thread::sleep(POLL),
        }
    }
}
