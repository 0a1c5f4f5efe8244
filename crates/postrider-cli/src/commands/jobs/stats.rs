//! `postrider jobs stats`.

use clap::Args;
use postrider::jobs::admin;
use postrider::schema;
use serde_json::{Value, json};

use crate::connect::Target;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::{moment, output};

/// How many jobs of each queue are where; counting of ready ones stops at 10,000 a priority
#[derive(Args)]
pub(crate) struct Stats {
    #[command(flatten)]
    target: Target,
}

impl Stats {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        const HEADINGS: &[&str] =
            &["QUEUE", "READY", "RUNNING", "SCHEDULED", "BEHIND KEY", "DEAD", "WORKERS", "PAUSED"];
        let mut connection = self.target.connect().await?;
        schema::check_version(&mut connection).await?;
        let queues = admin::stats(&mut connection).await?;
        if json {
            let queues: Vec<Value> = queues
                .iter()
                .map(|queue| {
                    json!({
                        "queue": queue.queue, "ready": queue.ready, "running": queue.running, "scheduled": queue.scheduled,
                        "behind_key": queue.behind_key, "dead": queue.dead, "workers": queue.workers,
                        "paused_at": queue.paused_at.map(moment::text),
                    })
                })
                .collect();
            output::json(&json!({ "queues": queues }))?;
            return Ok(Exit::Fine);
        }
        if queues.is_empty() {
            output::say("none");
            return Ok(Exit::Fine);
        }
        let rows: Vec<Vec<String>> = queues
            .iter()
            .map(|queue| {
                let numbers = [
                    queue.ready,
                    queue.running,
                    queue.scheduled,
                    queue.behind_key,
                    queue.dead,
                    queue.workers,
                ];
                let paused = queue.paused_at.map_or_else(|| "-".to_owned(), moment::short);
                let name = std::iter::once(output::plain(&queue.queue));
                name.chain(numbers.iter().map(|number| output::thousands(*number))).chain([paused]).collect()
            })
            .collect();
        output::data(&output::table(HEADINGS, &rows))?;
        Ok(Exit::Fine)
    }
}
