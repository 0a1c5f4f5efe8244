//! Jobs to be enqueued, in the caller's own transaction.

use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use time::{OffsetDateTime, UtcOffset};

use crate::{EmitError, Transaction};

const ENQUEUE: &str = "select postrider.enqueue($1::text, $2::text::json, $3::text, $4::text::integer, $5::text::timestamptz, $6::text, \
                       $7::text::integer, $8::text, $9::text::interval)::text";
const ENQUEUE_MANY: &str = "select postrider.enqueue_many($1::text::json)::text";

/// Work to be done, to be written by [`enqueue`].
// Serialises to an element of the array that postrider.enqueue_many takes.
#[derive(Debug, Clone, Serialize)]
#[must_use = "a job is only written by `enqueue` or `enqueue_many`"]
pub struct NewJob {
    kind: String,
    payload: Box<RawValue>,
    queue: String,
    priority: i16,
    max_attempts: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unique_for: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

#[expect(clippy::needless_pass_by_value, reason = "the same calls as on `Event`")]
impl NewJob {
    /// A job of this kind, `email.send`: what a worker's handler is found by.
    pub fn new(kind: impl Into<String>, payload: &(impl Serialize + ?Sized)) -> Result<Self, EmitError> {
        let kind = kind.into();
        let payload = serde_json::value::to_raw_value(payload)
            .map_err(|source| EmitError::Payload { r#type: kind.clone(), source })?;
        Ok(Self {
            kind,
            payload,
            queue: "default".to_owned(),
            priority: 0,
            max_attempts: 25,
            run_at: None,
            unique_key: None,
            unique_for: None,
            key: None,
        })
    }

    /// In this queue, and not in `default`.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = queue.into();
        self
    }

    /// Before those of a lower one; 0 if nothing is said.
    pub fn priority(mut self, priority: i16) -> Self {
        self.priority = priority;
        self
    }

    /// Not before this time, by the database's clock.
    pub fn run_at(mut self, at: OffsetDateTime) -> Self {
        let at = at.to_offset(UtcOffset::UTC);
        let (date, (hour, minute, second, micro)) = (at.date(), at.to_hms_micro());
        // As the server writes it, whatever the features of the `time` crate are.
        self.run_at = Some(format!(
            "{:04}-{:02}-{:02} {hour:02}:{minute:02}:{second:02}.{micro:06}+00",
            date.year(),
            u8::from(date.month()),
            date.day()
        ));
        self
    }

    /// How often it is tried, 25 times if nothing is said. Afterwards it is dead, and waits for a person.
    pub fn max_attempts(mut self, attempts: u16) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Jobs of one key run one after the other, in the order they were enqueued.
    pub fn key(mut self, key: impl ToString) -> Self {
        self.key = Some(key.to_string());
        self
    }

    /// Is not written again while there is one of this unique key in its queue that has not ended.
    pub fn unique(mut self, key: impl ToString) -> Self {
        self.unique_key = Some(key.to_string());
        self
    }

    /// As [`unique`](Self::unique), but for this long, whether or not the first one has ended.
    pub fn unique_for(mut self, key: impl ToString, time: Duration) -> Self {
        self.unique_for = Some(format!("{} seconds", time.as_secs_f64()));
        self.unique(key)
    }
}

/// Writes a job in the caller's transaction and returns its id; that of the job there is, if its unique key is taken.
pub async fn enqueue<T: Transaction>(tx: &mut T, job: &NewJob) -> Result<i64, EmitError> {
    let (priority, attempts) = (job.priority.to_string(), job.max_attempts.to_string());
    let parameters = [
        Some(job.kind.as_str()),
        Some(job.payload.get()),
        Some(job.queue.as_str()),
        Some(priority.as_str()),
        job.run_at.as_deref(),
        job.unique_key.as_deref(),
        Some(attempts.as_str()),
        job.key.as_deref(),
        job.unique_for.as_deref(),
    ];
    id(tx.column(ENQUEUE, &parameters).await?.pop().flatten())
}

/// Writes many jobs in one statement and returns their ids in the same order. All or none are written.
pub async fn enqueue_many<T: Transaction>(tx: &mut T, jobs: &[NewJob]) -> Result<Vec<i64>, EmitError> {
    let Some(first) = jobs.first() else {
        return Ok(Vec::new());
    };
    let array = serde_json::to_string(jobs)
        .map_err(|source| EmitError::Payload { r#type: first.kind.clone(), source })?;
    tx.column(ENQUEUE_MANY, &[Some(&array)]).await?.into_iter().map(id).collect()
}

fn id(text: Option<String>) -> Result<i64, EmitError> {
    text.unwrap_or_default().parse().map_err(EmitError::answer)
}
