//! A relay in a process of its own, for limits that hold for a whole process: this test binary again.

use std::collections::HashSet;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use postrider_relay::sink::BoxFuture;
use postrider_relay::sinks::{Custom, Target};
use postrider_relay::{Message, Relay, RelaySettings, Report, Sink, Unavailable, UnavailableKind};
use postrider_testkit::{Process, run_to_end};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child as Running, ChildStdin, ChildStdout};

use crate::support::{PATIENCE, sink};

const URL: &str = "POSTRIDER_TEST_CHILD";

/// Not a test: the body of the child, when it is one.
#[test]
fn as_a_child() {
    let Ok(url) = std::env::var(URL) else { return };
    // By a line on its standard input: a file would be left behind by whoever is killed.
    let gate = Gate::default();
    let opened = gate.clone();
    std::thread::spawn(move || {
        if std::io::stdin().read_line(&mut String::new()).is_ok_and(|bytes| bytes > 0) {
            opened.store(true, Ordering::Relaxed);
        }
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let database = url.parse().unwrap();
        let books = Books::default();
        let mut settings = RelaySettings::new(database, vec![sink("child", target(gate, books.clone()))]);
        settings.log.lease = Duration::from_secs(1);
        let mut relay = Relay::start(settings).unwrap();
        let watcher = relay.watcher();
        tokio::spawn(async move {
            loop {
                let (events, again) = {
                    let books = books.lock().unwrap();
                    (books.0.len(), books.1)
                };
                let state = watcher()[0].state.clone();
                println!("state {}\ntook {events} {again} {}", state.word(), resident());
                if let Some(trouble) = state.trouble() {
                    println!("trouble {}", trouble.replace('\n', " "));
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let error = relay.ended().await;
        println!("ended {error}");
    });
}

/// Whether it takes events.
type Gate = Arc<AtomicBool>;

/// The numbers of the events that came, and how many came again.
type Books = Arc<Mutex<(HashSet<u64>, usize)>>;

/// Takes everything once the gate is open.
fn target(gate: Gate, books: Books) -> Target {
    Target::Custom(Custom::new("child", move || {
        let taker = Taker { gate: Arc::clone(&gate), books: books.clone() };
        Box::pin(async move { Ok(Box::new(taker) as Box<dyn Sink>) })
    }))
}

struct Taker {
    gate: Gate,
    books: Books,
}

impl Sink for Taker {
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report> {
        Box::pin(async move {
            if !self.gate.load(Ordering::Relaxed) {
                let why = Unavailable::new(UnavailableKind::Connection, "the gate is closed");
                return Report::unavailable(batch.len(), why);
            }
            let mut books = self.books.lock().unwrap();
            for message in batch {
                let number = message.record.r#type.parse().unwrap();
                let is_new = books.0.insert(number);
                books.1 += usize::from(!is_new);
            }
            Report::delivered(batch.len())
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        Box::pin(async { Ok(()) })
    }
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok()).unwrap_or_default()
}

/// What a child tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    State(String),
    Took { events: usize, again: usize, resident: u64 },
    Trouble(String),
    Ended(String),
}

pub struct Child {
    running: Running,
    lines: Lines<BufReader<ChildStdout>>,
    stdin: ChildStdin,
}

impl Child {
    /// Starts a relay for this database, with `before` in front of its command line (`taskset`).
    pub fn start(url: &str, before: &[&str]) -> Self {
        let this = std::env::current_exe().unwrap();
        let this = this.to_str().unwrap();
        let words: Vec<&str> = before
            .iter()
            .copied()
            .chain([this, "--exact", "faults::child::as_a_child", "--nocapture", "--test-threads=1"])
            .collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env(URL, url).stdout(Stdio::piped()).stdin(Stdio::piped());
        let mut running = tokio::process::Command::from(command).kill_on_drop(true).spawn().unwrap();
        let lines = BufReader::new(running.stdout.take().unwrap()).lines();
        let stdin = running.stdin.take().unwrap();
        Self { running, lines, stdin }
    }

    /// From now on its sink takes events.
    pub async fn open_gate(&mut self) {
        self.stdin.write_all(b"open\n").await.unwrap();
    }

    /// From now on it may have so many files open.
    pub fn limit_files(&self, most: u32) {
        let pid = self.running.id().unwrap().to_string();
        run_to_end(Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={most}:1024")])).unwrap();
    }

    pub async fn next(&mut self) -> Word {
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < PATIENCE, "the child says nothing");
            let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await.unwrap().unwrap();
            let line = line.expect("the child has ended");
            let words: Vec<&str> = line.split(' ').collect();
            let number = |place: usize| words[place].parse::<u64>().unwrap();
            match words[0] {
                "state" => return Word::State(words[1].to_owned()),
                "took" => {
                    let count = |place| usize::try_from(number(place)).unwrap();
                    return Word::Took { events: count(1), again: count(2), resident: number(3) };
                }
                "trouble" => return Word::Trouble(line.clone()),
                "ended" => return Word::Ended(line.clone()),
                // The harness's own.
                _ => {}
            }
        }
    }

    /// Waits until it complains in these words.
    pub async fn says(&mut self, words: &str) {
        let begun = Instant::now();
        while !matches!(self.next().await, Word::Trouble(trouble) if trouble.contains(words)) {
            assert!(begun.elapsed() < PATIENCE, "it never says {words:?}");
        }
    }

    /// Waits until it is in one of these states.
    pub async fn is(&mut self, states: &[&str]) {
        while !matches!(self.next().await, Word::State(state) if states.contains(&state.as_str())) {}
    }

    /// Waits until it has taken so many; answers how many came again.
    pub async fn took(&mut self, wanted: usize) -> usize {
        loop {
            if let Word::Took { events, again, .. } = self.next().await
                && events >= wanted
            {
                return again;
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(process) = self.running.id().and_then(|id| Process::find(id.cast_signed())) {
            let _ = process.kill_tree();
        }
    }
}
