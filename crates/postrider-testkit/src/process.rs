//! A process that is not our child, told apart from a later one with the same pid.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

/// How often a loop looks whether an outside process has got somewhere.
pub(crate) const POLL: Duration = Duration::from_millis(5);

/// A process, known by pid and start time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    pid: i32,
    started: u64,
}

struct Stat {
    state: char,
    parent: i32,
    started: u64,
}

impl Process {
    /// The live process that has `pid` now.
    pub fn find(pid: i32) -> Option<Self> {
        let stat = stat(pid)?;
        (stat.state != 'Z').then_some(Self { pid, started: stat.started })
    }

    /// The process id.
    pub fn pid(self) -> i32 {
        self.pid
    }

    /// Whether it still runs. A zombie does not, although `kill -0` would still succeed on it.
    pub fn is_alive(self) -> bool {
        Self::find(self.pid) == Some(self)
    }

    /// Sends `signal`; that the process is gone already is no error.
    pub fn signal(self, signal: Signal) -> Result<()> {
        let Some(pid) = self.is_alive().then(|| Pid::from_raw(self.pid)).flatten() else {
            return Ok(());
        };
        match rustix::process::kill_process(pid, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("sending {signal:?} to process {}", self.pid)),
        }
    }

    /// Everything it started, and what those started.
    pub fn descendants(self) -> Vec<Self> {
        let mut family = vec![self.pid];
        let all = all();
        // Parents are not always listed before children: repeat until nothing is added.
        loop {
            let before = family.len();
            for (process, parent) in &all {
                if family.contains(parent) && !family.contains(&process.pid) {
                    family.push(process.pid);
                }
            }
            if family.len() == before {
                break;
            }
        }
        all.into_iter()
            .map(|(process, _)| process)
            .filter(|p| p.pid != self.pid && family.contains(&p.pid))
            .collect()
    }

    /// `kill -9` of it and all it started, as close to a power cut as signals get.
    pub fn kill_tree(self) -> Result<()> {
        // Stopped first, so that it can neither start more children nor tidy up after the dead ones.
        self.signal(Signal::STOP)?;
        let children = self.descendants();
        self.signal(Signal::KILL)?;
        for child in &children {
            child.signal(Signal::KILL)?;
        }
        for process in children.into_iter().chain([self]) {
            process.wait_gone(Duration::from_mins(1))?;
        }
        Ok(())
    }

    /// SIGSTOP, and waits until every thread has stopped: the signal is on its way when it was sent, and some of them run on for a moment.
    pub fn freeze(self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let start = Instant::now();
        while self.is_alive() && !self.has_stopped() {
            if start.elapsed() > Duration::from_mins(1) {
                bail!("process {} has not stopped after {:?}", self.pid, start.elapsed());
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn has_stopped(self) -> bool {
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", self.pid)) else { return false };
        threads
            .filter_map(|thread| stat_in(&thread.ok()?.path()))
            .all(|thread| matches!(thread.state, 'T' | 't' | 'Z'))
    }

    /// Waits until it has ended.
    pub fn wait_gone(self, deadline: Duration) -> Result<()> {
        let start = Instant::now();
        while self.is_alive() {
            if start.elapsed() > deadline {
                bail!("process {} is still alive after {deadline:?}", self.pid);
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

fn stat(pid: i32) -> Option<Stat> {
    stat_in(Path::new(&format!("/proc/{pid}")))
}

fn stat_in(folder: &Path) -> Option<Stat> {
    let text = fs::read_to_string(folder.join("stat")).ok()?;
    // The second field is the program's name in brackets and may itself hold blanks and brackets.
    let mut fields = text.rsplit_once(") ")?.1.split(' ');
    Some(Stat {
        state: fields.next()?.chars().next()?,
        parent: fields.next()?.parse().ok()?,
        started: fields.nth(17)?.parse().ok()?,
    })
}

fn all() -> Vec<(Process, i32)> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(|pid| stat(pid).map(|stat| (Process { pid, started: stat.started }, stat.parent)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_tree_dies_whole_and_a_zombie_is_dead() {
        // `wait` keeps the shell alive as the parent of the two sleeps.
        let mut shell = Command::new("sh").args(["-c", "sleep 100 & sleep 100 & wait"]).spawn().unwrap();
        let process = Process::find(shell.id().cast_signed()).unwrap();
        while process.descendants().len() < 2 {
            std::thread::sleep(POLL);
        }
        let children = process.descendants();
        process.kill_tree().unwrap();
        assert!(children.into_iter().all(|child| !child.is_alive()));
        assert!(fs::exists(format!("/proc/{}", process.pid)).unwrap(), "not reaped yet");
        assert!(!process.is_alive());
        process.signal(Signal::TERM).unwrap();
        shell.wait().unwrap();
    }
}
