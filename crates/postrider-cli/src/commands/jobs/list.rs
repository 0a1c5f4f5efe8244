//! `postrider jobs list`.

use clap::{Args, ValueEnum};
use postrider::jobs::admin::{self, Listed};
use postrider::schema;
use serde_json::{Value, json};

use super::queue;
use crate::connect::Target;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::{moment, output};

/// List jobs that have not ended, the newest first
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  postrider jobs list
  postrider jobs list --state dead --queue mail
  postrider jobs list --state running           who has what, since when")]
pub(crate) struct List {
    #[command(flatten)]
    target: Target,

    /// Only of this queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,

    /// Only in this state; those that have ended are shown only if asked for
    #[arg(long, value_name = "STATE")]
    state: Option<State>,

    /// How many to show
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=100_000))]
    limit: i64,
}

#[derive(Clone, Copy, ValueEnum)]
enum State {
    /// May be claimed
    Ready,
    /// Is claimed
    Running,
    /// Waits for its time: the first run, another attempt, a snooze
    Scheduled,
    /// Waits for another job of its key
    Key,
    /// Waits for a person
    Dead,
    /// Has been done
    Done,
    /// Was cancelled
    Cancelled,
    /// Was dead, and cancelled
    Discarded,
}

impl List {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        let mut connection = self.target.connect().await?;
        schema::check_version(&mut connection).await?;
        let state = self.state.and_then(|state| state.to_possible_value());
        let state = state.as_ref().map(clap::builder::PossibleValue::get_name);
        let jobs = admin::list(&mut connection, self.queue.as_deref(), state, self.limit).await?;
        if let (true, Some(queue)) = (jobs.is_empty(), &self.queue) {
            queue::check(&mut connection, queue).await?;
        }
        if json {
            let jobs: Vec<Value> = jobs.iter().map(summary).collect();
            output::json(&json!({ "jobs": jobs }))?;
        } else if jobs.is_empty() {
            output::say("none");
        } else {
            output::data(&table(&jobs))?;
        }
        Ok(Exit::Fine)
    }
}

fn table(jobs: &[Listed]) -> String {
    const HEADINGS: &[&str] = &["ID", "QUEUE", "KIND", "KEY", "STATE", "ATTEMPT", "AT", "WORKER", "ERROR"];
    let rows: Vec<Vec<String>> = jobs
        .iter()
        .map(|job| {
            vec![
                job.id.to_string(),
                output::plain(&job.queue),
                output::plain(&job.kind),
                output::plain(job.key.as_deref().unwrap_or("-")),
                job.state.clone(),
                job.attempt.to_string(),
                job.at.map_or_else(|| "-".to_owned(), moment::short),
                output::plain(job.worker.as_deref().unwrap_or("-")),
                shortened(job.error.as_deref().unwrap_or("-")),
            ]
        })
        .collect();
    output::table(HEADINGS, &rows)
}

fn shortened(text: &str) -> String {
    const LONGEST: usize = 80;
    let text = output::plain(text);
    if text.chars().count() <= LONGEST {
        return text;
    }
    text.chars().take(LONGEST - 1).chain(['…']).collect()
}

pub(super) fn summary(job: &Listed) -> Value {
    json!({
        "id": job.id,
        "queue": job.queue,
        "kind": job.kind,
        "key": job.key,
        "state": job.state,
        "attempt": job.attempt,
        "at": job.at.map(moment::text),
        "worker": job.worker,
        "error": job.error,
    })
}
