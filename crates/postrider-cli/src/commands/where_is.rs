//! `postrider where`: what became of one event.

mod filter;
mod find;
mod print;

use clap::Args;
use postrider::schema;
use serde_json::json;

use self::find::Found;
use crate::config;
use crate::connect::Target;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

/// Say when an event was written, and what became of it at each sink
///
/// At a sink it waits (behind how many in its lane), is in flight (at which relay, by its last heartbeat), was delivered or left out by the
/// sink's filter (when), is parked or dead (why), was parked and then delivered or discarded (when), or was never meant for it. Which of
/// delivered and left out is told where the configuration is at hand and the role may read the log, by asking the filter again; else the event
/// has "passed". Times are known as long as the history of progress goes back, usually for hours. Any role that may see the views will do.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  postrider where 0197f1c2-5b0a-7c3e-8a51-2f6d1f0f9a11
  postrider where 4711                           the id of a row of an adopted outbox table")]
pub(crate) struct Where {
    #[command(flatten)]
    target: Target,

    /// The id of the event, as its consumers know it
    #[arg(value_name = "EVENT_ID")]
    id: String,
}

impl Where {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        let configured = config::sinks(&self.target.source, &self.target.overrides())?;
        let mut connection = self.target.connect().await?;
        schema::check_version(&mut connection).await?;
        match find::find(&mut connection, &self.id, configured.as_deref()).await? {
            Found::InLog(event, sinks) => {
                if json {
                    output::json(&print::document(&event, &sinks))?;
                } else {
                    output::data(&print::words(&event, &sinks))?;
                }
                Ok(Exit::Fine)
            }
            Found::Gone { written_at, parked } => {
                let text = print::gone(&self.id, written_at, &parked);
                if json {
                    output::json(&print::gone_document(&self.id, written_at, &parked))?;
                } else {
                    output::data(&text)?;
                }
                Ok(Exit::Fine)
            }
            Found::Nowhere => {
                if json {
                    output::json(&json!({ "id": self.id, "found": "nowhere" }))?;
                }
                let error = anyhow::anyhow!(
                    "no event {:?} is in the log: it was never committed here, or the id is mistyped",
                    self.id
                );
                Err(Failure::new(Exit::Failed, error))
            }
        }
    }
}
