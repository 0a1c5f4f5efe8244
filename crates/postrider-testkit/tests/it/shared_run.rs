//! A run that a script owns and several test processes share, as `./dev test` does.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use postrider_testkit::{Process, Version, postgres};

const CHILD: &str = "POSTRIDER_TESTKIT_MEMBER";

/// What the script does: make the run, hold its FIFO open, run its members, be killed.
const OWNER: &str = r#"
set -eu
run=$1; shift
mkdir -m 711 "$run"
echo $$ >"$run/pid"
mkfifo "$run/alive"
exec 9<>"$run/alive"
export POSTRIDER_TEST_RUN="$run"
"$@" 9>&- & "$@" 9>&-
wait
echo members done
kill -s KILL $$
"#;

#[tokio::test]
async fn member() -> Result<()> {
    if std::env::var_os(CHILD).is_some() {
        let server = postgres(Version::default()).await?;
        println!("server: {}", server.pid()?);
    }
    Ok(())
}

#[test]
fn members_share_one_server_that_outlives_them_but_not_the_owner() -> Result<()> {
    let run = std::env::temp_dir().join(format!("postrider-test-{}-owned", std::process::id()));
    let output = Command::new("sh")
        .args(["-c", OWNER, "owner"])
        .arg(&run)
        .arg(std::env::current_exe()?)
        .args(["--exact", "shared_run::member", "--nocapture"])
        .env(CHILD, "yes")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .process_group(0)
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let pids: Vec<i32> =
        text.lines().filter_map(|line| line.split_once("server: ")?.1.trim().parse().ok()).collect();
    assert_eq!(pids.len(), 2, "{text}");
    assert_eq!(pids[0], pids[1]);
    assert!(text.contains("members done"), "{text}");
    vanish(pids[0], &run)
}

fn vanish(pid: i32, run: &Path) -> Result<()> {
    let server = Process::find(pid);
    let start = Instant::now();
    while run.exists() || server.is_some_and(Process::is_alive) {
        ensure!(start.elapsed() < Duration::from_mins(2), "left behind: {}", run.display());
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

#[tokio::test]
async fn a_directory_that_is_not_a_run_is_refused() -> Result<()> {
    let output = Command::new(std::env::current_exe()?)
        .args(["--exact", "shared_run::member", "--nocapture"])
        .env(CHILD, "yes")
        .env("POSTRIDER_TEST_RUN", std::env::temp_dir())
        .output()
        .context("starting a member")?;
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr)? + &String::from_utf8(output.stdout)?;
    assert!(said.contains("is not called postrider-test-"), "{said}");
    Ok(())
}
