//! One module per command.

pub(crate) mod config;
pub(crate) mod init;
pub(crate) mod rebase;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod sql;
