//! `postrider doctor`: is everything as it must be, and what to do if not.

mod capture;
mod check;
mod durability;
mod files;
mod log;
mod server;
mod sessions;
mod sinks;

use clap::Args;
use serde_json::{Value, json};
use sqlx::PgConnection;

use self::check::{Check, Grade, Report};
use super::captured::{self, Tables};
use crate::config::{self, Outline};
use crate::connect::Target;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

/// Check the server, the schema, the log, the captured tables, the sinks, and say what to do about what is wrong
///
/// With a configuration, also the sinks that are in it, the files they write, as they are on this machine, and how well their servers keep what they confirm (grades A to F). Changes nothing. Works with any role that may connect; what the role may not see is said, and one that may not see the schema at all is bad. Exits with 2 if something is bad.
#[derive(Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    target: Target,
}

impl Doctor {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        let outline = config::outline(&self.target.source)?;
        let mut connection = self.target.connect().await?;
        let mut report = Report::default();
        let tables = captured::declared(&self.target.source);
        examine(&mut connection, &outline, tables.as_ref(), &mut report).await?;
        if let Some(sinks) = config::sinks(&self.target.source, &self.target.overrides())? {
            files::examine(&sinks, &mut report);
            durability::examine(&sinks, &mut report).await;
        } else if self.target.source.file().is_some() {
            report.warn(
                "configuration",
                "something is wrong with it, and the files and servers of its sinks were not looked at"
                    .to_owned(),
                "`postrider config check` says what",
            );
        }
        let checks = report.checks;
        let is_bad = checks.iter().any(|check| check.grade == Grade::Bad);
        if json {
            let checks: Vec<Value> = checks.iter().map(Check::document).collect();
            output::json(&json!({ "well": !is_bad, "checks": checks }))?;
        } else {
            let words: String = checks.iter().map(|check| check.words(output::is_colourful())).collect();
            output::data(&words)?;
            let count = |grade| checks.iter().filter(|check| check.grade == grade).count();
            output::say(&format!(
                "{} ok, {} to look at, {} bad",
                count(Grade::Ok),
                count(Grade::Warn),
                count(Grade::Bad)
            ));
        }
        Ok(if is_bad { Exit::Found } else { Exit::Fine })
    }
}

async fn examine(
    connection: &mut PgConnection,
    outline: &Outline,
    tables: Option<&Tables>,
    report: &mut Report,
) -> Result<(), Failure> {
    server::examine(connection, report).await?;
    if log::is_installed(connection, report).await? {
        log::examine(connection, outline.max_log_size, report).await?;
        capture::examine(connection, tables, report).await?;
        sinks::examine(connection, outline.sinks.as_deref(), report).await?;
    }
    sessions::examine(connection, report).await
}
