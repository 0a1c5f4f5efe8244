//! What a handler says of an event.

use std::time::Duration;

/// Whatever went wrong in a handler.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What became of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It is done with: what the handler did in the transaction is committed.
    Done,
    /// Not now: what the handler did is rolled back, and it is tried again after this time. Later events of its key wait.
    Retry(Duration),
    /// Never: it is kept as dead, with this reason, where `postrider dead` shows it. What the handler did in the transaction is committed.
    Dead(String),
}
