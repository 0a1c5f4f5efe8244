//! Events that become jobs of a queue, each once.

mod config;

use std::collections::HashSet;

use serde::Serialize;
use serde_json::value::RawValue;
use sqlx::postgres::{PgConnectOptions, PgDatabaseError, PgQueryResult};
use sqlx::{ConnectOptions as _, PgConnection};
use tokio::time::timeout;

pub use config::{JobsConfig, Rule};

use crate::sink::{
    BoxFuture, Message, Outcome, Refusal, RefusalKind, Report, Sink, Unavailable, UnavailableKind,
};

/// The queue, where no rule names one.
pub(super) const ROUTE: &str = "default";

/// In the order of the array. Of an event that has been here before, the unique key is taken, and nothing is written.
const ENQUEUE: &str = "select count(*) from postrider.enqueue_many($1::text::json)";

/// The same for one. The server refuses an array with `\u0000` in it as a whole, and takes that as a payload.
const ENQUEUE_ONE: &str = "select postrider.enqueue($1, $2::text::json, queue => $3, priority => $4,
    unique_key => $5, max_attempts => $6, key => $7, unique_for => $8::text::interval)";

/// Writes a job for each event that a rule fits, a batch in one statement.
pub struct JobsSink {
    config: JobsConfig,
    connection: Option<PgConnection>,
}

/// An element of what `postrider.enqueue_many` takes.
#[derive(Serialize)]
struct Job<'a> {
    kind: &'a str,
    queue: &'a str,
    priority: i16,
    max_attempts: u16,
    unique_key: String,
    unique_for: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    payload: Box<RawValue>,
}

impl JobsSink {
    /// Connects.
    pub async fn open(config: JobsConfig) -> Result<Self, Unavailable> {
        let connection = connect(&config).await?;
        Ok(Self { config, connection: Some(connection) })
    }

    async fn deliver_all(
        &mut self,
        batch: &[Message<'_>],
        outcomes: &mut [Outcome],
    ) -> Result<(), Unavailable> {
        let remember = format!("{} seconds", self.config.remember.0.as_secs());
        let jobs: Vec<Option<Job<'_>>> =
            batch.iter().map(|message| job(&self.config, message, &remember)).collect();
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(connect(&self.config).await?),
        };
        match enqueue(connection, &jobs, &self.config).await {
            Ok(()) => {
                outcomes.fill(Outcome::Delivered);
                return Ok(());
            }
            Err(error) if refusal(&error).is_none() => return Err(unavailable(error)),
            Err(_) => {}
        }
        // One of them is not taken: one at a time, and nothing behind it that has its key.
        let mut stopped = HashSet::new();
        for (place, job) in jobs.iter().enumerate() {
            let key = batch[place].record.key.as_deref();
            if key.is_some_and(|key| stopped.contains(key)) {
                continue;
            }
            let taken = match job {
                Some(job) => enqueue_one(connection, job, &self.config).await,
                None => Ok(()),
            };
            outcomes[place] = match taken {
                Ok(()) => Outcome::Delivered,
                Err(error) => {
                    stopped.extend(key);
                    Outcome::Refused(refusal(&error).ok_or_else(|| unavailable(error))?)
                }
            };
        }
        Ok(())
    }
}

fn job<'a>(config: &'a JobsConfig, message: &'a Message<'_>, remember: &'a str) -> Option<Job<'a>> {
    let record = message.record;
    let rule = config.rule(&record.r#type);
    if rule.is_none() && !config.rules.is_empty() {
        return None;
    }
    // An envelope is JSON; what is not becomes a string of it.
    let text = String::from_utf8_lossy(&message.body);
    let payload = RawValue::from_string(text.clone().into_owned())
        .or_else(|_| serde_json::value::to_raw_value(&text))
        .unwrap_or_default();
    Some(Job {
        kind: rule.and_then(|rule| rule.kind.as_deref()).unwrap_or(&record.r#type),
        queue: rule.and_then(|rule| rule.queue.as_deref()).unwrap_or(&message.destination),
        priority: rule.map_or(0, |rule| rule.priority),
        max_attempts: rule.map_or(25, |rule| rule.max_attempts),
        unique_key: format!("event:{}", message.id),
        unique_for: remember,
        key: record.key.as_deref().filter(|key| !key.is_empty() && rule.is_some_and(|rule| rule.keyed)),
        payload,
    })
}

async fn enqueue(
    connection: &mut PgConnection,
    jobs: &[Option<Job<'_>>],
    config: &JobsConfig,
) -> Result<(), sqlx::Error> {
    let jobs: Vec<&Job<'_>> = jobs.iter().flatten().collect();
    if jobs.is_empty() {
        return Ok(());
    }
    let array = serde_json::to_string(&jobs).map_err(|error| sqlx::Error::Encode(error.into()))?;
    in_time(config, sqlx::query(ENQUEUE).bind(array).execute(connection)).await
}

async fn enqueue_one(
    connection: &mut PgConnection,
    job: &Job<'_>,
    config: &JobsConfig,
) -> Result<(), sqlx::Error> {
    let asking = sqlx::query(ENQUEUE_ONE)
        .bind(job.kind)
        .bind(job.payload.get())
        .bind(job.queue)
        .bind(i32::from(job.priority))
        .bind(&job.unique_key)
        .bind(i32::from(job.max_attempts))
        .bind(job.key)
        .bind(job.unique_for);
    in_time(config, asking.execute(connection)).await
}

async fn in_time(
    config: &JobsConfig,
    asking: impl Future<Output = Result<PgQueryResult, sqlx::Error>>,
) -> Result<(), sqlx::Error> {
    match timeout(config.timeout.0, asking).await {
        Ok(done) => done.map(drop),
        Err(_elapsed) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
    }
}

async fn connect(config: &JobsConfig) -> Result<PgConnection, Unavailable> {
    let options: PgConnectOptions =
        config.url.parse().map_err(|error: sqlx::Error| Unavailable::new(UnavailableKind::Missing, error))?;
    let options = options.application_name("postrider jobs").options([("synchronous_commit", "on")]);
    match timeout(config.timeout.0, options.disable_statement_logging().connect()).await {
        Ok(connected) => connected.map_err(unavailable),
        Err(_elapsed) => {
            let silent =
                std::io::Error::new(std::io::ErrorKind::TimedOut, "the server took no connection in time");
            Err(Unavailable::new(UnavailableKind::Timeout, silent))
        }
    }
}

/// What the server holds against one job: its input, or a limit.
fn refusal(error: &sqlx::Error) -> Option<Refusal> {
    let said = error.as_database_error()?.try_downcast_ref::<PgDatabaseError>()?;
    let kind = match said.code() {
        code if code.starts_with("54") => RefusalKind::TooLarge,
        code if code.starts_with("22") => RefusalKind::Rejected,
        _ => return None,
    };
    let detail = said.detail().map(|detail| format!(": {detail}")).unwrap_or_default();
    Some(Refusal { kind, reason: format!("{}{detail}", said.message()) })
}

fn unavailable(error: sqlx::Error) -> Unavailable {
    let kind = match &error {
        sqlx::Error::Database(said) => match said.code().as_deref().unwrap_or_default() {
            "42501" | "28000" | "28P01" => UnavailableKind::Forbidden,
            "3F000" | "42883" | "3D000" => UnavailableKind::Missing,
            "53100" => UnavailableKind::Full,
            _ => UnavailableKind::Blocked,
        },
        sqlx::Error::Io(io) if io.kind() == std::io::ErrorKind::TimedOut => UnavailableKind::Timeout,
        _ => UnavailableKind::Connection,
    };
    Unavailable::new(kind, error)
}

impl Sink for JobsSink {
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report> {
        Box::pin(async move {
            let mut outcomes = vec![Outcome::NotSent; batch.len()];
            let unavailable = self.deliver_all(batch, &mut outcomes).await.err();
            if unavailable.is_some() {
                // What it was doing may still be done there; sent again, its unique keys are taken.
                self.connection = None;
            }
            Report { outcomes, unavailable }
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        Box::pin(async { Ok(()) })
    }
}
