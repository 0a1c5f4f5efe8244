//! Why a command failed, as a person gets to read it: the chain of causes, the server's own hint, no secret.

use std::error::Error;
use std::fmt::{self, Write as _};

use postrider::log::{self, advice};
use sqlx::postgres::PgDatabaseError;

use crate::exit::Exit;

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

/// Takes out what may be a password. Nothing of ours prints one; this is for words of others that repeat what the user typed, such
/// as a URL in the place of an option. Rather too much than too little: a password may itself contain `@`, quotes or blanks.
pub(crate) fn redact(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(redact_line).collect();
    lines.join("\n")
}

fn redact_line(line: &str) -> String {
    let mut line = line.to_owned();
    if let Some(scheme) = line.find("://")
        && let Some(at) = line.rfind('@')
        && let Some(colon) = line.get(scheme + 3..at).and_then(|login| login.find(':'))
    {
        line.replace_range(scheme + 3 + colon + 1..at, "***");
    }
    if let Some(start) = line.find("password=") {
        line.replace_range(start + "password=".len().., "***");
    }
    line
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

    #[test]
    fn passwords_are_taken_out() {
        for line in [
            "unexpected argument 'postgres://me:canary@host/db' found",
            "unexpected argument 'postgres://me:can@canary@host/db' found",
            "unexpected argument 'postgres://me:it is a canary@host/db' found",
            "'postgres://host/db?user=me&password=canary' found",
            "'host=h password=canary'",
        ] {
            let redacted = redact(&format!("first\n{line}\nlast"));
            assert!(!redacted.contains("canary"), "{redacted}");
            assert!(redacted.contains("***"), "{redacted}");
            assert!(redacted.starts_with("first\n") && redacted.ends_with("\nlast"), "{redacted}");
        }
        let harmless = "give postgres://USER@HOST:PORT/NAME, see https://postgresql.org";
        assert_eq!(redact(harmless), harmless);
    }
}
