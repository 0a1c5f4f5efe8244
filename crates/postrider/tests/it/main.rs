//! The one integration-test binary of this crate: one link, shared servers.

// A helper of a test may panic like the test itself. Modules are `pub` to each other, there is no outside.
#![allow(clippy::unwrap_used, unreachable_pub)]

mod attacks;
mod batch_bytes;
mod capture;
mod consume;
mod consumers;
mod declared;
mod docs;
mod dump;
mod faults;
mod inbox_keep;
mod jobs;
mod order;
mod outbox;
mod plans;
mod producer;
mod reader;
mod rebase;
mod roles;
mod rules;
mod schema;
mod storm;
mod support;
mod takeover;
mod views;
mod volume;
mod wake_model;
