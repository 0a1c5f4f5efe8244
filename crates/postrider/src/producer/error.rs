//! Why an event was not written.

use std::error::Error;
use std::fmt;

/// Why an event was not written. In every case nothing was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmitError {
    /// A payload cannot be turned into JSON; the database was not asked.
    #[error("the payload of event {type:?} cannot be written as JSON: {source}")]
    Payload {
        /// The type of the event.
        r#type: String,
        /// Why not.
        source: serde_json::Error,
    },

    /// The server said no, and has aborted the transaction.
    #[error("{refusal}")]
    Refused {
        /// What it said.
        refusal: Refusal,
        /// The error of the driver that brought it.
        source: Box<dyn Error + Send + Sync>,
    },

    /// The driver failed: the connection is gone, or was never usable.
    #[error("the event could not be sent to the database: {0}")]
    Driver(#[source] Box<dyn Error + Send + Sync>),

    /// The server answered something else than an event's id.
    #[error(
        "the answer of the postrider schema was not understood ({0}); it should be of the version of this crate"
    )]
    Answer(#[source] Box<dyn Error + Send + Sync>),
}

impl EmitError {
    /// The server's five-character code, if it was the server that said no: after `40001` the whole transaction may be
    /// tried again.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Refused { refusal, .. } => Some(&refusal.sqlstate),
            _ => None,
        }
    }

    pub(crate) fn answer(source: impl Error + Send + Sync + 'static) -> Self {
        Self::Answer(Box::new(source))
    }

    /// From a driver's error and, if it was the server that failed, what that said.
    #[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
    pub(super) fn of_driver(error: impl Error + Send + Sync + 'static, refusal: Option<Refusal>) -> Self {
        let source = Box::new(error);
        match refusal {
            Some(refusal) => Self::Refused { refusal, source },
            None => Self::Driver(source),
        }
    }
}

/// What the server said, word for word. Shown as psql would: message, then DETAIL and HINT on lines of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The five-character code.
    pub sqlstate: String,
    /// The message.
    pub message: String,
    /// DETAIL.
    pub detail: Option<String>,
    /// HINT; ours, where the server has none for a common mistake.
    pub hint: Option<String>,
}

impl Refusal {
    #[cfg(any(feature = "sqlx", feature = "tokio-postgres"))]
    pub(super) fn new(sqlstate: &str, message: &str, detail: Option<&str>, hint: Option<&str>) -> Self {
        let our_hint = match sqlstate {
            "3F000" => Some("Install the schema in this database with `postrider init`."),
            "42501" => Some("Let an administrator run: grant postrider_emit to <your role>."),
            _ => None,
        };
        Self {
            sqlstate: sqlstate.to_owned(),
            message: message.to_owned(),
            detail: detail.map(ToOwned::to_owned),
            hint: hint.or(our_hint).map(ToOwned::to_owned),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SQLSTATE {})", self.message, self.sqlstate)?;
        if let Some(detail) = &self.detail {
            write!(f, "\nDETAIL: {detail}")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "\nHINT: {hint}")?;
        }
        Ok(())
    }
}
