//! A relay: one pipeline per sink, started and stopped together, in a service of its own or inside yours.

mod database;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use postrider::log::{self, BatchBytes};
use sqlx::PgPool;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use uuid::Uuid;

pub(crate) use self::database::parking;
use self::database::{pool, warn_if_unverified};
use crate::capture::{self, CaptureStatus};
use crate::face::Face;
use crate::memory::{self, Memory, Verdict};
use crate::outbox::Kept;
use crate::pipeline::{Fittings, Stop, supervise};
use crate::policy::Action;
use crate::prepare::{PrepareError, Preparer};
use crate::settings::{RelaySettings, SinkSettings};
use crate::status::{SinkStatus, State};
use crate::units::Size;

/// Why a relay could not start, or ended by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// An expression or template of a sink.
    #[error("sink {sink:?}: {source}")]
    Sink {
        /// Its name.
        sink: String,
        /// What is wrong.
        source: PrepareError,
    },
    /// Two sinks of one name.
    #[error("two sinks are called {sink:?}; give each a name of its own")]
    SameName {
        /// The name.
        sink: String,
    },
    /// The log cannot be used by this program.
    #[error(transparent)]
    Log(#[from] log::Error),
    /// Smaller buffers were not enough.
    #[error(
        "{resident} bytes of memory are in use and relay.memory_limit is {limit}; the relay has drained and ends, to be started anew"
    )]
    Memory {
        /// In use.
        resident: u64,
        /// The limit.
        limit: u64,
    },
    /// A sink is gone, and no waiting brings it back.
    #[error("sink {sink:?}: {reason}; the relay ends")]
    Gone {
        /// Its name.
        sink: String,
        /// What happened.
        reason: String,
    },
    /// A pipeline panicked.
    #[error("the pipeline of sink {sink:?} ended by a defect: {message}")]
    Defect {
        /// Its name.
        sink: String,
        /// What it said.
        message: String,
    },
}

/// One sink at work.
struct Running {
    settings: Arc<SinkSettings>,
    face: Face,
    stop: watch::Sender<Stop>,
    task: JoinHandle<log::error::Result<()>>,
}

/// A relay at work. Dropping it ends it like a crash: what was sent and not settled is sent again by the next one.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use postrider_relay::{Relay, RelaySettings, SinkSettings};
/// # let target: postrider_relay::sinks::Target = todo!();
/// let database = std::env::var("DATABASE_URL")?.parse()?;
/// let relay = Relay::start(RelaySettings::new(database, vec![SinkSettings::new("audit", target)]))?;
/// // … your service …
/// relay.stop().await;
/// # Ok(())
/// # }
/// ```
pub struct Relay {
    settings: Arc<RelaySettings>,
    pool: PgPool,
    batch_bytes: BatchBytes,
    memory: Memory,
    sinks: BTreeMap<String, Running>,
    /// Told to drain by a reload that is not over.
    leaving: Vec<Running>,
    outboxes: Vec<Kept>,
    /// What is shown of each sink, also to those who asked before a reload.
    faces: Arc<RwLock<Vec<Face>>>,
    /// Looks after the triggers of declared tables.
    sweeper: JoinHandle<()>,
    captured: Arc<watch::Sender<CaptureStatus>>,
}

impl Relay {
    /// Checks everything and starts a pipeline for each sink. Does not wait for the database or a sink: a relay waits for them as long
    /// as it takes, and [`status`](Self::status) tells.
    pub fn start(settings: RelaySettings) -> Result<Self, RelayError> {
        let prepared = prepare(&settings)?;
        let settings = Arc::new(settings);
        warn_if_unverified(&settings);
        let pool = pool(&settings);
        let (sinks, faces) = (BTreeMap::new(), Arc::default());
        let batch_bytes = BatchBytes::default();
        let memory = Memory::new(settings.memory_limit, batch_bytes.clone());
        let captured = Arc::new(watch::Sender::new(CaptureStatus::default()));
        let sweeper =
            tokio::spawn(capture::look_after(Arc::clone(&settings), pool.clone(), Arc::clone(&captured)));
        let mut relay = Self {
            settings,
            pool,
            batch_bytes,
            memory,
            sinks,
            leaving: Vec::new(),
            outboxes: Vec::new(),
            faces,
            sweeper,
            captured,
        };
        for (sink, preparer) in prepared {
            relay.launch(sink, preparer);
        }
        relay.keep_outboxes();
        relay.show();
        Ok(relay)
    }

    fn launch(&mut self, settings: Arc<SinkSettings>, preparer: Preparer) {
        let face = Face::new(&settings.name, settings.target.kind());
        let (stop, stopped) = watch::channel(Stop::No);
        let fittings = Fittings {
            relay: Arc::clone(&self.settings),
            pool: self.pool.clone(),
            batch_bytes: self.batch_bytes.clone(),
        };
        let task = tokio::spawn(supervise(fittings, Arc::clone(&settings), preparer, face.clone(), stopped));
        self.sinks.insert(settings.name.clone(), Running { settings, face, stop, task });
    }

    fn keep_outboxes(&mut self) {
        let settings = &self.settings;
        self.outboxes = settings.outboxes.iter().map(|outbox| Kept::start(settings, outbox)).collect();
    }

    /// Waits until everything that waited in adopted tables is in the log. May be cancelled.
    pub async fn has_moved(&self) {
        for kept in &self.outboxes {
            kept.has_looked().await;
        }
    }

    /// How each sink is doing.
    pub fn status(&self) -> Vec<SinkStatus> {
        self.sinks.values().map(|sink| sink.face.status()).collect()
    }

    /// Events of each sink that were delivered before a failover took them back: the server that was promoted never had them.
    pub fn taken_back(&self) -> BTreeMap<String, Vec<Uuid>> {
        self.sinks.iter().map(|(name, sink)| (name.clone(), sink.face.taken_back())).collect()
    }

    /// A way to ask for the status that outlives a borrow of the relay.
    pub fn watcher(&self) -> impl Fn() -> Vec<SinkStatus> + Send + Sync + 'static {
        let faces = Arc::clone(&self.faces);
        move || faces.read().unwrap_or_else(PoisonError::into_inner).iter().map(Face::status).collect()
    }

    /// How the triggers of the declared tables stand, now and later.
    pub fn captured(&self) -> watch::Receiver<CaptureStatus> {
        self.captured.subscribe()
    }

    fn show(&self) {
        let faces = self.sinks.values().map(|sink| sink.face.clone()).collect();
        *self.faces.write().unwrap_or_else(PoisonError::into_inner) = faces;
    }

    /// Takes over new settings, all or nothing: sinks that are new start, those that are gone or changed are drained, the others go on.
    /// May be cancelled by whoever is going to stop the relay: what drains goes on draining, and [`stop`](Self::stop) waits for it.
    pub async fn reload(&mut self, settings: RelaySettings) -> Result<(), RelayError> {
        let prepared = prepare(&settings)?;
        let whole = !self.settings.shares_with(&settings);
        let kept = |name: &str, old: &SinkSettings| {
            !whole && prepared.iter().any(|(new, _)| new.name == name && **new == *old)
        };
        let leaving: Vec<String> = self
            .sinks
            .iter()
            .filter(|(name, running)| !kept(name, &running.settings))
            .map(|(name, _)| name.clone())
            .collect();
        self.leaving.extend(leaving.iter().filter_map(|name| self.sinks.remove(name)));
        drain(&mut self.leaving, self.settings.drain, std::future::pending()).await;
        self.leaving.clear();
        let keeps_others = whole || self.settings.outboxes != settings.outboxes;
        if keeps_others {
            leave(std::mem::take(&mut self.outboxes)).await;
        }
        if whole {
            self.pool = pool(&settings);
        }
        self.memory = Memory::new(settings.memory_limit, self.batch_bytes.clone());
        self.settings = Arc::new(settings);
        self.sweeper.abort();
        self.sweeper = tokio::spawn(capture::look_after(
            Arc::clone(&self.settings),
            self.pool.clone(),
            Arc::clone(&self.captured),
        ));
        for (sink, preparer) in prepared {
            if !self.sinks.contains_key(&sink.name) {
                self.launch(sink, preparer);
            }
        }
        if keeps_others {
            self.keep_outboxes();
        }
        self.show();
        Ok(())
    }

    /// Waits until it ends by itself: the log cannot be used any more by this program, a sink is gone for good, or memory is over its
    /// limit. Call
    /// [`stop`](Self::stop) then. May be cancelled.
    pub async fn ended(&mut self) -> RelayError {
        loop {
            let ended =
                self.sinks.iter().find(|(_, sink)| sink.task.is_finished()).map(|(name, _)| name.clone());
            if let Some((sink, running)) = ended.and_then(|name| self.sinks.remove_entry(&name)) {
                match running.task.await {
                    Ok(Ok(())) => {
                        return RelayError::Defect { sink, message: "it stopped unasked".to_owned() };
                    }
                    Ok(Err(error)) => return error.into(),
                    Err(panic) => return RelayError::Defect { sink, message: panic.to_string() },
                }
            }
            if let Some((sink, reason)) = self.sinks.iter().find_map(|(name, sink)| gone(name, &sink.face)) {
                return RelayError::Gone { sink, reason };
            }
            if let Some(resident) = memory::resident() {
                let limit = self.settings.memory_limit;
                match self.memory.judge(resident) {
                    Verdict::Fine => {}
                    Verdict::Shrunk => tracing::warn!(resident, limit, "buffers shrink"),
                    Verdict::TooLarge(event) => tracing::error!(
                        event = %event.id,
                        bytes = event.bytes,
                        resident,
                        limit,
                        "this event alone takes more memory than relay.memory_limit allows while it is on its way; it is delivered all the \
                         same, one event at a time. Set relay.memory_limit to {} at least, or keep payloads smaller with `postrider \
                         init --max-payload`",
                        // Buffers shrink from four fifths on.
                        Size((resident / 4 * 5).next_multiple_of(1_000_000))
                    ),
                    Verdict::Over => {
                        return RelayError::Memory { resident, limit };
                    }
                }
            }
            tokio::time::sleep(memory::OFTEN).await;
        }
    }

    /// Settles what was sent, hands the lanes back and ends, within `drain`.
    pub async fn stop(self) {
        self.stop_or(std::future::pending()).await;
    }

    /// As [`stop`](Self::stop), but does not settle any longer once `hurry` has come; lanes are handed back then too, if that takes no
    /// time. Answers whether it could be left out: everything was settled before.
    pub async fn stop_or(mut self, hurry: impl Future<Output = ()>) -> bool {
        let mut sinks = std::mem::take(&mut self.leaving);
        sinks.extend(std::mem::take(&mut self.sinks).into_values());
        let is_settled = drain(&mut sinks, self.settings.drain, hurry).await;
        // After the sinks: what they have settled last is marked too.
        leave(std::mem::take(&mut self.outboxes)).await;
        is_settled
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.sweeper.abort();
        for sink in self.sinks.values().chain(&self.leaving) {
            sink.task.abort();
        }
    }
}

/// What happened to a sink that does not come back.
fn gone(name: &str, face: &Face) -> Option<(String, String)> {
    match face.state() {
        State::Waiting { kind, reason, .. } if kind.policy().action == Action::End => {
            Some((name.to_owned(), format!("{kind}: {reason}")))
        }
        _ => None,
    }
}

async fn leave(outboxes: Vec<Kept>) {
    let leaving: tokio::task::JoinSet<()> = outboxes.into_iter().map(Kept::stop).collect();
    leaving.join_all().await;
}

/// Tells pipelines to drain, and after the deadline, or in a hurry, to end at once. Answers whether nobody had to hurry.
async fn drain(sinks: &mut Vec<Running>, deadline: Duration, hurry: impl Future<Output = ()>) -> bool {
    /// For handing the lanes back and closing the sink.
    const LAST: Duration = Duration::from_secs(1);
    const LAST_IN_A_HURRY: Duration = Duration::from_millis(500);
    for sink in &*sinks {
        let _ = sink.stop.send(Stop::Drain);
    }
    let drained = async {
        // One that has ended may have been waited for before, by a reload that was given up.
        for sink in sinks.iter_mut().filter(|sink| !sink.task.is_finished()) {
            let _ = (&mut sink.task).await;
        }
    };
    let in_time = tokio::select! {
        biased;
        () = drained => return true,
        () = hurry => false,
        () = tokio::time::sleep(deadline) => true,
    };
    sinks.retain(|sink| !sink.task.is_finished());
    for sink in &*sinks {
        tracing::warn!(
            sink = sink.settings.name,
            "not drained in time; what is in flight will be delivered again"
        );
        let _ = sink.stop.send(Stop::Now);
    }
    let end = tokio::time::Instant::now() + if in_time { LAST } else { LAST_IN_A_HURRY };
    for sink in sinks {
        if tokio::time::timeout_at(end, &mut sink.task).await.is_err() {
            sink.task.abort();
        }
    }
    in_time
}

/// Everything that can be wrong with the settings shows here, before anything runs.
fn prepare(settings: &RelaySettings) -> Result<Vec<(Arc<SinkSettings>, Preparer)>, RelayError> {
    let mut prepared: Vec<(Arc<SinkSettings>, Preparer)> = Vec::new();
    for sink in &settings.sinks {
        if prepared.iter().any(|(other, _)| other.name == sink.name) {
            return Err(RelayError::SameName { sink: sink.name.clone() });
        }
        let compiled =
            Preparer::new(sink).map_err(|source| RelayError::Sink { sink: sink.name.clone(), source })?;
        prepared.push((Arc::new(sink.clone()), compiled));
    }
    Ok(prepared)
}
