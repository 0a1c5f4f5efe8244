//! What a handler has besides its job.

use std::any::{Any, TypeId};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use sqlx::{AssertSqlSafe, PgPool, PgTransaction};
use tokio::sync::watch;

use super::unsettled::encode;
use super::{HandlerResult, Outcome};

/// So long the end of a failed transaction is waited for. While one of its statements runs, behind a lock for instance, the server does not answer.
const ROLLBACK: Duration = Duration::from_millis(250);

/// Read committed whatever the pool's default is: a job is settled by what others have done until now. No statement may take much longer than the handler: the
/// server ends one that nobody waits for any more, and the pool has its connection back.
fn begin(silence: Duration, timeout: Option<Duration>) -> String {
    let milliseconds = |time: Duration| time.as_millis().clamp(1, i32::MAX.unsigned_abs().into());
    let silence = milliseconds(silence);
    let mut statements = vec![
        "begin isolation level read committed".to_owned(),
        // A shorter time of the server's own stands, a longer one does not.
        format!(
            "select set_config('idle_in_transaction_session_timeout', '{silence}', true)
             where extract(epoch from current_setting('idle_in_transaction_session_timeout')::interval) * 1000
                   not between 1 and {silence}"
        ),
    ];
    // Later than the handler itself is ended, which says what happened in better words.
    statements.extend(timeout.map(|timeout| {
        let longest = milliseconds(timeout.saturating_add(4 * ROLLBACK));
        format!(
            "select set_config('statement_timeout', '{longest}', true) where current_setting('statement_timeout') = '0'"
        )
    }));
    statements.join("; ")
}

pub(super) type States = HashMap<TypeId, Arc<dyn Any + Send + Sync>>;
pub(super) type Cancelled = watch::Receiver<Arc<HashSet<i64>>>;

/// What a handler has besides its job: the pool, a transaction that ends with the job, and whether it was cancelled.
pub struct JobContext {
    pub(super) pool: PgPool,
    pub(super) claim: i64,
    pub(super) id: i64,
    pub(super) states: Arc<States>,
    pub(super) cancelled: Cancelled,
    pub(super) silence: Duration,
    pub(super) timeout: Option<Duration>,
    pub(super) transaction: Option<PgTransaction<'static>>,
}

impl JobContext {
    /// The pool that the worker was made with.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// A transaction that ends with the job: if the handler answers an [`Outcome`], that is stored in it and it is committed, so the effect and
    /// the end of the job are one. It is READ COMMITTED, and has to stay so. It is rolled back after an error or [`Outcome::Retry`], and if another worker has taken the job over. Begun at
    /// the first call; later calls return the same one.
    pub async fn transaction(&mut self) -> Result<&mut PgTransaction<'static>, sqlx::Error> {
        match &mut self.transaction {
            Some(transaction) => Ok(transaction),
            none => {
                let statements = AssertSqlSafe(begin(self.silence, self.timeout));
                Ok(none.insert(self.pool.begin_with(statements).await?))
            }
        }
    }

    /// What was given to [`Worker::state`](super::Worker::state), by its type.
    ///
    /// # Panics
    ///
    /// If nothing of this type was given.
    pub fn state<S: Send + Sync + 'static>(&self) -> Arc<S> {
        let found = self.states.get(&TypeId::of::<S>()).cloned().and_then(|state| state.downcast().ok());
        found.unwrap_or_else(|| panic!("no state of type {} was given", std::any::type_name::<S>()))
    }

    /// Somebody has cancelled the job. Nothing happens by itself: a handler that takes long looks now and then, and answers
    /// [`Outcome::Cancel`].
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.borrow().contains(&self.id)
    }

    /// Waits until somebody cancels the job.
    pub async fn cancelled(&self) {
        let mut cancelled = self.cancelled.clone();
        if cancelled.wait_for(|ids| ids.contains(&self.id)).await.is_err() {
            // The worker is gone, and nobody will say so any more.
            std::future::pending::<()>().await;
        }
    }

    /// Ends the handler's transaction, if it began one; whether the job is settled by that.
    pub(super) async fn conclude(&mut self, result: &HandlerResult) -> Result<bool, sqlx::Error> {
        let Some(mut transaction) = self.transaction.take() else { return Ok(false) };
        let outcome = match result {
            Ok(outcome) if !matches!(outcome, Outcome::Retry { .. }) => outcome,
            // The attempt has failed, and has no effect.
            _ => {
                roll_back(transaction).await?;
                return Ok(false);
            }
        };
        let outcomes = (*outcome != Outcome::Done).then(|| format!("[{}]", encode(self.id, result)));
        // Named once, here or there.
        let done = if outcomes.is_some() { Vec::new() } else { vec![self.id] };
        sqlx::query("select postrider.finish_jobs($1, $2::text::json, $3)")
            .bind(self.claim)
            .bind(outcomes)
            .bind(done)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await?;
        Ok(true)
    }
}

/// Dropped if that takes long: then the pool rolls back, when the server answers, and the job need not wait for it. It cannot be committed any more.
async fn roll_back(transaction: PgTransaction<'static>) -> Result<(), sqlx::Error> {
    tokio::time::timeout(ROLLBACK, transaction.rollback()).await.unwrap_or(Ok(()))
}
