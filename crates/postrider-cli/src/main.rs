//! `postrider`: installs the log in a database and looks after it.
#![forbid(unsafe_code)]

mod bytes;
mod cli;
mod commands;
mod config;
mod connect;
mod exit;
mod failure;
#[cfg_attr(not(test), expect(dead_code, unused_imports, reason = "until `run` serves it"))]
mod http;
#[expect(dead_code, reason = "until `run` sets it from the configuration")]
mod logging;
#[expect(dead_code, reason = "until `run` tells its supervisor")]
mod notify;
mod output;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main().into()
}
