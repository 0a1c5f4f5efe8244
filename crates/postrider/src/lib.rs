//! Emit events in your own PostgreSQL transaction, and read every committed one, in order per key.
#![forbid(unsafe_code)]

mod context;
mod event;
#[cfg(feature = "log")]
pub mod log;
pub mod producer;
#[cfg(feature = "log")]
pub mod schema;

pub use context::Context;
pub use event::Event;
pub use producer::{
    Changed, EmitError, Emitted, Expected, Refusal, Transaction, assert_emitted, emit, emit_many, emitted,
};
