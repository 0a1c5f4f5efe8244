//! Emit events in your own PostgreSQL transaction, and read every committed one, in order per key.
#![forbid(unsafe_code)]

#[cfg(feature = "log")]
pub mod log;
#[cfg(feature = "log")]
pub mod schema;
