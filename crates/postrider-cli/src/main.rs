//! `postrider`: installs the log in a database and looks after it.
#![forbid(unsafe_code)]

mod bytes;
mod cli;
mod commands;
mod config;
mod connect;
mod exit;
mod failure;
mod glob;
mod http;
mod logging;
mod moment;
mod notify;
mod output;
mod progress;
mod steady;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main().into()
}
