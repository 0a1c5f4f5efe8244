//! `postrider apply`: brings the triggers of the declared tables to what is declared.

use std::io::{self, IsTerminal as _, Write as _};

use clap::Args;
use postrider::capture::{self, Difference, State};
use postrider::{declared, log};
use serde_json::{Value, json};
use sqlx::PgConnection;

use super::{plan, recapture};
use crate::config::{self, Declared, Overrides};
use crate::connect::Target;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

/// Install or renew the triggers of the declared and adopted tables
///
/// Everything happens in one transaction, which also takes the rows that wait in outbox tables. Locks on your tables are asked for with half a second of patience, again and again: writers never
/// queue up behind it for longer. Events that could not be recorded meanwhile are recorded with it; exits with 2 if one still cannot be. Needs the owner of the tables, who may
/// create in the schema `postrider`.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  postrider plan && echo nothing to do
  postrider apply
  postrider apply --remove-orphans --yes      also take away the triggers of tables that are not declared any more")]
pub(crate) struct Apply {
    #[command(flatten)]
    target: Target,

    /// Also remove our triggers from tables that are not declared; asks first
    #[arg(long)]
    remove_orphans: bool,

    /// Do not ask
    #[arg(long, requires = "remove_orphans")]
    yes: bool,
}

impl Apply {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        let declared = plan::written(&self.target)?;
        let mut connection = self.target.connect().await?;
        let planned = plan::planned(&mut connection, &declared).await?;
        let orphans: Vec<&str> = orphans(&planned.tables);
        if self.remove_orphans && !self.yes && !orphans.is_empty() && !confirmed(&orphans)? {
            output::say("nothing was changed; with --yes they are removed");
            return Ok(Exit::Found);
        }
        self.refuse_without_sinks(&mut connection, &declared, &planned).await?;
        let (tables, outboxes) = (&declared.tables, &declared.outboxes);
        let done = declared::apply(&mut connection, tables, outboxes, self.remove_orphans)
            .await
            .map_err(|error| declared.any_failure(error))?;
        let is_done = |table: &&Difference| {
            table.state != State::Installed && (table.state != State::Orphaned || self.remove_orphans)
        };
        let changed: Vec<&Difference> = done.tables.iter().filter(is_done).collect();
        for table in &changed {
            let now = if table.state == State::Orphaned { "removed" } else { "installed" };
            output::say(&format!("{}: was {}, is {now}", output::plain(&table.table), table.state.word()));
            for note in &table.notes {
                output::say(&format!("  {}", output::plain(note)));
            }
        }
        if changed.is_empty() && done.kept.is_empty() {
            output::say("everything is as declared: nothing to do");
        }
        for kept in &done.kept {
            output::say(&format!("{}: {}", output::plain(&kept.relation), recapture::in_words(kept)));
        }
        if !self.remove_orphans && !orphans.is_empty() {
            output::say(&format!(
                "not declared and still captured: {}; `postrider apply --remove-orphans` takes their triggers away",
                orphans.join(", ")
            ));
        }
        if json {
            let changed: Vec<Value> = changed.into_iter().map(plan::document).collect();
            let kept: Vec<&str> = done.kept.iter().map(|kept| kept.relation.as_str()).collect();
            output::json(&json!({ "changed": changed, "orphans": orphans, "kept": kept }))?;
        }
        Ok(if done.kept.is_empty() { Exit::Fine } else { Exit::Found })
    }

    /// The rows that wait in an outbox table are taken with this. A sink that begins with what comes after it is born would miss them.
    async fn refuse_without_sinks(
        &self,
        connection: &mut PgConnection,
        declared: &Declared,
        planned: &capture::Plan,
    ) -> Result<(), Failure> {
        let is_new = |table: &&Difference| table.state == State::Missing;
        if declared.outboxes.is_empty() || !planned.tables.iter().any(|table| is_new(&table)) {
            return Ok(());
        }
        // The one view of sinks that who owns captured tables may look at.
        let known: Vec<String> = sqlx::query_scalar("select sink from postrider.delivery")
            .fetch_all(connection)
            .await
            .map_err(log::Error::from)?;
        let configured = config::sinks(&self.target.source, &self.target.overrides())?;
        if configured.is_none() && known.is_empty() && self.target.source.file().is_some() {
            // What no relay would start with has no sinks, and says why.
            config::load(&self.target.source, &Overrides::default())?;
        }
        let configured = configured.unwrap_or_default();
        let missing: Vec<&str> = configured
            .iter()
            .filter(|sink| sink.start != log::Start::Earliest && !known.contains(&sink.name))
            .map(|sink| sink.name.as_str())
            .collect();
        if missing.is_empty() && !(known.is_empty() && configured.is_empty()) {
            return Ok(());
        }
        let which = if missing.is_empty() {
            "no sink".to_owned()
        } else {
            format!("the sink {}", missing.join(", "))
        };
        Err(Failure::configuration(format!(
            "{which} has not been started on this database yet, and one with `start: now` would never get the rows that wait in the outbox \
             tables; start `postrider run` first, or give the sink `start: earliest`"
        )))
    }
}

fn orphans(tables: &[Difference]) -> Vec<&str> {
    let mut orphans: Vec<&str> = tables
        .iter()
        .filter(|table| table.state == State::Orphaned)
        .map(|table| table.table.as_str())
        .collect();
    orphans.dedup();
    orphans
}

/// Asks a person, if one is there.
fn confirmed(orphans: &[&str]) -> Result<bool, Failure> {
    output::say(&format!("not declared and still captured: {}", output::plain(&orphans.join(", "))));
    if !io::stdin().is_terminal() {
        return Ok(false);
    }
    let _ = write!(io::stderr(), "their changes will make no events any more; remove the triggers? [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| Failure::new(Exit::Failed, error))?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}
