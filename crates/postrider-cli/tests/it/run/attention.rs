//! Whatever a relay is busy with, signals are heard and the watchdog is fed.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

use super::*;

const NULL: &str = "sinks:\n  a: { null: {} }\n";

/// A server that lets everybody in and says nothing.
struct Mute(TcpListener);

impl Mute {
    fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    /// Sinks of which something is required that it does not answer.
    fn sinks(&self, count: usize) -> String {
        let address = self.0.local_addr().unwrap();
        let sink =
            |n| format!("  s{n}: {{ redis: {{ url: \"redis://{address}\" }}, require_durability: B }}\n");
        format!("sinks:\n{}", (0..count).map(sink).collect::<String>())
    }

    /// Waits until somebody has come for each of them.
    fn visitors(&self, count: usize) -> Vec<TcpStream> {
        (0..count).map(|_| self.0.accept().unwrap().0).collect()
    }
}

/// What systemd hears.
struct Systemd {
    socket: UnixDatagram,
    path: String,
}

impl Systemd {
    fn new(world: &World) -> Self {
        let path = world.path("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, path }
    }

    fn over<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("NOTIFY_SOCKET", &self.path).env("WATCHDOG_USEC", "1000000")
    }

    fn next(&self) -> String {
        let mut buffer = [0; 256];
        let length = self.socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[track_caller]
    fn until(&self, wanted: &str) {
        let begin = Instant::now();
        while !self.next().starts_with(wanted) {
            assert!(begin.elapsed() < PATIENCE, "{wanted} is never said");
        }
    }
}

fn spawn(world: &World, systemd: &Systemd, config: &str, stdout: Stdio) -> Relay {
    let log = fs::File::create(world.path("log")).unwrap();
    let mut command = world.postrider(&["run", "--listen", "off", "--config", config]);
    let child = systemd.over(&mut command).stdout(stdout).stderr(log).spawn().unwrap();
    Relay { child, log: world.path("log").into() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_that_takes_its_time_keeps_neither_the_watchdog_nor_a_signal_waiting() {
    let (world, mute) = (World::new().await, Mute::new());
    let systemd = Systemd::new(&world);
    let relay = spawn(&world, &systemd, &world.configure(NULL), Stdio::null());
    systemd.until("READY=1");
    world.configure(&mute.sinks(3));
    relay.signal(Signal::HUP);
    systemd.until("RELOADING=1");
    let _visitors = mute.visitors(3);
    for _ in 0..2 {
        assert_eq!(systemd.next(), "WATCHDOG=1", "{}", relay.said());
    }
    relay.signal(Signal::TERM);
    // It may have given them up by then.
    let heard = std::iter::repeat_with(|| systemd.next())
        .find(|heard| !["WATCHDOG=1", "READY=1"].contains(&heard.as_str()));
    assert_eq!(heard.as_deref(), Some("STOPPING=1"), "{}", relay.said());
    assert_eq!(relay.end(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_say_nothing_do_not_hold_up_a_reload_for_ever() {
    let (world, mute) = (World::new().await, Mute::new());
    let systemd = Systemd::new(&world);
    let relay = spawn(&world, &systemd, &world.configure(NULL), Stdio::null());
    systemd.until("READY=1");
    // Whatever they themselves would wait.
    let sinks = mute.sinks(3).replace("redis: {", "redis: { timeout: 1h,");
    world.configure(&format!("relay: {{ drain: 1s }}\n{sinks}"));
    relay.signal(Signal::HUP);
    let _visitors = mute.visitors(3);
    relay.until_said("the new configuration is in effect");
    relay.signal(Signal::TERM);
    assert_eq!(relay.end(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_are_heard_while_a_reload_drains_a_sink_that_hangs() {
    let world = World::new().await;
    let systemd = Systemd::new(&world);
    // More than a pipe holds.
    emit(&mut world.connect().await, 5000).await;
    let config = world.configure("relay: { drain: 1h }\nsinks:\n  a: { stdout: {}, start: earliest }\n");
    let mut relay = spawn(&world, &systemd, &config, Stdio::piped());
    let pipe = relay.child.stdout.take().unwrap();
    until("the pipe is full", || rustix::io::ioctl_fionread(&pipe).unwrap() > 60_000);
    world.configure(&format!("relay: {{ drain: 1h }}\n{NULL}"));
    relay.signal(Signal::HUP);
    systemd.until("RELOADING=1");
    systemd.until("WATCHDOG=1");
    relay.signal(Signal::TERM);
    relay.until_said("stopping: what was sent");
    relay.insist();
    assert_eq!(relay.end(), 1);
    assert_eq!(readers(&mut world.connect().await).await, 0, "it handed its lanes back");
}

/// Somebody may ask for a reload before there is anything to reload, and may change their mind.
#[tokio::test(flavor = "multi_thread")]
async fn signals_are_heard_while_it_starts() {
    let (world, mute) = (World::new().await, Mute::new());
    let systemd = Systemd::new(&world);
    let mut relay = spawn(&world, &systemd, &world.configure(&mute.sinks(1)), Stdio::null());
    let _visitors = mute.visitors(1);
    relay.signal(Signal::HUP);
    world.configure(NULL);
    systemd.until("READY=1");
    systemd.until("RELOADING=1");
    systemd.until("READY=1");
    assert!(relay.child.try_wait().unwrap().is_none());
    relay.signal(Signal::TERM);
    assert_eq!(relay.end(), 0);

    let relay = spawn(&world, &systemd, &world.configure(&mute.sinks(1)), Stdio::null());
    let _visitors = mute.visitors(1);
    relay.signal(Signal::TERM);
    assert_eq!(relay.end(), 0);
    let said = fs::read_to_string(world.path("log")).unwrap();
    assert!(said.contains("starting; ") && !said.contains("stopping: "), "it went on starting: {said}");
}

/// Hundredths of a second that a process has worked so far; `None` when it is gone.
fn worked(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let numbers: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // Of one that has ended and is not waited for yet, nothing is left.
    (numbers[0] != "Z").then(|| numbers[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum())
}

/// Who drains and waits for a delivery that does not end has nothing to do meanwhile, and does nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_drains_rests_while_it_waits() {
    let world = World::new().await;
    let mute = Mute::new();
    let drained = format!("relay: {{ drain: 2s }}\n{}", mute.sinks(1));
    let config = world.configure(&drained);
    let relay = world.run(&["--config", &config]);
    let _visitors = mute.visitors(1);
    relay.signal(Signal::TERM);
    let process = relay.child.id();
    let (before, mut after) = (worked(process).unwrap(), 0);
    until("it ends", || {
        let now = worked(process);
        after = now.unwrap_or(after);
        now.is_none()
    });
    // It took half of a core or more.
    assert!(after.saturating_sub(before) < 50, "{before} and then {after}");
    assert_eq!(relay.end(), 0);
}
