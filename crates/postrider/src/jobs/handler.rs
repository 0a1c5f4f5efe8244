//! What does the work.

use std::error::Error;
use std::marker::PhantomData;
use std::pin::Pin;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::context::JobContext;
use super::job::Job;

/// Whatever went wrong; `?` turns every error into it.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// What a handler answers. An error is a failed attempt: the job is tried again after a growing pause, until it is dead.
pub type HandlerResult = Result<Outcome, BoxError>;

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Outcome {
    /// Done.
    Done,
    /// Done, and this is kept for as long as the queue keeps results.
    DoneWith(Value),
    /// Not now: again after this time. It costs no attempt.
    Snooze(Duration),
    /// Failed: again after this time. It costs an attempt.
    Retry {
        /// When.
        after: Duration,
        /// Why.
        reason: String,
    },
    /// Never again: it is dead, and waits for a person.
    Dead(String),
    /// Given up without a fuss: it ends as cancelled.
    Cancel,
}

/// `async fn(&mut JobContext, Job<T>) -> HandlerResult`: every such function is one.
pub trait Handler<'a, T>: Send + Sync + 'static {
    /// What it returns.
    type Future: Future<Output = HandlerResult> + Send + 'a;
    /// Does the work.
    fn call(&self, context: &'a mut JobContext, job: Job<T>) -> Self::Future;
}

impl<'a, T, F, R> Handler<'a, T> for F
where
    F: Fn(&'a mut JobContext, Job<T>) -> R + Send + Sync + 'static,
    R: Future<Output = HandlerResult> + Send + 'a,
{
    type Future = R;

    fn call(&self, context: &'a mut JobContext, job: Job<T>) -> R {
        self(context, job)
    }
}

/// A handler whose type of payload is forgotten.
pub(super) trait Run: Send + Sync {
    fn run<'a>(
        &'a self,
        context: &'a mut JobContext,
        job: Job<String>,
    ) -> Pin<Box<dyn Future<Output = HandlerResult> + Send + 'a>>;
}

pub(super) struct Typed<H, T>(pub(super) H, pub(super) PhantomData<fn(T)>);

impl<H, T> Run for Typed<H, T>
where
    T: DeserializeOwned + Send + 'static,
    H: for<'a> Handler<'a, T>,
{
    fn run<'a>(
        &'a self,
        context: &'a mut JobContext,
        job: Job<String>,
    ) -> Pin<Box<dyn Future<Output = HandlerResult> + Send + 'a>> {
        let payload = match serde_json::from_str(&job.payload) {
            Ok(payload) => payload,
            // Trying again cannot help before somebody changes the handler, and then a person retries it.
            Err(error) => {
                let reason = format!("the payload is not what the handler takes: {error}");
                return Box::pin(std::future::ready(Ok(Outcome::Dead(reason))));
            }
        };
        let Job { id, kind, key, attempt, max_attempts, created_at, .. } = job;
        Box::pin(self.0.call(context, Job { id, kind, payload, key, attempt, max_attempts, created_at }))
    }
}
