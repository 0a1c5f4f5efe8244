//! A reader: every committed event once, in order per key, from the lanes it holds.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rand::RngExt;
use sqlx::postgres::PgConnectOptions;
use uuid::Uuid;

use super::bell::{self, Heard, Hint, Silence};
use super::error::{Error, Result};
use super::lease;
use super::link::Link;
use super::record::Record;
use super::ring::Retention;
use super::round::Page;
use super::sink::Start;
use super::wake::{Action, Event, Sleeper};

/// How a reader reads.
#[derive(Debug, Clone)]
pub struct ReaderOptions {
    /// Readers of one sink share its lanes and its progress.
    pub sink: String,
    /// Shown to operators as the holder of its lanes.
    pub name: String,
    /// Where the sink begins if it does not exist yet.
    pub start: Start,
    /// Records per lane and round.
    pub page: u32,
    /// A reader that is silent for so long loses its lanes.
    pub lease: Duration,
    /// The first and the longest pause when there is nothing to read.
    pub idle: (Duration, Duration),
    /// Whether producers are asked to wake it.
    pub hint: Hint,
    /// How long delivered events are kept.
    pub retention: Retention,
}

impl ReaderOptions {
    /// The defaults, for this sink.
    pub fn new(sink: impl Into<String>) -> Self {
        Self {
            sink: sink.into(),
            name: format!("reader {}", std::process::id()),
            start: Start::default(),
            page: 1000,
            lease: Duration::from_secs(5),
            idle: (Duration::from_millis(5), Duration::from_secs(2)),
            hint: Hint::default(),
            retention: Retention::default(),
        }
    }
}

/// Records of several lanes, read together.
#[derive(Debug, Clone)]
pub struct Batch {
    epoch: i64,
    pages: BTreeMap<i16, Page>,
}

impl Batch {
    /// Lane by lane, in delivery order inside each.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.pages.values().flat_map(|page| &page.records)
    }

    /// The records of each lane.
    pub fn lanes(&self) -> impl Iterator<Item = (i16, &[Record])> {
        self.pages
            .iter()
            .map(|(lane, page)| (*lane, page.records.as_slice()))
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.pages.values().map(|page| page.records.len()).sum()
    }

    /// Never true for a batch that a reader handed out.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Reads the log for one sink. Any number of readers of one sink share its lanes.
///
/// What [`next`](Self::next) hands out is durable and stays unsettled until [`settle`](Self::settle): a reader that dies in
/// between, or is silent for longer than its lease, has its unsettled records read again by whoever takes over.
pub struct Reader {
    database: PgConnectOptions,
    options: ReaderOptions,
    id: Uuid,
    link: Option<Link>,
    failures: u32,
    idle_rounds: u32,
    /// The end of the pause or sleep it is in.
    resting_until: Option<Instant>,
}

impl Reader {
    /// Connects, checks that this is the database the cursors were made in, and takes its share of the lanes.
    pub async fn open(database: PgConnectOptions, options: ReaderOptions) -> Result<Self> {
        let id = Uuid::now_v7();
        let link = Link::connect(&database, &options, id).await?;
        Ok(Self {
            database,
            options,
            id,
            link: Some(link),
            failures: 0,
            idle_rounds: 0,
            resting_until: None,
        })
    }

    /// Waits for the next records. Reconnects by itself; an error is one that needs a person.
    pub async fn next(&mut self) -> Result<Batch> {
        loop {
            match self.step().await {
                Ok(Some(batch)) => {
                    self.failures = 0;
                    return Ok(batch);
                }
                Ok(None) => self.failures = 0,
                Err(error) if error.is_transient() => self.fail(&error).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Settles all records of a batch.
    pub async fn settle(&mut self, batch: &Batch) -> Result<()> {
        self.settle_first(batch, |_, page| page.len()).await
    }

    /// Settles, of each lane, the first records that `delivered` says.
    pub async fn settle_first(
        &mut self,
        batch: &Batch,
        delivered: impl Fn(i16, &[Record]) -> usize,
    ) -> Result<()> {
        let lost = || Error::LeaseLost {
            sink: self.options.sink.clone(),
            epoch: batch.epoch,
        };
        let link = self
            .link
            .as_mut()
            .filter(|link| link.tenure.epoch == batch.epoch)
            .ok_or_else(lost)?;
        for (&lane, page) in &batch.pages {
            link.lanes
                .on_delivered(lane, page, delivered(lane, &page.records));
        }
        match link.settle().await {
            Ok(()) => Ok(()),
            Err(error) => {
                // Whether it was stored is unknown: only what is stored counts from here on.
                self.link = None;
                Err(error)
            }
        }
    }

    /// The lanes it holds at the moment.
    pub fn lanes(&self) -> Vec<i16> {
        self.link
            .as_ref()
            .map(|link| link.lanes.numbers())
            .unwrap_or_default()
    }

    /// Why producers do not wake this reader, if they do not.
    pub fn silence(&self) -> Option<Silence> {
        self.link.as_ref().and_then(|link| link.bell.silence())
    }

    /// Hands the lanes back, so that others need not wait for the lease to run out.
    pub async fn close(mut self) -> Result<()> {
        match &mut self.link {
            Some(link) => lease::release(&mut link.connection, self.id).await,
            None => Ok(()),
        }
    }

    /// One step of the wake-up protocol: at most one statement or one wait.
    async fn step(&mut self) -> Result<Option<Batch>> {
        let link = match &mut self.link {
            Some(link) => link,
            none => none.insert(Link::connect(&self.database, &self.options, self.id).await?),
        };
        if link.keep_alive(&self.options, self.id).await? {
            // New lanes may have been waiting for a while: look before resting any longer.
            self.idle_rounds = 0;
            self.resting_until = None;
            link.sleeper = Sleeper::default();
        }
        if link.lanes.is_empty() {
            link.bell.wait(link.next_duty()).await?;
            return Ok(None);
        }
        let (shortest, longest) = self.options.idle;
        match link.sleeper.next() {
            Action::Look => {
                let (pages, xmin) = link.look(i64::from(self.options.page)).await?;
                let found = !pages.is_empty();
                link.sleeper.on(Event::Looked { found, xmin });
                if found {
                    self.idle_rounds = 0;
                    return Ok(Some(Batch {
                        epoch: link.tenure.epoch,
                        pages,
                    }));
                }
                return self.after_nothing().await.map(|()| None);
            }
            Action::TakeTicket => {
                let ticket = link.take_ticket(longest + shortest).await?;
                link.sleeper.on(Event::Ticket(ticket));
            }
            Action::TakeXid => {
                let xid = bell::take_xid(&mut link.connection).await?;
                link.lanes.bound_by(xid);
                link.sleeper.on(Event::Xid(xid));
            }
            Action::Disarm(ticket) => {
                bell::disarm(&mut link.connection, ticket).await?;
                link.sleeper.on(Event::Disarmed);
            }
            Action::Watch => self.wait(self.pause()).await?,
            Action::Sleep => self.wait(longest).await?,
        }
        Ok(None)
    }

    /// Nothing was there: a few short pauses, because work tends to follow work; then sleep, or pause for longer and longer.
    async fn after_nothing(&mut self) -> Result<()> {
        const SHORT_PAUSES: u32 = 4;
        let pause = self.pause();
        self.idle_rounds = self.idle_rounds.saturating_add(1);
        let Some(link) = &mut self.link else { return Ok(()) };
        if link.sleeper.is_armed() {
            return Ok(());
        }
        let can_sleep = link.bell.silence().is_none() && self.idle_rounds > SHORT_PAUSES;
        if can_sleep && bell::may_arm(&mut link.connection).await? {
            link.sleeper.doze();
            return Ok(());
        }
        self.wait(pause).await
    }

    /// The pause after so many rounds without a record.
    fn pause(&self) -> Duration {
        /// A user who prepares transactions gets no hint, so polling must not become slow.
        const LONGEST_WITHOUT_HINT: Duration = Duration::from_millis(100);
        let (shortest, longest) = self.options.idle;
        let longest = match self.silence() {
            Some(Silence::PreparedTransactions) => longest.min(LONGEST_WITHOUT_HINT),
            _ => longest,
        };
        shortest
            .saturating_mul(1_u32 << self.idle_rounds.min(16))
            .min(longest)
    }

    /// Waits, listening, but never past the next heartbeat.
    async fn wait(&mut self, longest: Duration) -> Result<()> {
        let Some(link) = &mut self.link else { return Ok(()) };
        let until = *self.resting_until.get_or_insert_with(|| Instant::now() + longest);
        let rest = until.saturating_duration_since(Instant::now());
        let event = match link.bell.wait(rest.min(link.next_duty())).await? {
            Heard::Ticket(ticket) => Event::Notified(ticket),
            // A heartbeat in the middle of a sleep does not end it.
            Heard::Nothing if Instant::now() < until => return Ok(()),
            Heard::Nothing | Heard::Broken => Event::TimedOut,
        };
        self.resting_until = None;
        if event != Event::TimedOut {
            self.idle_rounds = 0;
        }
        link.sleeper.on(event);
        Ok(())
    }

    /// The connection is of no use any more, and so is every cursor in memory that it read.
    async fn fail(&mut self, error: &Error) {
        const FIRST: Duration = Duration::from_millis(20);
        const LONGEST: Duration = Duration::from_secs(5);
        self.link = None;
        self.idle_rounds = 0;
        self.resting_until = None;
        let pause = FIRST.saturating_mul(1_u32 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        tracing::warn!(sink = self.options.sink, %error, attempt = self.failures, "reading failed; connecting again");
        let jitter = rand::rng().random_range(0.5..1.0);
        tokio::time::sleep(pause.mul_f64(jitter)).await;
    }
}
