//! `postrider config`: what the configuration says, whether it is right, and what it may say.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use clap::{Args, Subcommand};
use postrider::{capture, outbox, schema};
use postrider_relay::sinks::Target;
use serde_json::json;
use sqlx::{Connection as _, PgConnection};

use super::rights;
use crate::config::{self, Depth, Examined, Finding, Overrides, Source, ends_foreign, file_of};
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

/// Check, show and describe the configuration
#[derive(Args)]
pub(crate) struct Configuration {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Check(Check),
    Show(Show),
    Schema(Schema),
}

/// Find what is wrong, with lines
///
/// First every key and value that cannot be read; when they all can, bounds, expressions and routes. Ends with 0 if nothing is wrong, with
/// 69 if all that is wrong is that the database or a sink is away, else with 78.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  postrider config check                              before a deployment, where its variables are set
  postrider config check --depth syntax               in a build, where they are not
  postrider config check --depth environment --json   on the machine that will run it")]
struct Check {
    #[command(flatten)]
    source: Source,

    /// How far to look; each includes the ones before it
    #[arg(long, value_enum, default_value_t = Depth::References)]
    depth: Depth,
}

/// Print every value that is in effect, and where it is from
///
/// Passwords are not shown, nor the texts that variables and files put in: they stand as `${NAME}`. A default that is in effect is shown.
#[derive(Args)]
struct Show {
    #[command(flatten)]
    source: Source,

    #[command(flatten)]
    overrides: Overrides,
}

/// Print the JSON Schema of the file, for editors
#[derive(Args)]
#[command(after_long_help = "\
Example:
  postrider config schema > postrider.schema.json
  and as the first line of postrider.yaml:  # yaml-language-server: $schema=postrider.schema.json")]
struct Schema {}

impl Configuration {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        match self.command {
            Command::Check(command) => command.run(json).await,
            Command::Show(command) => command.run(json),
            Command::Schema(Schema {}) => {
                output::data(&format!("{:#}\n", config::schema()))?;
                Ok(Exit::Fine)
            }
        }
    }
}

impl Check {
    async fn run(self, json: bool) -> Result<Exit, Failure> {
        let examined = config::examine(&self.source, &Overrides::default(), self.depth)?;
        let (mut findings, mut away) = (Vec::new(), Vec::new());
        if self.depth >= Depth::References {
            findings.append(&mut examined.folders());
        }
        if self.depth >= Depth::Environment {
            environment(&examined, &mut findings, &mut away).await;
        }
        let is_wrong = !(examined.report.is_empty() && findings.is_empty());
        let exit = if is_wrong { Exit::Configuration } else { Exit::Unavailable };
        findings.append(&mut away);
        let report = examined.report_with(findings);
        let file = self.source.file().map(|path| path.display().to_string());
        if json {
            output::json(&json!({ "file": file, "findings": report.json() }))?;
        }
        if !report.is_empty() {
            if json {
                return Ok(exit);
            }
            return Err(Failure::new(exit, report));
        }
        let sinks = examined.config.as_ref().map(|config| config.relay.sinks.len());
        match file {
            // Only by its syntax can a file be fine that refers to what is not there.
            Some(file) if sinks.is_none() => output::say(&format!(
                "the syntax of {file} is fine; it refers to what is not set here, so its values were not looked at"
            )),
            Some(file) if sinks != Some(0) => output::say(&format!("{file} is fine")),
            Some(file) => output::say(&format!(
                "{file} is fine; it has no sink, so `postrider run` has nothing to carry"
            )),
            None => output::say("there is no postrider.yaml here; what is set without one is fine"),
        }
        Ok(Exit::Fine)
    }
}

/// What has to answer answers. Apart from what is wrong, what may be there later.
async fn environment(examined: &Examined, findings: &mut Vec<Finding>, away: &mut Vec<Finding>) {
    let Some(config) = &examined.config else { return };
    match database(config).await {
        Ok(connection) => tables(examined, connection, findings).await,
        Err(failure) => {
            let message = failure.to_string();
            let list = if failure.exit() == Exit::Unavailable { &mut *away } else { &mut *findings };
            list.push(examined.finding(&["database"], message.trim_start_matches("error: ").to_owned()));
        }
    }
    for sink in &config.relay.sinks {
        if let Err(message) = open(&sink.target).await {
            let message = format!("the sink `{}` cannot be opened: {message}", sink.name);
            // A file is ours to write; what is served by others may come back.
            let list = if sink.target.is_exclusive() { &mut *findings } else { &mut *away };
            list.push(examined.finding(&["sinks", &sink.name, sink.target.kind()], message));
        }
    }
}

async fn open(target: &Target) -> Result<(), String> {
    if target.is_exclusive() {
        // To open it is to take it, and perhaps to mend it, while a relay may be writing to it.
        let Some(path) = file_of(target) else { return Ok(()) };
        let shown = path.display();
        // Opening a pipe would wait for its reader.
        if path.exists() && !path.is_file() {
            return Err(format!("{shown} is no regular file"));
        }
        if ends_foreign(&path) {
            return Err(format!(
                "{shown} ends with something that is no event; name another path, or move the file away"
            ));
        }
        let opened = if path.exists() {
            OpenOptions::new().append(true).open(&path).map(drop)
        } else {
            try_folder(&path)
        };
        return opened.map_err(|error| format!("{shown}: {error}"));
    }
    let closed = match target.open().await {
        Ok(sink) => sink.close().await,
        Err(unavailable) => Err(unavailable),
    };
    closed.map_err(|unavailable| format!("{unavailable}: {}", unavailable.source))
}

/// Whether a file can be made where this one is to be. Only by making one is it known; it has another name, and is gone again.
fn try_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let trial = folder.join(format!(".postrider-check-{}", std::process::id()));
    OpenOptions::new().write(true).create_new(true).open(&trial)?;
    fs::remove_file(trial)
}

async fn database(config: &config::Config) -> Result<PgConnection, Failure> {
    let mut connection = connect::open(config.relay.database.clone()).await?;
    schema::check_version(&mut connection).await?;
    rights::require_log(&mut connection).await?;
    Ok(connection)
}

/// The declared tables and everything that is said of them are there, each looked at alone and then all of them together.
async fn tables(examined: &Examined, mut connection: PgConnection, findings: &mut Vec<Finding>) {
    let Some(config) = &examined.config else { return };
    let declared = config.relay.tables.as_slice();
    let mut errors = Vec::new();
    for table in declared {
        errors.extend(capture::plan(&mut connection, std::slice::from_ref(table)).await.err());
    }
    if errors.is_empty() {
        errors.extend(capture::plan(&mut connection, declared).await.err());
    }
    for error in errors {
        let path = config::path_of(&error).unwrap_or_else(|| vec!["tables".to_owned()]);
        findings.push(examined.finding(&path, error.to_string()));
    }
    for adopted in &config.relay.outboxes {
        if let Err(error) = outbox::plan(&mut connection, std::slice::from_ref(adopted)).await {
            findings.push(examined.finding(&["outbox".to_owned(), adopted.name.clone()], error.to_string()));
        }
    }
    let _ = connection.close().await;
}

impl Show {
    fn run(self, json: bool) -> Result<Exit, Failure> {
        let examined = config::examine(&self.source, &self.overrides, Depth::References)?;
        if !examined.report.is_empty() {
            return Err(Failure::new(Exit::Configuration, examined.report));
        }
        let shown = examined.show();
        if json {
            output::json(&shown.json())?;
        } else {
            output::data(&shown.yaml())?;
        }
        Ok(Exit::Fine)
    }
}
