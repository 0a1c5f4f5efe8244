//! Whose fault it is that something failed.

use std::error::Error as StdError;

use sqlx::error::DatabaseError;

use crate::log::error::{Error, is_passing, is_transient};

/// Classes of SQLSTATE that an effect brings about, at once or at the commit: values that do not fit, constraints, limits, what triggers
/// raise.
const EFFECTS: [&str; 5] = ["22", "23", "44", "54", "P0"];
/// A statement failed before, and whoever sent it went on as if it had not.
const ABORTED: &str = "25P02";

/// Whether it is what was written, and not the database: trying again brings the same.
pub(crate) fn is_of_the_effect(error: &Error) -> bool {
    let Error::Database(error) = error else { return false };
    let code = error.as_database_error().and_then(DatabaseError::code);
    code.is_some_and(|code| code == ABORTED || EFFECTS.iter().any(|class| code.starts_with(class)))
}

/// Whether a handler failed over the database, by a deadlock or a lost connection: nothing that the event can help. It may have errors of its
/// own around that. `anyhow` hides the innermost error and shows its cause, which is why what the server said is looked for, too.
pub(crate) fn is_of_the_database(error: &(dyn StdError + 'static)) -> bool {
    std::iter::successors(Some(error), |error| (*error).source()).any(|cause| {
        let said = cause.downcast_ref::<Box<dyn DatabaseError>>();
        said.is_some_and(|said| is_passing(&**said))
            || cause.downcast_ref::<sqlx::Error>().is_some_and(is_transient)
    })
}
