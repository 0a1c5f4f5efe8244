//! The receiving end: effects that happen exactly once.
//!
//! Without a broker, [`Subscription`] hands events of the log to a handler, in the transaction that also moves the cursor. Behind a
//! broker, [`inbox::first_time`](crate::inbox::first_time) says in the transaction of the effect whether a message was had before.

mod backoff;
mod message;
mod outcome;
mod process;
mod subscription;
mod tx;
mod worker;

pub use backoff::Backoff;
pub use message::Message;
pub use outcome::{BoxError, Outcome};
pub use subscription::{Committed, Subscription};
pub use tx::Tx;
