//! Whose fault it is that a transaction could not be ended.

use crate::log::error::Error;

/// Classes of SQLSTATE that an effect brings about, at once or at the commit: values that do not fit, constraints, limits, what triggers
/// raise.
const EFFECTS: [&str; 5] = ["22", "23", "44", "54", "P0"];
/// A statement failed before, and whoever sent it went on as if it had not.
const ABORTED: &str = "25P02";

/// Whether it is what was written, and not the database: trying again brings the same.
pub(crate) fn is_of_the_effect(error: &Error) -> bool {
    let Error::Database(error) = error else { return false };
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| code == ABORTED || EFFECTS.iter().any(|class| code.starts_with(class)))
}
