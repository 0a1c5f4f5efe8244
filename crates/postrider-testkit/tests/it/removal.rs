//! Whatever ends a test, its servers and their directories go too.
//!
//! The tests start this test binary again, for one of the `child_…` tests that do nothing otherwise.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use postrider_testkit::{PostgresServer, Process, Run, Settings, Signal, Version};

/// Set for a child, so that the same test does nothing in an ordinary run.
const CHILD: &str = "POSTRIDER_TESTKIT_CHILD";
const PATIENCE: Duration = Duration::from_mins(1);

/// A child and the server it has started.
struct Victim {
    child: Child,
    stdout: BufReader<ChildStdout>,
    server: Process,
    run: PathBuf,
}

fn start(test: &str) -> Result<Victim> {
    // A job in the background of a script ignores SIGINT, and so does all that it starts.
    let mut child = Command::new("env")
        .arg("--default-signal=INT")
        .arg(std::env::current_exe()?)
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "yes")
        .env_remove("POSTRIDER_TEST_RUN")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // As a shell would: a terminal's Ctrl-C goes to everybody in the group.
        .process_group(0)
        .spawn()?;
    let mut stdout = BufReader::new(child.stdout.take().context("stdout is piped")?);
    let mut line = String::new();
    // The harness prints without line ends too, so ours may not start a line.
    while !line.contains("server:") {
        line.clear();
        ensure!(stdout.read_line(&mut line)? > 0, "the child ended without a server");
    }
    let mut words = line.split_once("server:").unwrap_or_default().1.split_whitespace();
    let pid = words.next().context("pid")?.parse()?;
    let run = PathBuf::from(words.next().context("directory")?);
    let server = Process::find(pid).context("the server runs")?;
    ensure!(run.join("pid").exists());
    // Only now may the child go on and end its server.
    child.stdin.as_mut().context("stdin is piped")?.write_all(b"go on\n")?;
    Ok(Victim { child, stdout, server, run })
}

impl Victim {
    fn assert_all_gone(mut self) -> Result<()> {
        // A guardian that held on to the test's output would keep a pipe's reader waiting.
        self.stdout.read_to_end(&mut Vec::new())?;
        let status = self.child.wait()?;
        let start = Instant::now();
        while self.server.is_alive() || self.run.exists() {
            ensure!(start.elapsed() < PATIENCE, "left behind: {:?} {}", self.server, self.run.display());
            std::thread::sleep(Duration::from_millis(5));
        }
        eprintln!("{status}: all gone after {:?}", start.elapsed());
        Ok(())
    }
}

async fn child() -> Result<Option<PostgresServer>> {
    if std::env::var_os(CHILD).is_none() {
        return Ok(None);
    }
    let server = PostgresServer::private(Version::default(), Settings::for_tests()).await?;
    println!("server: {} {}", server.pid()?, Run::current()?.dir().display());
    std::io::stdin().read_line(&mut String::new())?;
    Ok(Some(server))
}

/// Waits for the end of standard input, which never comes while the parent holds the other end.
fn wait_for_the_end() {
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

#[tokio::test]
async fn child_waits() -> Result<()> {
    if let Some(_server) = child().await? {
        wait_for_the_end();
    }
    Ok(())
}

#[tokio::test]
async fn child_panics() -> Result<()> {
    let server = child().await?;
    assert!(server.is_none(), "as planned");
    Ok(())
}

#[tokio::test]
async fn child_forgets() -> Result<()> {
    std::mem::forget(child().await?);
    Ok(())
}

#[tokio::test]
async fn child_crashes_its_server() -> Result<()> {
    if let Some(server) = child().await? {
        server.crash().await?;
        println!("crashed");
        wait_for_the_end();
    }
    Ok(())
}

#[test]
fn after_kill_9() -> Result<()> {
    let mut victim = start("removal::child_waits")?;
    victim.child.kill()?;
    victim.assert_all_gone()
}

#[test]
fn after_ctrl_c() -> Result<()> {
    let victim = start("removal::child_waits")?;
    rustix::process::kill_process_group(rustix::process::Pid::from_child(&victim.child), Signal::INT)?;
    victim.assert_all_gone()
}

#[test]
fn after_a_panic() -> Result<()> {
    start("removal::child_panics")?.assert_all_gone()
}

#[test]
fn after_a_server_was_forgotten() -> Result<()> {
    start("removal::child_forgets")?.assert_all_gone()
}

#[test]
fn after_kill_9_while_the_server_is_down() -> Result<()> {
    let mut victim = start("removal::child_crashes_its_server")?;
    let mut line = String::new();
    victim.stdout.read_line(&mut line)?;
    assert_eq!(line, "crashed\n");
    victim.child.kill()?;
    victim.assert_all_gone()
}

#[test]
fn after_the_guardian_was_killed() -> Result<()> {
    let mut victim = start("removal::child_waits")?;
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", victim.server.pid()))?;
    let guardian = stat.rsplit_once(") ").context("stat")?.1.split(' ').nth(1).context("parent")?.parse()?;
    Process::find(guardian).context("guardian")?.signal(Signal::KILL)?;
    victim.server.wait_gone(PATIENCE)?;
    victim.child.kill()?;
    victim.assert_all_gone()
}
