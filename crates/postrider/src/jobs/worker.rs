//! A worker as the application describes it.

use std::any::TypeId;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use sqlx::PgPool;

use super::context::States;
use super::cron::{Cron, Expression};
use super::error::{Error, Result};
use super::handler::{Handler, Run, Typed};
use super::run;
use crate::log::Hint;

/// How a worker works.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// What it is called where its jobs are listed.
    pub name: String,
    /// The queues it works for, the first one first.
    pub queues: Vec<String>,
    /// How many handlers run at once.
    pub concurrency: usize,
    /// How many jobs are claimed at once at most. It claims so many only where they take no time.
    pub batch: usize,
    /// After how long without a heartbeat its jobs go to others. `None`: the shortest that is set for its queues, 30 seconds by default.
    pub lease: Option<Duration>,
    /// How long a handler may take; then its attempt has failed. `None`: as long as it likes.
    pub timeout: Option<Duration>,
    /// How long a handler may say nothing in its [transaction](super::JobContext::transaction). Then the server takes the worker for frozen and
    /// ends it, or what it has locked would keep whoever takes the job over from it. A shorter time of the server's own stands.
    pub silence: Duration,
    /// How long handlers may go on when the worker is told to stop. Then they are stopped, and their jobs given back, for which it takes four
    /// seconds more at most.
    pub drain: Duration,
    /// How long an idle worker sleeps at most, where nothing wakes it.
    pub idle: Duration,
    /// Whether those who enqueue are asked to wake it.
    pub hint: Hint,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            name: format!("worker-{}", std::process::id()),
            queues: vec!["default".to_owned()],
            concurrency: 50,
            batch: 1000,
            lease: None,
            timeout: None,
            silence: Duration::from_mins(5),
            drain: Duration::from_secs(25),
            idle: Duration::from_secs(1),
            hint: Hint::Auto,
        }
    }
}

/// Works jobs off with the handlers it is given.
#[must_use = "a worker works when it is `run`"]
pub struct Worker {
    pub(super) pool: PgPool,
    pub(super) options: WorkerOptions,
    pub(super) handlers: HashMap<String, Arc<dyn Run>>,
    pub(super) crons: Vec<Cron>,
    pub(super) states: States,
}

impl Worker {
    /// A worker for the queue `default`. The pool is for its handlers; it has five connections of its own.
    pub fn new(pool: PgPool) -> Self {
        Self {
            pool,
            options: WorkerOptions::default(),
            handlers: HashMap::new(),
            crons: Vec::new(),
            states: States::new(),
        }
    }

    /// With other options.
    pub fn options(mut self, options: WorkerOptions) -> Self {
        self.options = options;
        self
    }

    /// Jobs of this kind are for this handler: `async fn(&mut JobContext, Job<T>) -> HandlerResult`. Those of kinds without one are left for other workers.
    pub fn handle<T, H>(mut self, kind: impl Into<String>, handler: H) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        H: for<'a> Handler<'a, T>,
    {
        self.handlers.insert(kind.into(), Arc::new(Typed(handler, PhantomData)));
        self
    }

    /// What handlers find with [`JobContext::state`](super::JobContext::state), one value of each type.
    pub fn state<S: Send + Sync + 'static>(mut self, state: S) -> Self {
        self.states.insert(TypeId::of::<S>(), Arc::new(state));
        self
    }

    /// Keeps this schedule, together with all other workers that have it.
    pub fn cron(mut self, cron: Cron) -> Self {
        self.crons.push(cron);
        self
    }

    /// Works until `stop` is ready; then claims nothing more, and returns when what runs has ended or the time to drain is over. A server
    /// that is away is waited for, from the beginning.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) -> Result<()> {
        if self.handlers.is_empty() {
            return Err(Error::NoHandler);
        }
        for cron in &self.crons {
            Expression::parse(&cron.expression)
                .map_err(|reason| Error::Schedule { name: cron.name.clone(), reason })?;
        }
        run::run(self, stop).await
    }
}
