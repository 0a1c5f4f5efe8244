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
    /// Whether trying again may help. Everything else needs a person.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Database(error) | Self::Settle(error) => log::error::is_transient(error),
            Self::Log(error) => error.is_transient(),
            Self::NoHandler | Self::Schedule { .. } => false,
        }
    }
}
