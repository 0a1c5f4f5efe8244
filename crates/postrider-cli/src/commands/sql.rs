//! `postrider sql`: the same installation as a script, and the triggers of the declared tables as a migration.

mod migration;

use clap::Args;
use postrider::capture::{Difference, State};
use postrider::schema;
use serde_json::json;

use self::migration::{Format, Migration};
use super::plan;
use super::schema::Choices;
use crate::connect::Target;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

/// Print what `init` would run as one script, or with --format what `apply` would run as a migration
///
/// Without --format it connects to nothing. The script is one transaction and may be run again: like `init` it keeps the lanes and the
/// payload's limit that it finds, and refuses other lanes or a newer schema. Roles other than the default have to be named again.
///
/// With --format it compares the declared tables with the database, as `plan` does, and prints a migration of what differs: run it
/// where the migrations before it have been run. Nothing is printed if nothing differs.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  postrider sql | psql -v ON_ERROR_STOP=1 shop
  postrider sql --lanes 1 > migrations/0042_postrider.sql
  postrider sql --format django --after shop.0007_orders > shop/migrations/0008_capture.py
  postrider sql --format sqlx > migrations/8_capture.up.sql
  postrider sql --format sqlx --reverse > migrations/8_capture.down.sql")]
pub(crate) struct Sql {
    #[command(flatten)]
    choices: Choices,

    /// Print the triggers of the declared tables as a migration for this tool
    #[arg(long, value_enum, help_heading = "Migrations")]
    format: Option<Format>,

    /// Print what takes the migration back; for the tools that want it in a file of its own
    #[arg(long, requires = "format", help_heading = "Migrations")]
    reverse: bool,

    /// Also remove our triggers from tables that are not declared
    #[arg(long, requires = "format", help_heading = "Migrations")]
    remove_orphans: bool,

    /// For Django: the migration before this one
    #[arg(long, value_name = "APP.NAME", requires = "format", help_heading = "Migrations")]
    after: Option<String>,

    #[command(flatten)]
    target: Target,
}

impl Sql {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        if let Some(format) = self.format {
            return self.migration(format, json).await;
        }
        let script = schema::script(&self.choices.install());
        if json {
            output::json(&json!({ "version": schema::NEWEST, "script": script }))?;
        } else {
            output::data(&script)?;
        }
        Ok(Exit::Fine)
    }

    async fn migration(&self, format: Format, json: bool) -> Result<Exit, Failure> {
        let declared = plan::written(&self.target)?;
        let mut connection = self.target.connect().await?;
        let planned = plan::planned(&mut connection, &declared).await?;
        let is_wanted = |table: &&Difference| {
            table.state != State::Installed && (table.state != State::Orphaned || self.remove_orphans)
        };
        let wanted: Vec<&Difference> = planned.tables.iter().filter(is_wanted).collect();
        let tables: Vec<&str> = wanted.iter().map(|table| table.table.as_str()).collect();
        let migration = Migration::of(&wanted);
        let text = if migration.is_empty() {
            output::say("everything is as declared: there is nothing to migrate");
            String::new()
        } else if self.reverse {
            migration.reverse_script(format)
        } else {
            migration.text(format, self.after.as_deref())
        };
        if json {
            output::json(&json!({ "tables": tables, "script": text }))?;
        } else {
            output::data(&text)?;
        }
        Ok(Exit::Fine)
    }
}
