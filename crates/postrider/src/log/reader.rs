//! A reader: every committed event once, in order per key, from the lanes it holds.

use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::bell::{Hint, Silence};
use super::driver::{Command, Driver, State};
use super::error::{Error, Result};
use super::link::Found;
use super::record::Record;
use super::ring::Retention;
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
    /// How often the log is checked and the ring turned.
    pub sweep: Duration,
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
            sweep: Duration::from_mins(1),
        }
    }
}

/// Records of several lanes, read together.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The connection that read it: cursors in memory do not outlive theirs.
    pub(super) link: Uuid,
    pub(super) pages: Found,
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

    /// Number of records.
    pub fn len(&self) -> usize {
        self.pages.values().map(|(_, page)| page.records.len()).sum()
    }

    /// Never true for a batch that a reader handed out.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What settling a batch came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settled {
    /// Lanes of the batch that another reader holds by now: it reads their unsettled records again. Empty unless this reader was
    /// silent for longer than its lease.
    pub lost: Vec<i16>,
}

/// Reads the log for one sink. Any number of readers of one sink share its lanes.
///
/// What [`next`](Self::next) hands out is durable and stays unsettled until [`settle`](Self::settle). The work is done by a task
/// of its own, which keeps the lease while you are busy and reads one batch ahead; dropping the reader ends it like a crash
/// (what was unsettled is read again by whoever takes over), [`close`](Self::close) hands the lanes back at once.
///
/// All methods may be cancelled: nothing that was read is lost by dropping a future.
pub struct Reader {
    sink: String,
    batches: mpsc::Receiver<Result<Batch>>,
    commands: mpsc::Sender<Command>,
    state: watch::Receiver<State>,
    task: JoinHandle<()>,
}

impl Reader {
    /// Connects, checks that this is the database the cursors were made in, and takes its share of the lanes.
    pub async fn open(database: PgConnectOptions, options: ReaderOptions) -> Result<Self> {
        let sink = options.sink.clone();
        let (batch_sender, batches) = mpsc::channel(1);
        let (commands, command_receiver) = mpsc::channel(1);
        let (state_sender, state) = watch::channel(State::default());
        let driver = Driver::connect(database, options, batch_sender, command_receiver, state_sender).await?;
        Ok(Self { sink, batches, commands, state, task: tokio::spawn(driver.run()) })
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
        let cursors = batch
            .pages
            .iter()
            .map(|(&lane, (place, page))| (lane, place.settling(page, delivered(lane, &page.records))));
        let (reply, answer) = oneshot::channel();
        let settle = Command::Settle { link: batch.link, cursors: cursors.collect(), reply };
        self.commands.send(settle).await.map_err(|_| self.gone())?;
        answer.await.unwrap_or_else(|_| Err(self.gone()))
    }

    /// The lanes it holds at the moment.
    pub fn lanes(&self) -> Vec<i16> {
        self.state.borrow().lanes.clone()
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
