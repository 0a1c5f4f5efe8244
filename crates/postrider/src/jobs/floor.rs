//! Where handlers run: what has been claimed and not begun, what runs, and what has ended.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::PgPool;
use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinError, JoinSet};
use uuid::Uuid;

use super::beat::Name;
use super::claimer::{Brought, Want};
use super::context::{Cancelled, JobContext, States};
use super::handler::Run;
use super::job::Claimed;
use super::strangers::{Strangers, not_ours};
use super::telemetry::{Attempt, Telemetry};
use super::unsettled::{Ended, Settlement, Unsettled};
use super::worker::WorkerOptions;
use super::{HandlerResult, Outcome};

/// So many claims may wait to be settled.
const MOST_CLAIMS: usize = 64;
/// Over which it is reckoned how fast jobs end.
const PACE: Duration = Duration::from_millis(100);

/// What every handler is given.
pub(super) struct Shared {
    pub(super) pool: PgPool,
    pub(super) handlers: HashMap<String, Arc<dyn Run>>,
    pub(super) states: Arc<States>,
    pub(super) cancellations: Cancelled,
    pub(super) timeout: Option<Duration>,
    pub(super) silence: Duration,
    pub(super) telemetry: Arc<Telemetry>,
    pub(super) strangers: Strangers,
}

type Joined = Result<(Id, Ended), JoinError>;

pub(super) struct Floor {
    shared: Arc<Shared>,
    concurrency: usize,
    batch: usize,
    waiting: VecDeque<Claimed>,
    running: JoinSet<Ended>,
    tasks: HashMap<Id, (i64, i64, Attempt)>,
    /// A job that has cost workers their life runs, and nothing beside it.
    is_alone: bool,
    unsettled: Unsettled,
    owners: HashMap<i64, Uuid>,
    is_safe: watch::Receiver<Instant>,
    wants: Option<mpsc::Sender<Want>>,
    is_asked: bool,
    settlements: Option<mpsc::UnboundedSender<Settlement>>,
    claimant: watch::Receiver<Uuid>,
    claimants: watch::Sender<Vec<Name>>,
    pace: usize,
    ended_now: usize,
    pace_since: Instant,
}

impl Floor {
    pub(super) fn new(
        shared: Shared,
        options: &WorkerOptions,
        is_safe: watch::Receiver<Instant>,
        wants: mpsc::Sender<Want>,
        settlements: mpsc::UnboundedSender<Settlement>,
        claimant: watch::Receiver<Uuid>,
        claimants: watch::Sender<Vec<Name>>,
    ) -> Self {
        Self {
            shared: Arc::new(shared),
            concurrency: options.concurrency.max(1),
            batch: options.batch.clamp(1, 10_000),
            waiting: VecDeque::new(),
            running: JoinSet::new(),
            tasks: HashMap::new(),
            is_alone: false,
            unsettled: Unsettled::default(),
            owners: HashMap::new(),
            is_safe,
            wants: Some(wants),
            is_asked: false,
            settlements: Some(settlements),
            claimant,
            claimants,
            pace: 0,
            ended_now: 0,
            pace_since: Instant::now(),
        }
    }

    /// Begins what may begin and asks for more.
    pub(super) fn turn(&mut self) {
        if self.claimant.has_changed().unwrap_or(false) {
            self.name_claims();
        }
        let is_safe = Instant::now() < *self.is_safe.borrow();
        if !is_safe {
            // Frozen, or the database was away: somebody else may have these by now, so they are not begun.
            self.give_back_waiting();
            return;
        }
        while let Some(next) = self.waiting.front()
            && self.running.len() < self.concurrency
            && !self.is_alone
            && (!next.is_suspect() || self.running.is_empty())
        {
            let Some(claimed) = self.waiting.pop_front() else { break };
            self.is_alone = claimed.is_suspect();
            let (claim, id, attempt) = (claimed.claim, claimed.job.id, Attempt::from(&claimed.job));
            self.shared.telemetry.begun(&attempt);
            let task = self.running.spawn(work(self.shared.clone(), claimed));
            self.tasks.insert(task.id(), (claim, id, attempt));
        }
        self.shared.telemetry.in_hand(self.running.len(), self.waiting.len());
        self.ask();
    }

    /// As many as are free, or, where jobs take no time, as many as end in a moment.
    fn ask(&mut self) {
        if self.pace_since.elapsed() >= PACE {
            self.pace = self.ended_now;
            self.ended_now = 0;
            self.pace_since = Instant::now();
        }
        let at_hand = self.running.len() + self.waiting.len();
        let capacity = self.concurrency.max((self.pace.max(self.ended_now) * 2).min(self.batch * 2));
        let is_low = at_hand < self.concurrency || at_hand <= capacity / 2;
        if !self.is_asked
            && is_low
            && capacity > at_hand
            && self.unsettled.claims() < MOST_CLAIMS
            && let Some(wants) = &self.wants
        {
            self.is_asked = wants.try_send(Want((capacity - at_hand).min(self.batch))).is_ok();
        }
    }

    pub(super) fn take(&mut self, brought: Brought) {
        self.is_asked = false;
        for claimed in brought.jobs {
            self.unsettled.add(claimed.claim);
            self.owners.insert(claimed.claim, brought.claimant);
            self.waiting.push_back(claimed);
        }
        self.name_claims();
    }

    /// Tells the heartbeat what to keep alive: all that is claimed under the newest name, and of older ones what is open and known here. A claim whose answer
    /// was lost has an older name, and must run out.
    fn name_claims(&mut self) {
        let newest = *self.claimant.borrow_and_update();
        let mut older: BTreeMap<Uuid, Vec<i64>> = BTreeMap::new();
        for (claim, owner) in self.owners.iter().filter(|(_, owner)| **owner != newest) {
            older.entry(*owner).or_default().push(*claim);
        }
        let older = older.into_iter().map(|(id, mut claims)| {
            claims.sort_unstable();
            Name { id, claims: Some(claims) }
        });
        let names: Vec<Name> = older.chain([Name { id: newest, claims: None }]).collect();
        self.claimants.send_if_modified(|known| {
            let is_news = *known != names;
            *known = names;
            is_news
        });
    }

    /// The next one that ends; for ever, if none runs.
    pub(super) async fn ended(&mut self) -> Joined {
        match self.running.join_next_with_id().await {
            Some(joined) => joined,
            None => std::future::pending().await,
        }
    }

    /// Takes note of one that has ended, and of all others that have ended meanwhile.
    pub(super) fn settle(&mut self, joined: Joined) {
        let mut next = Some(joined);
        while let Some(joined) = next {
            let (task, ended) = match joined {
                Ok((task, ended)) => (task, ended),
                Err(error) => (error.id(), broken(error)),
            };
            if let Some((claim, id, attempt)) = self.tasks.remove(&task) {
                self.ended_now += 1;
                self.shared.telemetry.ended(&attempt, &ended);
                self.end(claim, id, &ended);
            }
            next = self.running.try_join_next_with_id();
        }
        self.is_alone &= !self.running.is_empty();
    }

    fn end(&mut self, claim: i64, id: i64, ended: &Ended) {
        if let Some(settlement) = self.unsettled.end(claim, id, ended) {
            self.send(settlement);
            let owner = self.owners.remove(&claim);
            // A name that is not used any more, and under which nothing is open, need not be kept alive.
            if owner.is_some_and(|owner| owner != *self.claimant.borrow()) {
                self.name_claims();
            }
        }
    }

    fn send(&self, settlement: Settlement) {
        if let Some(settlements) = &self.settlements {
            // It is gone only when the worker is about to end with its error.
            let _ = settlements.send(settlement);
        }
    }

    pub(super) fn flush(&mut self) {
        for settlement in self.unsettled.overdue() {
            self.send(settlement);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Nothing more is claimed or begun.
    pub(super) fn stop(&mut self) {
        self.wants = None;
        self.give_back_waiting();
    }

    pub(super) fn give_back(&mut self, brought: Brought) {
        self.take(brought);
        self.give_back_waiting();
    }

    fn give_back_waiting(&mut self) {
        while let Some(claimed) = self.waiting.pop_front() {
            self.end(claimed.claim, claimed.job.id, &Ended::Untouched);
        }
    }

    /// Stops what still runs.
    pub(super) async fn abandon(&mut self) {
        self.running.abort_all();
        while let Some(joined) = self.running.join_next_with_id().await {
            self.settle(joined);
        }
    }

    /// Everything has been said; under which names it has worked.
    pub(super) fn leave(&mut self) -> Vec<Uuid> {
        self.flush();
        self.settlements = None;
        self.claimants.borrow().iter().map(|name| name.id).collect()
    }
}

/// A handler that panicked has failed; one that was stopped may have committed its transaction a moment before.
fn broken(error: JoinError) -> Ended {
    if error.is_cancelled() {
        return Ended::Doubtful(Ok(Outcome::Snooze(Duration::ZERO)));
    }
    let panic = error.into_panic();
    let message = panic.downcast_ref::<&str>().map(ToString::to_string);
    let message = message.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    Ended::Said(Err(format!("the handler panicked: {message}").into()))
}

async fn work(shared: Arc<Shared>, claimed: Claimed) -> Ended {
    let Claimed { claim, job, .. } = claimed;
    let Some(handler) = shared.handlers.get(&job.kind) else {
        return not_ours(&shared.strangers, &job.kind);
    };
    if job.attempt >= job.max_attempts
        && let Err(error) = begin(&shared.pool, claim, job.id).await
    {
        if is_refused(&error) {
            return Ended::Refused;
        }
        tracing::warn!(claim, job = job.id, %error, "a last attempt could not be begun; the job is given back");
        return Ended::Untouched;
    }
    let mut context = JobContext {
        pool: shared.pool.clone(),
        claim,
        id: job.id,
        states: shared.states.clone(),
        cancelled: shared.cancellations.clone(),
        silence: shared.silence,
        timeout: shared.timeout,
        transaction: None,
    };
    let working = handler.run(&mut context, job);
    let result: HandlerResult = match shared.timeout {
        None => working.await,
        Some(longest) => tokio::time::timeout(longest, working)
            .await
            .unwrap_or_else(|_elapsed| Err(format!("the handler took longer than {longest:?}").into())),
    };
    match context.conclude(&result).await {
        Ok(true) => Ended::Settled(result),
        Ok(false) => Ended::Said(result),
        Err(error) if is_refused(&error) => {
            tracing::warn!(claim, reason = %error, "a late result is refused, and its effect rolled back");
            Ended::Refused
        }
        Err(error) => Ended::Doubtful(Err(error.into())),
    }
}

/// Said before the last attempt alone: if this worker vanishes, what it had in hand and had not begun must not be dead by that. Any other
/// attempt has one after it, and costs no round trip.
async fn begin(pool: &PgPool, claim: i64, id: i64) -> sqlx::Result<()> {
    let mut transaction = pool.begin_with("begin isolation level read committed").await?;
    sqlx::query("select postrider.begin_jobs($1, $2)")
        .bind(claim)
        .bind([id].as_slice())
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await
}

fn is_refused(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(said) if said.code().as_deref() == Some("55000"))
}
