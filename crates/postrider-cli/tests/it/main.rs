//! The real binary against real servers.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but not in the functions they share")]

mod config;
mod deploy;
mod http;
mod init;
mod manners;
mod rebase;
mod secrets;
mod sql;
mod support;
