//! The command line, and what happens around every command.

use std::env;
use std::ffi::OsStr;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use rustix::process::{Resource, Rlimit, setrlimit};
use tokio::runtime::Builder;

use crate::commands::{
    apply, backfill, completions, config, dead, doctor, emit, inbox, init, jobs, man, plan, rebase,
    recapture, run, sinks, sql, status, tail, where_is,
};
use crate::exit::{self, Exit};
use crate::failure::{Failure, redact};
use crate::logging;
use crate::output;

/// Carries every change committed in PostgreSQL to everyone who must hear of it
///
/// An event is written by `select postrider.emit('order.paid', '{"order": 7}', key => '7')` in the transaction that makes it true,
/// and is read after that has committed: every event, in order per key. `postrider init` puts what this needs into your database.
#[derive(Parser)]
#[command(
    name = "postrider",
    version,
    max_term_width = 100,
    disable_help_subcommand = true,
    subcommand_required = true
)]
struct Cli {
    /// Print the result as JSON on standard output
    #[arg(long, global = true, display_order = 100)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Init(init::Init),
    Plan(plan::Plan),
    Apply(apply::Apply),
    Recapture(recapture::Recapture),
    Backfill(backfill::Backfill),
    Run(run::Run),
    Sql(sql::Sql),
    Emit(emit::Emit),
    Tail(tail::Tail),
    Status(status::Status),
    Doctor(doctor::Doctor),
    Where(where_is::Where),
    Dead(dead::Dead),
    Jobs(jobs::Jobs),
    Sinks(sinks::Sinks),
    Inbox(inbox::Inbox),
    Rebase(rebase::Rebase),
    Config(config::Configuration),
    Completions(completions::Completions),
    Man(man::Man),
}

/// The definition of the command line, for what is generated from it.
pub(crate) fn command() -> clap::Command {
    with_exit_status(Cli::command())
}

/// Every command ends in the same ways: said behind its examples, where it has some.
fn with_exit_status(command: clap::Command) -> clap::Command {
    let command = command.mut_subcommands(with_exit_status);
    let examples =
        command.get_after_long_help().map(|examples| format!("{examples}\n\n")).unwrap_or_default();
    command.after_long_help(format!("{examples}{}", exit::HELP))
}

/// Everything from the arguments to the exit status.
pub(crate) fn main() -> Exit {
    leave_no_core();
    match start() {
        Ok(exit) => exit,
        Err(failure) => {
            output::say(&failure.to_string());
            failure.exit()
        }
    }
}

/// A relay hears signals before anything else is done: reading the command line takes its time too, and a supervisor does not wait.
fn start() -> Result<Exit, Failure> {
    let is_relay = env::args_os().skip(1).find(|word| !is_option(word)).is_some_and(|word| word == "run");
    let mut runtime = if is_relay { Builder::new_multi_thread() } else { Builder::new_current_thread() };
    let runtime = runtime.enable_all().build().map_err(|error| Failure::new(Exit::Failed, error))?;
    runtime.block_on(async {
        let signals = is_relay.then(run::Signals::listen).transpose()?;
        let parsed = command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
        match parsed {
            Ok(cli) => run(cli, signals).await,
            Err(error) => Ok(refuse(&error)),
        }
    })
}

fn is_option(word: &OsStr) -> bool {
    word.as_encoded_bytes().starts_with(b"-")
}

/// Passwords and events are in its memory: no crash is to write them to a disk. Where it may not, its supervisor decides.
fn leave_no_core() {
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
}

async fn run(cli: Cli, signals: Option<run::Signals>) -> Result<Exit, Failure> {
    logging::start()?;
    match cli.command {
        Command::Init(command) => command.run(cli.json).await,
        Command::Run(command) => command.run(signals.map_or_else(run::Signals::listen, Ok)?, cli.json).await,
        Command::Plan(command) => command.run(cli.json).await,
        Command::Apply(command) => command.run(cli.json).await,
        Command::Recapture(command) => command.run(cli.json).await,
        Command::Backfill(command) => command.run(cli.json).await,
        Command::Sql(command) => command.run(cli.json).await,
        Command::Emit(command) => command.run(cli.json).await,
        Command::Tail(command) => command.run(cli.json).await,
        Command::Status(command) => command.run(cli.json).await,
        Command::Doctor(command) => command.run(cli.json).await,
        Command::Where(command) => command.run(cli.json).await,
        Command::Dead(command) => command.run(cli.json).await,
        Command::Jobs(command) => command.run(cli.json).await,
        Command::Sinks(command) => command.run(cli.json).await,
        Command::Inbox(command) => command.run(cli.json).await,
        Command::Rebase(command) => command.run(cli.json).await,
        Command::Config(command) => command.run(cli.json).await,
        Command::Completions(command) => command.run(cli.json),
        Command::Man(command) => command.run(cli.json),
    }
}

/// Help and version are answers; everything else is a wrong command line, which clap may quote, password and all.
fn refuse(error: &clap::Error) -> Exit {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            Exit::Fine
        }
        _ => {
            output::say(redact(&error.render().to_string()).trim_end());
            Exit::Usage
        }
    }
}

#[cfg(test)]
mod tests {

    #[test]
    fn is_consistent() {
        super::command().debug_assert();
    }
}
