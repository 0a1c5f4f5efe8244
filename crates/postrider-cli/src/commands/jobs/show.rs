//! `postrider jobs show`.

use std::fmt::Write as _;

use clap::Args;
use postrider::jobs::admin::{self, Shown};
use postrider::schema;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::list;
use crate::connect::Target;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::{moment, output};

/// Show a job whole: where it stands, who has it, its payload, and its failures
#[derive(Args)]
pub(crate) struct Show {
    #[command(flatten)]
    target: Target,

    /// The job
    #[arg(value_name = "ID")]
    id: i64,
}

impl Show {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        let mut connection = self.target.connect().await?;
        schema::check_version(&mut connection).await?;
        let Some(job) = admin::show(&mut connection, self.id).await? else {
            return Err(Failure::new(Exit::Failed, anyhow::anyhow!(not_found(self.id))));
        };
        output::data(&if json { document(&job) } else { words(&job) })?;
        Ok(Exit::Fine)
    }
}

pub(super) fn not_found(id: i64) -> String {
    format!("there is no job {id}; it may have ended longer ago than its queue keeps results")
}

fn words(job: &Shown) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: Option<&str>| {
        if let Some(value) = value {
            let _ = writeln!(text, "{name:<13} {}", output::plain(value));
        }
    };
    let listed = &job.listed;
    line("id", Some(&listed.id.to_string()));
    line("queue", Some(&listed.queue));
    line("kind", Some(&listed.kind));
    line("key", listed.key.as_deref());
    line("priority", job.priority.map(|priority| priority.to_string()).as_deref());
    line("enqueued", Some(&moment::text(job.created_at)));
    line("state", Some(&listed.state));
    let at = match listed.state.as_str() {
        "scheduled" | "key" => "due",
        _ => "since",
    };
    line(at, listed.at.map(moment::text).as_deref());
    line("worker", listed.worker.as_deref());
    let of = job.max_attempts.map(|most| format!(" of {most}")).unwrap_or_default();
    line("attempt", Some(&format!("{}{of}", listed.attempt)));
    line("error", listed.error.as_deref());
    line("payload", job.payload.as_deref());
    line("output", job.output.as_deref());
    for failure in history(job) {
        let part =
            |name: &str| failure.get(name).map(|part| part.as_str().map_or(part.to_string(), str::to_owned));
        let part = |name: &str| part(name).unwrap_or_else(|| "?".to_owned());
        line("failed", Some(&format!("{} attempt {}: {}", part("at"), part("attempt"), part("error"))));
    }
    text
}

fn history(job: &Shown) -> Vec<Value> {
    job.history.as_deref().and_then(|history| serde_json::from_str(history).ok()).unwrap_or_default()
}

#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    summary: Value,
    priority: Option<i16>,
    max_attempts: Option<i16>,
    created_at: String,
    history: Vec<Value>,
    output: Option<Box<RawValue>>,
    payload: Option<Box<RawValue>>,
}

/// One line of JSON with the exact bytes of the payload.
fn document(job: &Shown) -> String {
    let document = Document {
        summary: list::summary(&job.listed),
        priority: job.priority,
        max_attempts: job.max_attempts,
        created_at: moment::text(job.created_at),
        history: history(job),
        output: job.output.as_deref().and_then(output::on_one_line),
        payload: job.payload.as_deref().and_then(output::on_one_line),
    };
    let mut line = serde_json::to_string(&document).unwrap_or_default();
    line.push('\n');
    line
}
