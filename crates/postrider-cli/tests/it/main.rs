//! The real binary against real servers.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but not in the functions they share")]

mod backfill;
mod brokers;
mod capture;
mod config;
mod dead;
mod deploy;
mod doctor;
mod emit;
mod generated;
mod http;
mod inbox;
mod init;
mod jobs;
mod manners;
mod memory;
mod once;
mod outbox;
mod readme;
mod rebase;
mod run;
mod secrets;
mod sinks;
mod sql;
mod status;
mod support;
mod tail;
mod where_is;
mod world;
