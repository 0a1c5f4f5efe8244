//! `postrider jobs`: the job queue, as an operator sees it.

mod act;
mod list;
mod queue;
mod show;
mod stats;

use clap::{Args, Subcommand};

use crate::exit::Exit;
use crate::failure::Failure;

/// Look at jobs, retry or cancel them, pause a queue
///
/// A job is written by `select postrider.enqueue('email.send', '{"to": 7}')` and worked off by your own workers. One that failed until no
/// attempt was left is dead: it is kept, with its payload and its failures, until somebody retries or cancels it.
#[derive(Args)]
pub(crate) struct Jobs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    List(list::List),
    Show(show::Show),
    Retry(act::Retry),
    Cancel(act::Cancel),
    Stats(stats::Stats),
    Pause(act::Pause),
    Resume(act::Resume),
}

impl Jobs {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        match self.command {
            Command::List(command) => command.run(json).await,
            Command::Show(command) => command.run(json).await,
            Command::Retry(command) => command.run(json).await,
            Command::Cancel(command) => command.run(json).await,
            Command::Stats(command) => command.run(json).await,
            Command::Pause(command) => command.run(json).await,
            Command::Resume(command) => command.run(json).await,
        }
    }
}
