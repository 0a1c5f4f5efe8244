//! `postrider jobs retry`, `cancel`, `pause` and `resume`.

use clap::Args;
use postrider::jobs::admin;
use postrider::{log, schema};
use serde_json::{Map, Value, json};
use sqlx::PgConnection;
use sqlx::error::DatabaseError;

use super::{queue, show};
use crate::connect::Target;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

/// Give dead jobs one more attempt now; those that wait for their time wait no longer
#[derive(Args)]
pub(crate) struct Retry {
    #[command(flatten)]
    which: Which,
}

/// Cancel jobs: those that wait are gone, of those that run the worker is told
///
/// A dead job is discarded by it. One that is running ends when its handler looks; until then it may still be done.
#[derive(Args)]
pub(crate) struct Cancel {
    #[command(flatten)]
    which: Which,
}

#[derive(Args)]
struct Which {
    #[command(flatten)]
    target: Target,

    /// The jobs
    #[arg(value_name = "ID", required = true)]
    ids: Vec<i64>,
}

/// Let workers claim nothing of a queue until it is resumed; what runs goes on
///
/// A queue that has had no job yet is paused by `select postrider.pause_queue('NAME')`.
#[derive(Args)]
pub(crate) struct Pause {
    #[command(flatten)]
    name: Name,
}

/// Let workers claim of a queue again
#[derive(Args)]
pub(crate) struct Resume {
    #[command(flatten)]
    name: Name,
}

#[derive(Args)]
struct Name {
    #[command(flatten)]
    target: Target,

    /// The queue
    #[arg(value_name = "NAME")]
    queue: String,
}

async fn connected(target: &Target) -> Result<PgConnection, Failure> {
    let mut connection = target.connect().await?;
    schema::check_version(&mut connection).await?;
    Ok(connection)
}

impl Retry {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        let mut connection = connected(&self.which.target).await?;
        let (mut documents, mut failed) = (Vec::new(), Vec::new());
        for id in self.which.ids {
            let Some(before) = admin::retry(&mut connection, id).await? else {
                failed.push(not_to_be_done(&mut connection, id, "retried").await?);
                continue;
            };
            output::say(&format!("job {id} was {before} and is tried again"));
            documents.push(json!({ "id": id, "was": before }));
        }
        ended("retried", documents, failed, json)
    }
}

impl Cancel {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        let mut connection = connected(&self.which.target).await?;
        let (mut documents, mut failed) = (Vec::new(), Vec::new());
        for id in self.which.ids {
            let Some(done) = admin::cancel(&mut connection, id).await? else {
                failed.push(not_to_be_done(&mut connection, id, "cancelled").await?);
                continue;
            };
            output::say(&match done.as_str() {
                "told" => format!("job {id} is on its way: it is not begun any more, or its worker is told"),
                done => format!("job {id} is {done}"),
            });
            documents.push(json!({ "id": id, "done": done }));
        }
        ended("cancelled", documents, failed, json)
    }
}

/// What was done, and with which jobs it could not be: those do not keep the others from it.
fn ended(what: &str, done: Vec<Value>, failed: Vec<Value>, json: bool) -> Result<Exit, Failure> {
    let exit = if failed.is_empty() { Exit::Fine } else { Exit::Failed };
    if json {
        let mut document = Map::from_iter([(what.to_owned(), Value::Array(done))]);
        if !failed.is_empty() {
            document.insert("failed".to_owned(), Value::Array(failed));
        }
        output::json(&Value::Object(document))?;
    }
    Ok(exit)
}

/// There is none, or it is in a state in which this cannot be done.
async fn not_to_be_done(connection: &mut PgConnection, id: i64, what: &str) -> Result<Value, Failure> {
    let reason = match admin::show(connection, id).await {
        Ok(Some(job)) => format!("job {id} is {} and cannot be {what}", job.listed.state),
        Ok(None) => show::not_found(id),
        // Its payload is the owner's; whoever works jobs off may do this, and is not let to look.
        Err(log::Error::Database(error)) if is_denied(&error) => {
            format!("job {id} cannot be {what}: there is no such job, or it is in no state for that")
        }
        Err(error) => return Err(error.into()),
    };
    output::say(&reason);
    Ok(json!({ "id": id, "reason": reason }))
}

fn is_denied(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(DatabaseError::code).as_deref() == Some("42501")
}

impl Pause {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        self.name.set(true, json).await
    }
}

impl Resume {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        self.name.set(false, json).await
    }
}

impl Name {
    async fn set(self, paused: bool, json: bool) -> Result<Exit, Failure> {
        let mut connection = connected(&self.target).await?;
        queue::check(&mut connection, &self.queue).await?;
        let changed = admin::pause(&mut connection, &self.queue, paused).await?;
        let word = if paused { "paused" } else { "not paused" };
        let again = if changed { "" } else { " already" };
        output::say(&format!("queue {:?} is {word}{again}", self.queue));
        if json {
            output::json(&json!({ "queue": self.queue, "paused": paused, "changed": changed }))?;
        }
        Ok(Exit::Fine)
    }
}
