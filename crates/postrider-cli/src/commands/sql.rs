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
/// Connects to nothing. The script is one transaction and may be run again: like `init` it keeps the lanes and the payload's limit
/// that it finds, and refuses other lanes or a newer schema. Roles other than the default have to be named again.
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
