//! The show itself: whatever happens is entered into the books and put on the screen.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use postrider_testkit::Report;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::archive::Archive;
use crate::arguments::Arguments;
use crate::books::Books;
use crate::load::Load;
use crate::pace::Pace;
use crate::place::{Holders, Place};
use crate::relays::{News, Relays};
use crate::screen::{Live, Screen};
use crate::takeover::Takeover;

/// How long events may take to arrive after the last commit. They take milliseconds, or, if a relay was just killed, its lease.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often the file is read.
const TICK: Duration = Duration::from_millis(50);

/// How often the database is asked, and the live line drawn.
const LOOK: Duration = Duration::from_millis(250);

pub(crate) struct Show<'p> {
    place: &'p Place,
    books: Arc<Books>,
    archive: Archive,
    /// `None` once they were told to stop.
    relays: Option<Relays>,
    screen: Screen,
    pace: Pace,
    holders: Holders,
    looked: Instant,
    /// A relay was killed, and its end has not been heard of yet.
    is_dying: bool,
    takeover: Option<Takeover>,
    /// Of each broker, at the end.
    counts: Vec<(&'static str, u64)>,
}

impl<'p> Show<'p> {
    pub(crate) fn new(place: &'p Place, books: Arc<Books>, relays: Relays, screen: Screen) -> Self {
        Self {
            place,
            books,
            archive: Archive::new(place.archive()),
            relays: Some(relays),
            screen,
            pace: Pace::default(),
            holders: Holders::new(),
            looked: Instant::now(),
            is_dying: false,
            takeover: None,
            counts: Vec::new(),
        }
    }

    /// Until the time is over, or somebody says so.
    pub(crate) async fn until_over(&mut self, arguments: &Arguments, load: &mut Load) -> anyhow::Result<()> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        let mut over = std::pin::pin!(after(arguments.end));
        let mut kill = std::pin::pin!(after(arguments.kill));
        let mut is_killed = false;
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.holders = self.place.holders().await?;
        self.screen.begin()?;
        loop {
            tokio::select! {
                news = news(&mut self.relays) => self.on_news(news?)?,
                _ = tick.tick() => self.on_tick().await?,
                failed = load.failure() => return Err(failed).context("a writer failed"),
                () = &mut kill, if !is_killed => {
                    is_killed = true;
                    self.kill()?;
                }
                () = &mut over => return Ok(()),
                _ = interrupt.recv() => return Ok(()),
                _ = terminate.recv() => return Ok(()),
                _ = hang_up.recv() => return Ok(()),
            }
        }
    }

    /// Waits for what the log still owes, and lets the relays go.
    pub(crate) async fn rest(&mut self) -> anyhow::Result<()> {
        self.screen.end()?;
        let owed = self.place.events().await?;
        let begin = Instant::now();
        // What is missing after that is lost, and the report says so.
        while (self.is_dying || self.books.count_missing(&owed) > 0) && begin.elapsed() < PATIENCE {
            tokio::select! {
                news = news(&mut self.relays) => self.on_news(news?)?,
                () = sleep(TICK) => {
                    self.read()?;
                    self.on_takeover().await?;
                }
            }
        }
        self.on_takeover().await?;
        while self.behind().await?.iter().any(|(_, events)| *events > 0) && begin.elapsed() < PATIENCE {
            sleep(TICK).await;
        }
        if let Some(relays) = self.relays.take() {
            relays.stop().await?;
        }
        self.read()?;
        self.books.note_yours(&owed, &self.place.events().await?);
        Ok(())
    }

    /// The brokers, and how many events each has still to get.
    async fn behind(&self) -> anyhow::Result<Vec<(&'static str, i64)>> {
        if self.place.brokers.is_empty() {
            return Ok(Vec::new());
        }
        let backlog = self.place.backlog().await?;
        let names = self.place.brokers.iter().map(|broker| broker.kind().name());
        Ok(names.map(|name| (name, backlog.get(name).copied().unwrap_or_default())).collect())
    }

    /// How many messages each broker has, by its own word.
    pub(crate) async fn count(&mut self) -> anyhow::Result<()> {
        for broker in &self.place.brokers {
            self.counts.push((broker.kind().name(), broker.count().await?));
        }
        Ok(())
    }

    /// Whether each broker has at least as many messages as there were events: it may have one twice, and none less.
    pub(crate) fn brokers_have(&self, events: usize) -> bool {
        self.counts.iter().all(|(_, count)| usize::try_from(*count).is_ok_and(|count| count >= events))
    }

    pub(crate) fn result(&mut self, report: &Report, yours: usize) -> io::Result<()> {
        self.screen.result(report, &mut self.pace, yours, &self.counts)
    }

    fn on_news(&mut self, news: News) -> anyhow::Result<()> {
        match news {
            News::Event { event, at } => {
                let shown = self.books.show(&event, at);
                if !shown.is_yours {
                    self.pace.note(at, shown.lag);
                }
                if self.screen.event(&event, shown)? {
                    let carrier = self.carrier().map(|(_, pid)| pid);
                    self.screen.hints(self.place, carrier)?;
                }
            }
            News::Ended(ended) => {
                self.is_dying = false;
                // Whatever it wrote is in the file: what comes from now on is another's.
                self.read()?;
                self.screen.ended(&ended, &self.holders)?;
                self.takeover = Some(Takeover::begin(&self.books));
            }
        }
        Ok(())
    }

    async fn on_tick(&mut self) -> anyhow::Result<()> {
        self.read()?;
        if self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            self.holders = self.place.holders().await?;
            let (delivered, wait) = (self.books.count_filed(), self.books.longest_wait());
            let behind = self.behind().await?;
            let (pace, holders) = (&mut self.pace, &self.holders);
            self.screen.live(Live { pace, holders, delivered, wait, behind: &behind })?;
        }
        self.on_takeover().await
    }

    /// Says how a takeover went, once that is known.
    async fn on_takeover(&mut self) -> anyhow::Result<()> {
        if let Some(takeover) = &mut self.takeover
            && let Some(outcome) = takeover.look(&self.books)
        {
            self.takeover = None;
            self.holders = self.place.holders().await?;
            let carrier = self.carrier();
            self.screen.taken_over(&outcome, carrier)?;
        }
        Ok(())
    }

    fn read(&mut self) -> io::Result<()> {
        for event in self.archive.read()? {
            self.books.file(&event);
        }
        Ok(())
    }

    /// The relay that holds most lanes, and runs.
    fn carrier(&self) -> Option<(String, u32)> {
        let relays = self.relays.as_ref()?;
        let running = self.holders.iter().filter_map(|(name, sinks)| {
            relays.pid(name).map(|pid| (sinks.values().sum::<i64>(), name.clone(), pid))
        });
        running.max().map(|(_, name, pid)| (name, pid))
    }

    fn kill(&mut self) -> anyhow::Result<()> {
        let Some((name, pid)) = self.carrier() else { return Ok(()) };
        self.screen.line(&format!("$ kill -9 {pid}"))?;
        self.is_dying = true;
        match &mut self.relays {
            Some(relays) => relays.kill(&name),
            None => Ok(()),
        }
    }
}

async fn news(relays: &mut Option<Relays>) -> anyhow::Result<News> {
    match relays {
        Some(relays) => relays.news().await,
        None => pending().await,
    }
}

async fn after(time: Option<Duration>) {
    match time {
        Some(time) => sleep(time).await,
        None => pending().await,
    }
}
