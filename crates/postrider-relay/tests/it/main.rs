//! The one integration-test binary of this crate: one link, shared servers.

// A helper of a test may panic like the test itself. Modules are `pub` to each other, there is no outside.
#![allow(clippy::unwrap_used, unreachable_pub)]

mod conformance;
mod durability;
mod engine;
mod envelopes;
mod faults;
mod file_sink;
mod foreign_file;
mod jobs_sink;
mod jq;
mod kills;
mod lanes_lost;
mod operator;
mod outbox;
mod parking_storm;
mod payloads;
mod read_again;
mod route;
mod scratch;
mod side_by_side;
mod silence;
mod stdout_sink;
mod support;
mod written;
