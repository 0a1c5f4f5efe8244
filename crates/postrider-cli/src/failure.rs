//! Why a command failed, as a person gets to read it: the chain of causes, the server's own hint, no secret.

use std::error::Error;
use std::fmt::{self, Write as _};

use postrider::capture;
use postrider::log::{self, advice};
use sqlx::postgres::PgDatabaseError;

use crate::exit::Exit;

pub(crate) use postrider_relay::redact::redact;

/// The end of a command that could not do its work.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    error: anyhow::Error,
}

impl Failure {
    pub(crate) fn new(exit: Exit, error: impl Into<anyhow::Error>) -> Self {
        let error = error.into();
        Self { exit, error }
    }

    /// Something that the user has to set right before it can work.
    pub(crate) fn configuration(message: impl fmt::Display + fmt::Debug + Send + Sync + 'static) -> Self {
        Self::new(Exit::Configuration, anyhow::Error::msg(message))
    }

    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }
}

impl From<log::Error> for Failure {
    fn from(error: log::Error) -> Self {
        Self::new(Exit::of_log(&error), error)
    }
}

impl From<capture::Error> for Failure {
    fn from(error: capture::Error) -> Self {
        match error {
            capture::Error::Database(error) => log::Error::from(error).into(),
            error @ capture::Error::Kept { .. } => Self::new(Exit::Found, error),
            error => Self::new(Exit::Configuration, error),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let added = self.error.chain().find_map(said_by_server).unwrap_or_default();
        let hint = added.iter().find(|(name, _)| *name == "hint").map(|(_, hint)| format!("; {hint}"));
        let mut text = String::new();
        for said in advice::chain(self.error.as_ref()) {
            // It gets a line of its own.
            let said = hint.as_deref().and_then(|hint| said.strip_suffix(hint)).unwrap_or(&said);
            text.push_str(if text.is_empty() { "error: " } else { "\n  caused by: " });
            text.push_str(said);
        }
        for (name, line) in added {
            write!(text, "\n  {name}: {line}")?;
        }
        f.write_str(&redact(&text))
    }
}

/// What the server adds to its message; for errors that our own functions raise this is the remedy.
fn said_by_server<'e>(error: &'e (dyn Error + 'static)) -> Option<Vec<(&'static str, &'e str)>> {
    let error = error.downcast_ref::<sqlx::Error>()?;
    let detail = error.as_database_error()?.try_downcast_ref::<PgDatabaseError>()?.detail();
    let lines = [("detail", detail), ("hint", advice::remedy(error))];
    Some(lines.into_iter().filter_map(|(name, line)| Some((name, line?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_printed_one_cause_per_line() {
        let error = anyhow::anyhow!("connection refused").context("cannot reach it").context("init failed");
        let text = Failure::new(Exit::Failed, error).to_string();
        assert_eq!(text, "error: init failed\n  caused by: cannot reach it\n  caused by: connection refused");
    }

    #[test]
    fn a_cause_that_was_quoted_is_not_repeated() {
        let failure = Failure::from(log::Error::from(sqlx::Error::Protocol("nonsense".to_owned())));
        assert_eq!(failure.to_string().matches("nonsense").count(), 1, "{failure}");
    }
}
