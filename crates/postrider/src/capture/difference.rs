//! How what is installed differs from what is declared: of captured tables and of adopted ones.

use super::recapture::Kept;

/// How what is installed for a table stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// There is none.
    Missing,
    /// As declared.
    Installed,
    /// Of another declaration, or of columns that have changed since.
    Outdated,
    /// Switched off, or only on in ordinary sessions.
    Disabled,
    /// On a table that is not declared.
    Orphaned,
}

impl State {
    /// In a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Installed => "installed",
            Self::Outdated => "outdated",
            Self::Disabled => "disabled",
            Self::Orphaned => "orphaned",
        }
    }
}

/// One table of a plan.
#[derive(Debug, Clone)]
pub struct Difference {
    /// The table, quoted, with its schema.
    pub table: String,
    /// How what is installed for it stands.
    pub state: State,
    /// What brings them to where they should be.
    pub statements: Vec<String>,
    /// What takes that back.
    pub reverse: Vec<String>,
    /// What a person must know besides.
    pub notes: Vec<String>,
}

/// What is installed against what is declared.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// What is declared, then orphans.
    pub tables: Vec<Difference>,
    /// Writes whose events still could not be recorded when it was applied: the first of each table.
    pub kept: Vec<Kept>,
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_done(&self) -> bool {
        self.tables.iter().all(|table| table.state == State::Installed)
    }
}
