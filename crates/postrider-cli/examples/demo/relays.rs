//! Two relays, `postrider run` each. One that ends is started again, as a supervisor would.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use postrider_testkit::{Process, Signal};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::mpsc;

use crate::place::Place;
use crate::published::Published;

/// One that ends sooner has not got to work: then something is wrong, and starting it again will not mend it.
const TOO_SOON: Duration = Duration::from_millis(300);

/// What was heard of the relays.
pub(crate) enum News {
    /// An event on a standard output.
    Event { event: Published, at: Instant },
    /// A relay has ended; another was started in its place.
    Ended(Ended),
}

/// The end of a relay.
pub(crate) struct Ended {
    pub(crate) name: String,
    pub(crate) pid: u32,
    pub(crate) status: ExitStatus,
}

pub(crate) struct Relays {
    seats: [Seat; 2],
    launcher: Launcher,
    events: mpsc::UnboundedReceiver<(Published, Instant)>,
}

/// A place for a relay; those who take it one after the other are called A, A2, A3, …
struct Seat {
    letter: char,
    number: u32,
    pid: u32,
    child: Child,
    since: Instant,
}

struct Launcher {
    postrider: PathBuf,
    url: String,
    folder: PathBuf,
    events: mpsc::UnboundedSender<(Published, Instant)>,
}

impl Relays {
    pub(crate) async fn start(place: &Place) -> anyhow::Result<Self> {
        let (sender, events) = mpsc::unbounded_channel();
        let launcher = Launcher {
            postrider: place.postrider.clone(),
            url: place.url.clone(),
            folder: place.folder.clone(),
            events: sender,
        };
        let first = launcher.launch('A', 1)?;
        // The first one does the work, the second stands by: a newcomer finds that easier to follow than the luck of the draw.
        place.until_held().await.with_context(|| launcher.last_words('A'))?;
        let seats = [first, launcher.launch('B', 1)?];
        Ok(Self { seats, launcher, events })
    }

    /// Waits for something to tell.
    pub(crate) async fn news(&mut self) -> anyhow::Result<News> {
        let [first, second] = &mut self.seats;
        let (seat, status) = tokio::select! {
            Some((event, at)) = self.events.recv() => return Ok(News::Event { event, at }),
            status = first.child.wait() => (first, status?),
            status = second.child.wait() => (second, status?),
        };
        let ended = Ended { name: seat.name(), pid: seat.pid, status };
        if seat.since.elapsed() < TOO_SOON {
            bail!(
                "a relay has ended at once, with {status}; it said:\n{}",
                self.launcher.last_words(seat.letter)
            );
        }
        *seat = self.launcher.launch(seat.letter, seat.number + 1)?;
        Ok(News::Ended(ended))
    }

    /// The relay of that name, if it runs.
    pub(crate) fn pid(&self, name: &str) -> Option<u32> {
        self.seats.iter().find(|seat| seat.name() == name).map(|seat| seat.pid)
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self, name: &str) -> anyhow::Result<()> {
        match self.seats.iter_mut().find(|seat| seat.name() == name) {
            Some(seat) => Ok(seat.child.start_kill()?),
            None => Ok(()),
        }
    }

    /// Tells both to stop, and waits until they have.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        for seat in &self.seats {
            if let Some(process) = Process::find(seat.pid.cast_signed()) {
                process.signal(Signal::TERM)?;
            }
        }
        for seat in &mut self.seats {
            let status = seat.child.wait().await?;
            if status.code().is_some_and(|code| code != 0) {
                bail!(
                    "a relay that was told to stop ended with {status}; it said:\n{}",
                    self.launcher.last_words(seat.letter)
                );
            }
        }
        Ok(())
    }
}

impl Seat {
    fn name(&self) -> String {
        name(self.letter, self.number)
    }
}

fn name(letter: char, number: u32) -> String {
    match number {
        1 => letter.to_string(),
        later => format!("{letter}{later}"),
    }
}

impl Launcher {
    fn launch(&self, letter: char, number: u32) -> anyhow::Result<Seat> {
        let log = OpenOptions::new().create(true).append(true).open(self.log(letter))?;
        // The kernel ends the relay should we be killed. It counts the thread that starts it: ours is the only one.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(&self.postrider).arg("run").arg("--config");
        command.arg(self.folder.join("postrider.yaml")).args(["--name", &name(letter, number)]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        // Ctrl-C is for us: a group of its own. We tell it when to stop.
        command.process_group(0).kill_on_drop(true);
        crate::place::prepare(&mut command, &self.url);
        let mut child = command.spawn().context("starting a relay (needs `setpriv` of util-linux)")?;
        if let Some(stdout) = child.stdout.take() {
            tokio::spawn(listen(stdout, self.events.clone()));
        }
        let pid = child.id().context("a relay has ended at once")?;
        Ok(Seat { letter, number, pid, child, since: Instant::now() })
    }

    fn log(&self, letter: char) -> PathBuf {
        self.folder.join(format!("relay-{letter}.log"))
    }

    fn last_words(&self, letter: char) -> String {
        let text = std::fs::read_to_string(self.log(letter)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }
}

/// Hands on what a relay prints, until it is gone.
async fn listen(stdout: ChildStdout, events: mpsc::UnboundedSender<(Published, Instant)>) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(event) = Published::read(&line)
            && events.send((event, Instant::now())).is_err()
        {
            return;
        }
    }
}
