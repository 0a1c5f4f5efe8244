//! The log: reading every committed event once, in order per key, whatever other transactions do.
//!
//! [`Reader`] is what most callers want. The modules below are its parts, each a small thing of its own.

pub mod advice;
pub mod bell;
pub mod cursor;
mod driver;
pub mod error;
pub mod flush;
pub mod identity;
pub mod lanes;
pub mod lease;
mod link;
mod page_size;
pub mod parking;
pub mod progress;
mod reader;
pub mod rebase;
mod record;
pub mod report;
pub mod ring;
mod room;
pub mod round;
pub mod servers;
pub mod session;
mod settling;
pub mod share;
pub mod sink;
mod turns;
pub mod wake;

pub use bell::{Hint, Silence};
pub use error::Error;
pub use reader::{Batch, Reader, ReaderOptions, Settled, Settlement, Settler, Standing};
pub use record::Record;
pub use report::{Mood, Report};
pub use ring::Retention;
pub use room::{BatchBytes, Large};
pub use servers::Servers;
pub use sink::Start;
