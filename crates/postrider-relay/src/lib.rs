//! Carries the events of a Postrider log to its sinks: at least once, in order per key, one pipeline per sink.
#![forbid(unsafe_code)]

mod capture;
pub mod durability;
mod envelope;
mod envelopes;
mod face;
mod jq;
mod json;
mod memory;
mod outbox;
mod pipeline;
pub mod policy;
pub mod prepare;
pub mod redact;
mod relay;
mod route;
pub mod settings;
pub mod sink;
pub mod sinks;
pub mod status;
pub mod telemetry;
pub mod units;

pub use capture::CaptureStatus;
pub use durability::{Durability, Grade};
pub use prepare::{PrepareError, Prepared, Preparer};
pub use relay::{Relay, RelayError};
pub use settings::{EnvelopeKind, LogSettings, Ordering, RelaySettings, Retry, SinkSettings};
pub use sink::{EventId, Message, Outcome, Refusal, RefusalKind, Report, Sink, Unavailable, UnavailableKind};
pub use status::{SinkStatus, State};
