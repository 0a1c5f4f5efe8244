//! The receiving end: effects that happen exactly once.
//!
//! Without a broker, [`Subscription`] hands events of the log to a handler, in the transaction that also moves the cursor. Behind a
//! broker, [`inbox::first_time`](crate::inbox::first_time) says in the transaction of the effect whether a message was had before.

mod backoff;
pub(crate) mod blame;
mod caution;
mod ear;
mod message;
mod outcome;
pub(crate) mod patience;
mod process;
mod subscription;
mod tx;
pub(crate) mod words;
mod worker;

pub use backoff::Backoff;
pub use message::Message;
pub use outcome::{BoxError, Outcome};
pub use subscription::{Committed, Subscription};
pub use tx::Tx;
