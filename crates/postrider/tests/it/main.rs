//! The one integration-test binary of this crate: one link, shared servers.

mod dump;
mod producer;
mod reader;
mod rebase;
mod rules;
mod storm;
mod support;
mod wake_model;
