//! The shape every server fits into, with a shell script as the server.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Result;
use postrider_testkit::{CommandLine, Place, Process, Run, Server, Service, Signal, Stop, StopTarget};

struct Script {
    name: &'static str,
    text: &'static str,
    stop: Stop,
    deadline: Duration,
    prepared: AtomicU32,
}

impl Script {
    fn new(text: &'static str, stop: Stop) -> Self {
        Self { name: "script", text, stop, deadline: Duration::from_mins(1), prepared: AtomicU32::new(0) }
    }
}

impl Service for Script {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn ports(&self) -> usize {
        2
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        let attempt = self.prepared.fetch_add(1, Ordering::SeqCst);
        place.write("attempt", &attempt.to_string())?;
        Ok(())
    }

    fn command(&self, place: &Place) -> Result<CommandLine> {
        let [first, second] = place.ports[..] else { anyhow::bail!("two ports were asked for") };
        Ok(CommandLine::new("/bin/sh")
            .args(["-c", self.text, "script"])
            .arg(first.to_string())
            .arg(second.to_string())
            .env("GREETING", "good morning"))
    }

    fn is_ready(&self, place: &Place) -> bool {
        place.dir.join("ready").exists()
    }

    fn stop(&self) -> Stop {
        self.stop
    }

    fn start_deadline(&self) -> Duration {
        self.deadline
    }
}

#[test]
fn a_script_that_starts_helpers_is_stopped_as_a_group() -> Result<()> {
    // The shell waits for its child and would ignore INT if it were started as a plain background command.
    // It creates the file itself: `touch` would be a third child for as long as it takes to exit.
    let text = r#"test "$1" != "$2"; echo "$GREETING"; sleep 1000 & sleep 1000 & : >ready; wait"#;
    let stop = Stop { target: StopTarget::Group, ..Stop::with(Signal::INT) };
    let server = Server::private(Script::new(text, stop))?;
    assert_eq!(server.place().log_tail(), "good morning");
    let process = server.process()?;
    let helpers = process.descendants();
    assert_eq!(helpers.len(), 2);
    server.stop(Signal::INT)?;
    assert_eq!(fs::read_to_string(server.place().dir.join("exit"))?, "130\n");
    for helper in helpers {
        helper.wait_gone(Duration::from_mins(1))?;
    }
    Ok(())
}

#[test]
fn a_server_that_ignores_its_stop_signal_is_killed() -> Result<()> {
    let stop = Stop { grace: Duration::from_secs(1), ..Stop::with(Signal::TERM) };
    let server = Server::private(Script::new("trap '' TERM; touch ready; while :; do sleep 1; done", stop))?;
    let process = server.process()?;
    drop(server);
    assert!(!process.is_alive());
    Ok(())
}

#[test]
fn taken_ports_are_replaced() -> Result<()> {
    let text = r#"
        if [ "$(cat attempt)" -lt 2 ]; then echo "bind: Address already in use"; exit 1; fi
        touch ready; exec sleep 1000"#;
    let server = Server::private(Script::new(text, Stop::with(Signal::TERM)))?;
    assert_eq!(fs::read_to_string(server.place().dir.join("attempt"))?, "2");
    Ok(())
}

/// Somebody was killed after starting a shared server and before telling the others: the next one starts another.
#[test]
fn a_server_that_was_never_announced_is_replaced() -> Result<()> {
    let abandoned = || Script {
        name: "abandoned",
        ..Script::new("touch ready; exec sleep 1000", Stop::with(Signal::TERM))
    };
    let left = Run::current()?.dir().join("abandoned");
    fs::create_dir(&left)?;
    // Should the test fail, nobody who reads our output may wait for it.
    let mut orphan = Command::new("sleep").arg("60").stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    fs::write(left.join("server.pid"), orphan.id().to_string())?;

    let server = Server::shared(abandoned())?;
    assert_ne!(server.place().dir, left);
    assert_eq!(orphan.wait()?.signal(), Some(Signal::TERM.as_raw()), "stopped, since nobody knows of it");
    let same = Server::shared(abandoned())?;
    assert_eq!((same.process()?, &same.place().dir), (server.process()?, &server.place().dir));
    Ok(())
}

#[test]
fn a_start_that_takes_too_long_is_given_up() {
    let mut script = Script::new("echo $$; echo thinking; exec sleep 1000", Stop::with(Signal::TERM));
    script.deadline = Duration::from_secs(3);
    let error = Server::private(script).err().expect("never ready").to_string();
    assert!(error.contains("was not ready in time"), "{error}");
    let pid = error.lines().nth(1).and_then(|line| line.parse().ok()).expect("the script's pid");
    assert_eq!(Process::find(pid), None);
}
