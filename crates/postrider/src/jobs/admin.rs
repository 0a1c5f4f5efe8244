//! For operators: what is there, one job in full, and what can be done about it.

use sqlx::PgConnection;
use time::OffsetDateTime;

use crate::log::error::Result;

/// Where a job stands.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
#[non_exhaustive]
pub struct Listed {
    /// Its id.
    pub id: i64,
    /// `scheduled`, `key`, `ready`, `running`, `dead`, `done`, `cancelled` or `discarded`.
    pub state: String,
    /// Of which queue.
    pub queue: String,
    /// What to do.
    pub kind: String,
    /// What it must not run beside.
    pub key: Option<String>,
    /// Which attempt it is in.
    pub attempt: i16,
    /// Who has it.
    pub worker: Option<String>,
    /// Since when it is in this state, or until when it waits.
    pub at: Option<OffsetDateTime>,
    /// What went wrong last.
    pub error: Option<String>,
}

/// A job in full.
#[derive(Debug, Clone, sqlx::FromRow)]
#[non_exhaustive]
pub struct Shown {
    /// What a list says of it.
    #[sqlx(flatten)]
    pub listed: Listed,
    /// High first.
    pub priority: Option<i16>,
    /// How many attempts there are.
    pub max_attempts: Option<i16>,
    /// When it was enqueued.
    pub created_at: OffsetDateTime,
    /// As text; gone with the ring when the job has ended.
    pub payload: Option<String>,
    /// The failures, as JSON text.
    pub history: Option<String>,
    /// What it answered, as JSON text.
    pub output: Option<String>,
}

/// One row of `postrider.job_stats`.
#[derive(Debug, Clone, sqlx::FromRow)]
#[non_exhaustive]
pub struct Stats {
    /// Of which queue.
    pub queue: String,
    /// Since when it is paused.
    pub paused_at: Option<OffsetDateTime>,
    /// May be claimed; counting stops at 10,000 a priority.
    pub ready: i64,
    /// Are claimed.
    pub running: i64,
    /// Wait for their time.
    pub scheduled: i64,
    /// Wait for another one of their key.
    pub behind_key: i64,
    /// Wait for a person.
    pub dead: i64,
    /// Workers that are alive.
    pub workers: i64,
}

/// Jobs in a state, or in any that is not an end, the newest first.
pub async fn list(
    connection: &mut PgConnection,
    queue: Option<&str>,
    state: Option<&str>,
    most: i64,
) -> Result<Vec<Listed>> {
    Ok(sqlx::query_as(
        "select id, state, queue, kind, key, attempt, worker, at, error from postrider.list_jobs($1, $2, $3)",
    )
    .bind(queue)
    .bind(state)
    .bind(i32::try_from(most).unwrap_or(i32::MAX))
    .fetch_all(connection)
    .await?)
}

/// One job, if there is one of this id.
pub async fn show(connection: &mut PgConnection, id: i64) -> Result<Option<Shown>> {
    Ok(sqlx::query_as(include_str!("sql/show.sql")).bind(id).fetch_optional(connection).await?)
}

/// Where the queues stand.
pub async fn stats(connection: &mut PgConnection) -> Result<Vec<Stats>> {
    let text = "select queue, paused_at, ready, running, scheduled, behind_key, dead, workers from postrider.job_stats order by queue";
    Ok(sqlx::query_as(text).fetch_all(connection).await?)
}

/// The names of the queues that have a job, or had one claimed, or something set.
pub async fn queues(connection: &mut PgConnection) -> Result<Vec<String>> {
    let names = "select queue::text from postrider.job_stats order by queue";
    Ok(sqlx::query_scalar(names).fetch_all(connection).await?)
}

/// Gives a dead job one more attempt, and one that waits no more time to wait. The state it was in, if it could be done.
pub async fn retry(connection: &mut PgConnection, id: i64) -> Result<Option<String>> {
    Ok(sqlx::query_scalar("select postrider.retry_job($1)").bind(id).fetch_one(connection).await?)
}

/// Cancels a job: `cancelled`, `discarded` (it was dead), or `told` (it may be running); nothing, if there is none that has not ended.
pub async fn cancel(connection: &mut PgConnection, id: i64) -> Result<Option<String>> {
    Ok(sqlx::query_scalar("select postrider.cancel_job($1)").bind(id).fetch_one(connection).await?)
}

/// Pauses a queue or lets it go on; whether that was news.
pub async fn pause(connection: &mut PgConnection, queue: &str, paused: bool) -> Result<bool> {
    let changed = sqlx::query_scalar("select postrider.pause_queue($1, $2)").bind(queue).bind(paused);
    Ok(changed.fetch_one(connection).await?)
}
