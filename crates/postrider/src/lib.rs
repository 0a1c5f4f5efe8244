#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

#[cfg(feature = "amqp")]
#[doc(hidden)]
pub mod amqp;
#[cfg(feature = "log")]
pub mod capture;
#[cfg(feature = "consume")]
pub mod consume;
#[cfg(feature = "consumer")]
pub mod consumer;
#[cfg(feature = "consumer")]
pub mod consumers;
mod context;
#[cfg(feature = "log")]
pub mod declared;
mod event;
#[cfg(feature = "log")]
pub mod inbox;
#[cfg(feature = "jobs")]
pub mod jobs;
#[cfg(feature = "log")]
pub mod log;
#[cfg(feature = "log")]
pub mod outbox;
pub mod producer;
#[cfg(feature = "log")]
pub mod schema;

pub use context::Context;
pub use event::Event;
pub use producer::{
    Changed, EmitError, Emitted, Expected, Refusal, Transaction, assert_emitted, emit, emit_many, emitted,
};

/// The examples of the repository's README are compiled like those of the documentation.
#[cfg(all(doctest, feature = "consume"))]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
