//! What the caller's shell learns: one number per kind of end.

use std::process::ExitCode;

use postrider::log;
use sqlx::error::DatabaseError;

/// How a command ended. Above 63 the numbers are those of `sysexits.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Done, or nothing to do.
    Fine = 0,
    /// Tried and failed.
    Failed = 1,
    /// Looked, and found differences or trouble.
    Found = 2,
    /// The command line makes no sense. Not clap's own 2, which means something else here.
    Usage = 64,
    /// Nobody answers at the database's address, or a sink stays away: trying again later may help.
    Unavailable = 69,
    /// An address, a setting or a variable is missing or wrong: trying again will not help.
    Configuration = 78,
}

/// For `--help`; a test compares it with the enum.
pub(crate) const HELP: &str = "\
Exit status:
   0  fine
   1  failed
   2  differences or trouble found
  64  wrong usage
  69  unavailable: the database cannot be reached, or a sink (with run --once, or gone for good)
  78  wrong configuration: the address, a setting, a password";

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

impl Exit {
    /// For an error on the way to a connection.
    pub(crate) fn of_connecting(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::Configuration(_) => Self::Configuration,
            sqlx::Error::Database(error) if is_refused_for_good(&**error) => Self::Configuration,
            _ => Self::Unavailable,
        }
    }

    /// For an error of the log or its schema.
    pub(crate) fn of_log(error: &log::Error) -> Self {
        match error {
            log::Error::NoPrimary { .. } | log::Error::NoAnswer { .. } => Self::Unavailable,
            // Ended by somebody's hand, too: the server is stopped or started anew.
            error if error.is_disconnect() => Self::Unavailable,
            _ => Self::Failed,
        }
    }
}

/// Wrong user, wrong password, no such database.
fn is_refused_for_good(error: &dyn DatabaseError) -> bool {
    error.code().is_some_and(|code| code.starts_with("28") || code == "3D000")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_lists_every_status() {
        let listed: Vec<u8> =
            HELP.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
        let all =
            [Exit::Fine, Exit::Failed, Exit::Found, Exit::Usage, Exit::Unavailable, Exit::Configuration];
        assert_eq!(listed, all.map(|exit| exit as u8));
    }
}
