//! Telling systemd how we are, over the datagram socket it names in `NOTIFY_SOCKET` (see `sd_notify(3)`). Without it, nothing happens.
//!
//! A few lines of our own: the protocol is a dozen bytes, and it has not changed in ten years.

use std::convert::Infallible;
use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Whoever started us and wants to hear of us, if anybody.
#[derive(Debug)]
pub(crate) struct Supervisor {
    socket: Option<UnixDatagram>,
    watchdog: Option<Duration>,
}

impl Supervisor {
    /// As the environment says. A socket that cannot be used is reported and then ignored: the work does not depend on it.
    pub(crate) fn from_env() -> Self {
        let socket = env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()).and_then(|path| {
            connect(&path)
                .inspect_err(|error| tracing::warn!(%error, "the socket in NOTIFY_SOCKET cannot be used"))
                .ok()
        });
        let variable = |name| env::var(name).ok();
        Self { socket, watchdog: watchdog(variable("WATCHDOG_USEC"), variable("WATCHDOG_PID")) }
    }

    /// Everything is started.
    pub(crate) fn ready(&self) {
        self.tell("READY=1");
    }

    /// The configuration is being read again; [`Supervisor::ready`] follows, whether it was taken or not.
    pub(crate) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    /// On the way out.
    pub(crate) fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// Reports for ever, twice as often as asked, as long as `is_alive`. Never ends, also if nobody asked.
    pub(crate) async fn keep_watchdog(&self, is_alive: impl Fn() -> bool) -> Infallible {
        let Some(every) = self.watchdog.filter(|_| self.socket.is_some()) else {
            return std::future::pending().await;
        };
        let mut ticks = tokio::time::interval(every / 2);
        loop {
            ticks.tick().await;
            if is_alive() {
                self.tell("WATCHDOG=1");
            }
        }
    }

    fn tell(&self, state: &str) {
        if let Some(socket) = &self.socket
            && let Err(error) = socket.send(state.as_bytes())
        {
            tracing::debug!(%error, state, "the supervisor was not told");
        }
    }
}

fn connect(path: &OsStr) -> io::Result<UnixDatagram> {
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A supervisor that does not read must not hold up the relay.
    socket.set_nonblocking(true)?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

/// How long we may be silent, if the watchdog is meant for this process.
fn watchdog(micros: Option<String>, pid: Option<String>) -> Option<Duration> {
    if pid.is_some_and(|pid| pid.parse() != Ok(process::id())) {
        return None;
    }
    let micros: u64 = micros?.parse().ok()?;
    (micros > 0).then(|| Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn pair(name: &str) -> (UnixDatagram, Supervisor) {
        let name = format!("postrider-test-{}-{name}", process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let systemd = UnixDatagram::bind_addr(&address).unwrap();
        systemd.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let socket = Some(connect(OsStr::new(&format!("@{name}"))).unwrap());
        (systemd, Supervisor { socket, watchdog: Some(Duration::from_millis(20)) })
    }

    fn heard(systemd: &UnixDatagram) -> String {
        let mut buffer = [0; 256];
        let length = systemd.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn says_what_systemd_expects() {
        let (systemd, supervisor) = pair("words");
        supervisor.ready();
        supervisor.reloading();
        supervisor.stopping();
        assert_eq!(heard(&systemd), "READY=1");
        let reloading = heard(&systemd);
        let micros = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
        assert!(micros.parse::<u64>().unwrap() > 0);
        assert_eq!(heard(&systemd), "STOPPING=1");
    }

    #[test]
    fn a_socket_in_the_file_system_works_too() {
        let path = env::temp_dir().join(format!("postrider-notify-{}", process::id()));
        let systemd = UnixDatagram::bind(&path).unwrap();
        let supervisor = Supervisor { socket: connect(path.as_os_str()).ok(), watchdog: None };
        std::fs::remove_file(&path).unwrap();
        supervisor.ready();
        assert_eq!(heard(&systemd), "READY=1");
    }

    #[tokio::test]
    async fn the_watchdog_is_fed_only_while_alive() {
        let (systemd, supervisor) = pair("watchdog");
        let (alive, fed) = (AtomicBool::new(true), tokio::sync::Notify::new());
        let asked_dead = tokio::sync::Notify::new();
        let is_alive = || {
            let alive = alive.load(Ordering::Relaxed);
            if alive {
                fed.notify_one();
            } else {
                asked_dead.notify_one();
            }
            alive
        };
        let looking = async {
            // Both run on one thread: who was asked has been fed by the time this goes on.
            fed.notified().await;
            assert_eq!(heard(&systemd), "WATCHDOG=1");
            alive.store(false, Ordering::Relaxed);
            // One that was on its way may still come before the first question that is answered with no.
            asked_dead.notified().await;
            systemd.set_nonblocking(true).unwrap();
            while systemd.recv(&mut [0; 64]).is_ok() {}
            asked_dead.notified().await;
            asked_dead.notified().await;
            assert!(systemd.recv(&mut [0; 64]).is_err(), "fed although stuck");
        };
        tokio::select! {
            never = supervisor.keep_watchdog(is_alive) => match never {},
            () = looking => {}
        }
    }

    #[test]
    fn a_watchdog_of_another_process_is_not_ours() {
        let pid = |pid: u32| Some(pid.to_string());
        let micros = |text: &str| Some(text.to_owned());
        assert_eq!(watchdog(micros("500000"), None), Some(Duration::from_millis(500)));
        assert_eq!(watchdog(micros("500000"), pid(process::id())), Some(Duration::from_millis(500)));
        assert_eq!(watchdog(micros("500000"), pid(process::id() + 1)), None);
        assert_eq!(watchdog(micros("often"), None), None);
        assert_eq!(watchdog(None, None), None);
    }

    #[tokio::test]
    async fn without_a_supervisor_nothing_happens() {
        let supervisor = Supervisor { socket: None, watchdog: Some(Duration::from_millis(1)) };
        supervisor.ready();
        let keeping = supervisor.keep_watchdog(|| panic!("nobody asked"));
        assert!(tokio::time::timeout(Duration::from_millis(20), keeping).await.is_err(), "it never ends");
    }
}
