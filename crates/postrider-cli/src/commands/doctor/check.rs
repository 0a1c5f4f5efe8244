//! One finding, and the list of them.

use std::fmt::Write as _;

use postrider::log::Error;
use serde_json::{Value, json};
use sqlx::error::DatabaseError;

use crate::failure::Failure;
use crate::output;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Grade {
    Ok,
    /// Works, and a person should know.
    Warn,
    /// Events do not flow, or could be lost.
    Bad,
}

impl Grade {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }

    fn colour(self) -> &'static str {
        match self {
            Self::Ok => "32",
            Self::Warn => "33",
            Self::Bad => "1;31",
        }
    }
}

/// What a check found.
#[derive(Debug)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) grade: Grade,
    detail: String,
    remedy: Option<String>,
}

impl Check {
    pub(super) fn document(&self) -> Value {
        json!({ "check": self.name, "result": self.grade.word(), "detail": self.detail, "remedy": self.remedy })
    }

    pub(super) fn words(&self, colour: bool) -> String {
        let grade = format!("{:<4}", self.grade.word());
        let grade = if colour { format!("\x1b[{}m{grade}\x1b[0m", self.grade.colour()) } else { grade };
        let mut text = format!("{grade}  {:<22}  {}\n", self.name, output::plain(&self.detail));
        if let Some(remedy) = &self.remedy {
            let _ = writeln!(text, "{:30}→ {}", "", output::plain(remedy));
        }
        text
    }
}

/// The list.
#[derive(Default)]
pub(super) struct Report {
    pub(super) checks: Vec<Check>,
}

impl Report {
    pub(super) fn ok(&mut self, name: &'static str, detail: impl Into<String>) {
        self.checks.push(Check { name, grade: Grade::Ok, detail: detail.into(), remedy: None });
    }

    pub(super) fn warn(&mut self, name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) {
        self.checks.push(Check {
            name,
            grade: Grade::Warn,
            detail: detail.into(),
            remedy: Some(remedy.into()),
        });
    }

    pub(super) fn bad(&mut self, name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) {
        self.checks.push(Check {
            name,
            grade: Grade::Bad,
            detail: detail.into(),
            remedy: Some(remedy.into()),
        });
    }

    /// What was asked for, or a finding that this role may not ask. A server that does not answer ends the examination.
    pub(super) fn seen<T>(
        &mut self,
        name: &'static str,
        result: Result<T, Error>,
    ) -> Result<Option<T>, Failure> {
        let error = match result {
            Ok(seen) => return Ok(Some(seen)),
            Err(error) => error,
        };
        match &error {
            Error::Database(said) if is_denied(said) => {
                self.warn(
                    name,
                    format!("this role may not look: {error}"),
                    "connect as the relay's role or as the owner of the schema",
                );
                Ok(None)
            }
            Error::Database(sqlx::Error::Database(said)) if said.code().is_some() => {
                self.bad(
                    name,
                    error.to_string(),
                    "`postrider init` brings the schema back to what it must be",
                );
                Ok(None)
            }
            _ => Err(error.into()),
        }
    }
}

/// Whether the role lacks a right.
pub(super) fn is_denied(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(DatabaseError::code).as_deref() == Some("42501")
}

/// A list for a sentence, cut where it would not be read any more.
pub(super) fn few(names: &[String]) -> String {
    const MOST: usize = 5;
    let shown = names.iter().take(MOST).cloned().collect::<Vec<_>>().join("; ");
    if names.len() > MOST { format!("{shown}; and {} more", names.len() - MOST) } else { shown }
}
