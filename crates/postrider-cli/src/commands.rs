//! One module per command.

pub(crate) mod apply;
pub(crate) mod backfill;
mod captured;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod dead;
pub(crate) mod doctor;
pub(crate) mod emit;
pub(crate) mod inbox;
pub(crate) mod init;
pub(crate) mod jobs;
pub(crate) mod man;
pub(crate) mod plan;
pub(crate) mod rebase;
pub(crate) mod recapture;
mod rights;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod sinks;
pub(crate) mod sql;
pub(crate) mod status;
pub(crate) mod tail;
pub(crate) mod where_is;
