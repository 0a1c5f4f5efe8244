//! `postrider dead`: events that a sink refused until no attempt was left.

mod act;
mod list;
mod selection;
mod show;

use clap::{Args, Subcommand};

use crate::exit::Exit;
use crate::failure::Failure;

/// Look at events that a sink has refused for good, and retry or discard them
///
/// A refused event is parked with its reason and tried again. After the last attempt it is dead: it is kept, with its payload and the
/// history of its refusals, until somebody retries or discards it. With `ordering: strict` later events of its key wait behind it.
#[derive(Args)]
pub(crate) struct Dead {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    List(list::List),
    Show(show::Show),
    Retry(act::Retry),
    Discard(act::Discard),
}

impl Dead {
    pub(crate) async fn run(self, json: bool) -> Result<Exit, Failure> {
        match self.command {
            Command::List(command) => command.run(json).await,
            Command::Show(command) => command.run(json).await,
            Command::Retry(command) => command.run(json).await,
            Command::Discard(command) => command.run(json).await,
        }
    }
}
