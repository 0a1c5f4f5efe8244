//! A reader: every committed event once, in order per key, from the lanes it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::bell::{Hint, Silence};
use super::driver::{Command, Driver, Settle, State};
use super::error::{Error, Result};
use super::lanes::Settling;
use super::link::Found;
use super::parking::{Holder, Parking};
use super::record::Record;
use super::report::Report;
use super::ring::Retention;
use super::room::{BatchBytes, Hold};
use super::servers::Servers;
use super::sink::Start;

/// How a reader reads.
#[derive(Debug, Clone)]
pub struct ReaderOptions {
    /// Readers of one sink share its lanes and its progress.
    pub sink: String,
    /// Shown to operators as the holder of its lanes.
    pub name: String,
    /// Where the sink begins if it does not exist yet.
    pub start: Start,
    /// The most records per lane and round.
    pub page: u32,
    /// About how many bytes a batch may have. Three batches may be in memory at once, or one event that is larger than two of them.
    pub batch_bytes: BatchBytes,
    /// Whether one reader has to hold all lanes while others stand by.
    pub alone: bool,
    /// A reader that is silent for so long loses its lanes.
    pub lease: Duration,
    /// The first and the longest pause when there is nothing to read.
    pub idle: (Duration, Duration),
    /// Whether producers are asked to wake it.
    pub hint: Hint,
    /// How long delivered events are kept.
    pub retention: Retention,
    /// How often the log is checked and the ring turned.
    pub sweep: Duration,
    /// How long the database may take to answer. A round that takes longer is read again with smaller pages.
    pub patience: Duration,
    /// On how many standbys an event has to be before it is handed out, so that a failover to one of them takes nothing back. Its role
    /// has to see them: `pg_read_all_stats`.
    pub standbys: u32,
}

impl ReaderOptions {
    /// The defaults, for this sink.
    pub fn new(sink: impl Into<String>) -> Self {
        Self {
            sink: sink.into(),
            name: format!("reader {}", std::process::id()),
            start: Start::default(),
            page: 1000,
            batch_bytes: BatchBytes::default(),
            alone: false,
            lease: Duration::from_secs(5),
            idle: (Duration::from_micros(500), Duration::from_secs(2)),
            hint: Hint::default(),
            retention: Retention::default(),
            sweep: Duration::from_mins(1),
            patience: Duration::from_secs(20),
            standbys: 0,
        }
    }
}

/// Records of several lanes, read together.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The connection that read it: cursors in memory do not outlive theirs.
    pub(super) link: Uuid,
    pub(super) pages: Found,
    pub(super) read_at: Instant,
    /// Free again when the last clone is gone.
    pub(super) _room: Arc<Hold>,
}

impl Batch {
    /// Lane by lane, in delivery order inside each.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.pages.values().flat_map(|(_, page)| &page.records)
    }

    /// The records of each lane.
    pub fn lanes(&self) -> impl Iterator<Item = (i16, &[Record])> {
        self.pages.iter().map(|(lane, (_, page))| (*lane, page.records.as_slice()))
    }

    /// The records of one lane.
    pub fn lane(&self, lane: i16) -> &[Record] {
        self.pages.get(&lane).map_or(&[], |(_, page)| &page.records)
    }

    /// The epoch in which a lane of it came to this reader. Another one means that somebody else may have had the lane in between.
    pub fn since(&self, lane: i16) -> Option<i64> {
        self.pages.get(&lane).map(|(place, _)| place.since())
    }

    /// When it was read.
    pub fn read_at(&self) -> Instant {
        self.read_at
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.pages.values().map(|(_, page)| page.records.len()).sum()
    }

    /// Never true for a batch that a reader handed out.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Whether a batch may still be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Nobody else can hold its lanes.
    Held,
    /// The lease has run out and may be renewed: wait.
    Expired,
    /// The connection that read it is gone: it is read again.
    Gone,
}

/// What settling a batch came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settled {
    /// Lanes of the batch that another reader holds by now: it reads their unsettled records again. Empty unless this reader was
    /// silent for longer than its lease.
    pub lost: Vec<i16>,
}

/// What whoever reads has to say about its lanes.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    /// Kept although nothing of theirs is unsettled.
    pub(super) kept: BTreeSet<i16>,
    /// Given back, each with the epoch in which it came, although not all that was read of them is settled.
    pub(super) given_back: BTreeMap<i16, i64>,
}

pub(super) type SharedWishes = Arc<Mutex<Wishes>>;

/// Reads the log for one sink. Any number of readers of one sink share its lanes.
///
/// What [`next`](Self::next) hands out is durable and stays unsettled until [`settle`](Self::settle). The work is done by a task
/// of its own, which keeps the lease while you are busy and reads one batch ahead; dropping the reader ends it like a crash
/// (what was unsettled is read again by whoever takes over), [`close`](Self::close) hands the lanes back at once.
///
/// All methods may be cancelled: nothing that was read is lost by dropping a future.
pub struct Reader {
    sink: String,
    holder: Holder,
    wishes: SharedWishes,
    report: watch::Sender<Report>,
    batches: mpsc::Receiver<Result<Batch>>,
    commands: mpsc::Sender<Command>,
    state: watch::Receiver<State>,
    task: JoinHandle<()>,
}

impl Reader {
    /// Connects, checks that this is the database the cursors were made in, and takes its share of the lanes.
    pub async fn open(database: Servers, options: ReaderOptions) -> Result<Self> {
        let sink = options.sink.clone();
        let (batch_sender, batches) = mpsc::channel(1);
        let (commands, command_receiver) = mpsc::channel(1);
        let (state_sender, state) = watch::channel(State::default());
        let wishes = SharedWishes::default();
        let (report, reported) = watch::channel(Report::default());
        let driver = Driver::connect(
            database,
            options,
            batch_sender,
            command_receiver,
            state_sender,
            Arc::clone(&wishes),
            reported,
        )
        .await?;
        let holder = driver.holder();
        Ok(Self { sink, holder, wishes, report, batches, commands, state, task: tokio::spawn(driver.run()) })
    }

    /// Waits for the next records. Reconnects by itself; an error is one that needs a person, and ends the reader.
    pub async fn next(&mut self) -> Result<Batch> {
        loop {
            let batch = self.batches.recv().await.unwrap_or_else(|| Err(self.gone()))?;
            // Read ahead by a connection that is gone: it will be read again.
            if self.state.borrow().link == Some(batch.link) {
                return Ok(batch);
            }
        }
    }

    /// Settles all records of a batch. Batches are settled in the order in which they were read.
    pub async fn settle(&mut self, batch: &Batch) -> Result<Settled> {
        self.settle_first(batch, |_, page| page.len()).await
    }

    /// Settles, of each lane, the first records that `delivered` says. May be called again for the same batch with more.
    pub async fn settle_first(
        &mut self,
        batch: &Batch,
        delivered: impl Fn(i16, &[Record]) -> usize,
    ) -> Result<Settled> {
        let mut settlement = Settlement::default();
        settlement.add(batch, |lane, records| Some(delivered(lane, records)));
        self.settler().settle(settlement).await
    }

    /// For settling while [`next`](Self::next) is waited for.
    pub fn settler(&self) -> Settler {
        Settler { sink: self.sink.clone(), commands: self.commands.clone() }
    }

    /// Keeps these lanes for as long as they are named here, beside those with unsettled records: something of theirs is being done.
    pub fn keep(&self, lanes: BTreeSet<i16>) {
        self.wishes().kept = lanes;
    }

    /// Gives lanes that are [`retiring`](Self::retiring) back before all that was read of them is settled, each with the epoch in which it
    /// came: for as long as they are named here, nothing that was handed out of them is unsettled and delivered, and nothing is delivered.
    pub fn give_back(&self, lanes: BTreeMap<i16, i64>) {
        self.wishes().given_back = lanes;
    }

    fn wishes(&self) -> MutexGuard<'_, Wishes> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What operators are told with the next heartbeat; soon, if it is another [`Mood`](super::Mood).
    pub fn report(&self, report: Report) {
        self.report.send_if_modified(|said| {
            let is_news = report.is_news_after(said);
            *said = report;
            is_news
        });
    }

    /// For what is done to parked events.
    pub fn holder(&self) -> Holder {
        self.holder
    }

    /// Whether a batch may still be delivered.
    pub fn standing(&self, batch: &Batch) -> Standing {
        let state = self.state.borrow();
        match state.lease_ends {
            _ if state.link != Some(batch.link) => Standing::Gone,
            Some(ends) if Instant::now() < ends => Standing::Held,
            _ => Standing::Expired,
        }
    }

    /// Everything that committed up to here and can be seen is settled in the lanes it holds. `None` while it holds none.
    pub fn settled_position(&self) -> Option<i64> {
        self.state.borrow().settled_position
    }

    /// The connection it reads through: another one than before means that it has connected again.
    pub fn connection(&self) -> Option<Uuid> {
        self.state.borrow().link
    }

    /// The timeline of the server it reads from: another one than before means a failover.
    pub fn timeline(&self) -> Option<i64> {
        self.state.borrow().timeline
    }

    /// Why the log cannot be read just now; it goes on by itself.
    pub fn trouble(&self) -> Option<Arc<str>> {
        self.state.borrow().trouble.clone()
    }

    /// How many slots of the ring it has emptied before their retention was over, to keep the log below its size.
    pub fn shortened(&self) -> u64 {
        self.state.borrow().shortened
    }

    /// Waits until something of what it shows has changed: its lanes, its connection, its trouble.
    pub async fn changed(&mut self) {
        if self.state.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// The lanes it holds at the moment.
    pub fn lanes(&self) -> Vec<i16> {
        self.state.borrow().lanes.keys().copied().collect()
    }

    /// The lanes it holds, with the epoch in which each came to it. None while its lease has run out: others may have them.
    pub fn tenures(&self) -> BTreeMap<i16, i64> {
        let state = self.state.borrow();
        let is_held = state.lease_ends.is_some_and(|ends| Instant::now() < ends);
        if is_held { state.lanes.clone() } else { BTreeMap::new() }
    }

    /// The lanes it is about to give up to others: nothing new is to be begun in them. They go when everything that was read of them is
    /// settled, or when they are [given back](Self::give_back).
    pub fn retiring(&self) -> Vec<i16> {
        self.state.borrow().retiring.clone()
    }

    /// Whether a lane of a batch is still the one that it was read from. If not, somebody reads these records again.
    pub fn holds(&self, batch: &Batch, lane: i16) -> bool {
        let state = self.state.borrow();
        state.link == Some(batch.link)
            && batch.since(lane).is_some_and(|since| state.lanes.get(&lane) == Some(&since))
    }

    /// Why producers do not wake this reader, if they do not.
    pub fn silence(&self) -> Option<Silence> {
        self.state.borrow().silence
    }

    /// Hands the lanes back, so that others need not wait for the lease to run out.
    pub async fn close(mut self) -> Result<()> {
        // A batch that was read ahead and not taken is given back with its lane.
        self.batches.close();
        let (reply, answer) = oneshot::channel();
        if self.commands.send(Command::Close { reply }).await.is_err() {
            return Ok(());
        }
        answer.await.unwrap_or(Ok(()))
    }

    fn gone(&self) -> Error {
        Error::ReaderEnded { sink: self.sink.clone() }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What is to be settled in one go: parts of one or several batches, and what is parked with them.
#[derive(Debug, Default)]
pub struct Settlement {
    link: Option<Uuid>,
    cursors: Vec<(i16, Settling)>,
    /// Stored in the same transaction.
    pub parking: Parking,
}

impl Settlement {
    /// Of each lane of a batch, the first records that `delivered` says; `None` leaves the lane out. Batches are added in the order in
    /// which they were read; those of an earlier connection are dropped, they are read again.
    pub fn add(&mut self, batch: &Batch, delivered: impl Fn(i16, &[Record]) -> Option<usize>) {
        if self.link != Some(batch.link) {
            self.cursors.clear();
            self.link = Some(batch.link);
        }
        self.cursors.extend(batch.pages.iter().filter_map(|(&lane, (place, page))| {
            Some((lane, place.settling(page, delivered(lane, &page.records)?)))
        }));
    }
}

/// Settles for a [`Reader`].
#[derive(Debug, Clone)]
pub struct Settler {
    sink: String,
    commands: mpsc::Sender<Command>,
}

impl Settler {
    /// Stores how far everything is delivered. One settlement at a time.
    pub async fn settle(&self, settlement: Settlement) -> Result<Settled> {
        let gone = || Error::ReaderEnded { sink: self.sink.clone() };
        let Some(link) = settlement.link else { return Ok(Settled::default()) };
        let (reply, answer) = oneshot::channel();
        let Settlement { cursors, parking, .. } = settlement;
        let settle = Command::Settle(Settle { sink: self.sink.clone(), link, cursors, parking, reply });
        self.commands.send(settle).await.map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }
}
