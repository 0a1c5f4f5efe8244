//! `postrider sql`: the same installation as a script.

use clap::Args;
use postrider::schema;
use serde_json::json;

use super::schema::Choices;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

/// Print what `init` would run, as one script for psql or your own migrations
///
/// Connects to nothing, so it knows nothing of a log that is there already: run again, it needs the same --lanes, --max-payload and
/// roles as before, where `init` keeps what it finds. The script is one transaction.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  postrider sql | psql -v ON_ERROR_STOP=1 shop
  postrider sql --lanes 1 > migrations/0042_postrider.sql")]
pub(crate) struct Sql {
    #[command(flatten)]
    choices: Choices,
}

impl Sql {
    pub(crate) fn run(self, json: bool) -> Result<Exit, Failure> {
        let script = schema::script(&self.choices.install());
        if json {
            output::json(&json!({ "version": schema::NEWEST, "script": script }))?;
        } else {
            output::data(&script)?;
        }
        Ok(Exit::Fine)
    }
}
