//! What can be wrong with an adopted table.

use crate::capture;

/// As it is written in the configuration.
fn key(field: &str) -> &str {
    match field {
        "created" => "created_at",
        "claimed" => "claimed_at",
        "sent" => "sent_at",
        field => field,
    }
}

/// The result of planning or keeping.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can be wrong with an adopted table, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing says which column it is.
    #[error(
        "outbox.{table}: nothing says which column has the {field}; name it with columns.{}, or choose a preset",
        key(field)
    )]
    NoField {
        /// As declared.
        table: String,
        /// Of the mapping.
        field: &'static str,
    },
    /// The mapping names a column that is not there.
    #[error(
        "outbox.{table}: there is no column {column} for the {field}; there are {columns}. Name another with columns.{}",
        key(field)
    )]
    NoColumn {
        /// As declared.
        table: String,
        /// Of the mapping.
        field: &'static str,
        /// Which.
        column: String,
        /// Those that exist.
        columns: String,
    },
    /// A column that cannot be what it is said to be.
    #[error(
        "outbox.{table}: column {column} is of type {found}, which cannot be columns.{}: {remedy}",
        key(field)
    )]
    WrongType {
        /// As declared.
        table: String,
        /// Of the mapping.
        field: &'static str,
        /// Which.
        column: String,
        /// Its type.
        found: String,
        /// The statement that mends it.
        remedy: String,
    },
    /// Nothing in a row could tell that it was taken.
    #[error(
        "outbox.{table}: with mode: poll attempts and last_error alone cannot tell that a row was sent, and it would be sent again and again; \
         alter table {shape} add column sent_at timestamptz; and name it with columns.sent_at"
    )]
    NoMark {
        /// As declared.
        table: String,
        /// Quoted.
        shape: String,
    },
    /// Somebody else seems to be at work on it.
    #[error(
        "outbox.{table}: {claims} rows were claimed by another poller within the last {} s and are not sent; stop it, and try again {} s later \
         (outbox.{table}.stale_after); \
         if none is at work, the time of a claim may lie in the future: set it to null",
        stale_after.as_secs(), stale_after.as_secs()
    )]
    Claimed {
        /// As declared.
        table: String,
        /// How many.
        claims: i64,
        /// The age from which a claim is taken back.
        stale_after: std::time::Duration,
    },
    /// Two declarations of one table.
    #[error(
        "outbox.{first} and {second} are the same table: declare it once, or every row would be sent twice"
    )]
    Twice {
        /// As declared.
        first: String,
        /// As declared.
        second: String,
    },
    /// A function that a relay should call.
    #[error(
        "outbox.{table}: {function} is not there, or not as it was made for the table's owner, and is not called: run `postrider apply`"
    )]
    NotCallable {
        /// Quoted.
        table: String,
        /// With the types of its arguments.
        function: String,
    },
    /// Somebody has changed what names mean in this session: it must not be used any more.
    #[error(
        "outbox.{table}: something that runs with the rights of the table's owner has set another search path; \
         look at the triggers of the table, and the casts and functions that they and its columns use"
    )]
    Names {
        /// Quoted, or as declared.
        table: String,
    },
    /// It is no table that can be captured.
    #[error(transparent)]
    Table(#[from] capture::Error),
    /// The database did not do what it was asked.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

impl Error {
    /// Somebody has a row locked, and is not waited for.
    pub(super) fn is_locked(&self) -> bool {
        let Self::Database(sqlx::Error::Database(error)) = self else { return false };
        error.code().is_some_and(|code| code == "55P03")
    }

    /// The values of a row are refused, by the table's constraints or its triggers: others may pass.
    pub(super) fn is_of_a_row(&self) -> bool {
        let Self::Database(sqlx::Error::Database(error)) = self else { return false };
        error.code().is_some_and(|code| ["22", "23", "44", "P0"].iter().any(|class| code.starts_with(class)))
    }
}
