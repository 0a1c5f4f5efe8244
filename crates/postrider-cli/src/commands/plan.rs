//! `postrider plan`: what is installed against what is declared.

use std::fmt::Write as _;

use clap::Args;
use postrider::capture::{self, Difference, Missing, State};
use postrider::{declared, schema};
use serde_json::{Value, json};
use sqlx::PgConnection;

use crate::config::{self, Declared};
use crate::connect::Target;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

/// Show how the triggers of the declared and adopted tables stand, and the SQL that brings them to what is declared
///
/// Changes nothing. A trigger is missing; installed; outdated, when the declaration or the table's columns have changed; disabled,
/// when it is switched off; or orphaned, when its table is not declared. Exits with 2 if there is anything to do, or if writes are kept whose
/// events are missing.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  postrider plan
  postrider plan --json | jq -r '.tables[] | select(.state == \"missing\") | .table'")]
pub(crate) struct Plan {
    #[command(flatten)]
    target: Target,
}

impl Plan {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        let declared = written(&self.target)?;
        let mut connection = self.target.connect().await?;
        let plan = planned(&mut connection, &declared).await?;
        if json {
            let tables: Vec<Value> = plan.tables.iter().map(document).collect();
            output::json(&json!({ "done": plan.is_done(), "tables": tables }))?;
        } else {
            output::data(&in_words(&plan.tables))?;
        }
        // Whoever has no right to see them is told by `status`.
        let missing = capture::missing(&mut connection).await.unwrap_or_default();
        for Missing { relation, failures, .. } in &missing {
            output::say(&format!(
                "{}: {failures} writes are kept whose events are missing",
                output::plain(relation)
            ));
        }
        let open = plan.tables.iter().filter(|table| table.state != State::Installed).count();
        if open == 0 && !missing.is_empty() {
            output::say("everything is as declared; `postrider recapture` records what is kept");
            return Ok(Exit::Found);
        }
        if open == 0 {
            output::say("everything is as declared");
            return Ok(Exit::Fine);
        }
        let orphans = plan.tables.iter().any(|table| table.state == State::Orphaned);
        let flag = if orphans { "; with --remove-orphans also what is not declared" } else { "" };
        output::say(&format!("{open} to do: `postrider apply` does it{flag}"));
        Ok(Exit::Found)
    }
}

/// What the file declares. Without a file there is nothing to compare with.
pub(super) fn written(target: &Target) -> Result<Declared, Failure> {
    let declared = config::declared(&target.source)?;
    if declared.is_written {
        return Ok(declared);
    }
    Err(Failure::configuration(
        "there is no postrider.yaml here: declare the tables in one, under `tables` or `outbox`, or name it with --config PATH",
    ))
}

pub(super) async fn planned(
    connection: &mut PgConnection,
    declared: &Declared,
) -> Result<capture::Plan, Failure> {
    schema::check_version(connection).await?;
    declared::plan(connection, &declared.tables, &declared.outboxes)
        .await
        .map_err(|error| declared.any_failure(error))
}

fn in_words(tables: &[Difference]) -> String {
    let mut text = String::new();
    if tables.is_empty() {
        text.push_str("no tables are declared, and none is captured or adopted\n");
    }
    let rows: Vec<Vec<String>> = tables
        .iter()
        .map(|table| vec![output::plain(&table.table), table.state.word().to_owned(), table.notes.join("; ")])
        .collect();
    if !rows.is_empty() {
        text.push_str(&output::table(&["TABLE", "TRIGGER", "NOTE"], &rows));
    }
    for table in tables.iter().filter(|table| !table.statements.is_empty()) {
        let _ = write!(
            text,
            "\n-- {}: {}\n{}",
            output::plain(&table.table),
            table.state.word(),
            script(&table.statements)
        );
    }
    text
}

/// Statements as psql takes them.
pub(crate) fn script(statements: &[String]) -> String {
    statements.iter().fold(String::new(), |text, statement| text + statement + ";\n")
}

pub(super) fn document(table: &Difference) -> Value {
    json!({
        "table": table.table,
        "state": table.state.word(),
        "notes": table.notes,
        "statements": table.statements,
        "reverse": table.reverse,
    })
}
