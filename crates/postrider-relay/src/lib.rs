//! Carries the events of a Postrider log to its sinks.
//!
//! Empty so far. It will hold the engine (read, transform, deliver, settle; one pipeline per sink, independent of all others), the
//! trait `Sink` whose documentation is its contract, and the sinks, each behind a feature of its own.
#![forbid(unsafe_code)]
