//! The real binary against real servers.
#![forbid(unsafe_code)]

mod init;
mod manners;
mod rebase;
mod secrets;
mod sql;
mod support;
