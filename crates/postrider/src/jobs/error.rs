//! Why a worker cannot work.

use crate::log;

/// Result of what a worker does.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a worker cannot work, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database failed.
    #[error("the database failed: {0}")]
    Database(#[from] sqlx::Error),

    /// The schema is missing or of another version, or the server is no primary.
    #[error(transparent)]
    Log(#[from] log::Error),

    /// There is nothing that this worker could do.
    #[error("this worker has no handler: give it one with `Worker::handle`")]
    NoHandler,

    /// A schedule cannot be understood.
    #[error("the schedule {name:?} cannot be understood: {reason}")]
    Schedule {
        /// Of the schedule.
        name: String,
        /// What is wrong with its expression.
        reason: String,
    },

    /// How jobs ended could not be stored, for another reason than a lost connection.
    #[error("how jobs ended could not be stored, so this worker stops and they will be taken over: {0}")]
    Settle(#[source] sqlx::Error),
}

impl Error {
    /// The connection is at fault, not what was said over it: it is worth another try.
    pub(super) fn is_connection(error: &sqlx::Error) -> bool {
        match error {
            sqlx::Error::Database(said) => {
                // Shutdown, no room, not yet up, connection failures; a lock that could not be had, a deadlock, a serialisation failure.
                said.code().is_some_and(|code| {
                    matches!(&code[..2.min(code.len())], "08" | "53" | "57" | "40") || code == "55P03"
                })
            }
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => true,
            _ => false,
        }
    }
}
