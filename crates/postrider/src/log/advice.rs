//! What a server's error means for an operator: its own words, and the next step.

use sqlx::postgres::PgDatabaseError;

/// The error with its remedy, ours where we know the circumstances better, else the server's own hint.
pub(super) fn said(error: &sqlx::Error) -> String {
    let text = error.to_string();
    let Some(database) = error.as_database_error() else { return text };
    let hint = database.try_downcast_ref::<PgDatabaseError>().and_then(PgDatabaseError::hint);
    match database.code().as_deref().and_then(remedy).or(hint) {
        Some(remedy) => format!("{text}; {remedy}"),
        None => text,
    }
}

fn remedy(code: &str) -> Option<&'static str> {
    Some(match code {
        "28000" | "28P01" => "check the user, the password and pg_hba.conf",
        "42501" => {
            "the role has lost a privilege: make it a member of postrider_relay, or restore what that role may do with `postrider init`"
        }
        "53100" => "make room on the server's disk: nothing more is delivered until progress can be stored",
        "53300" => {
            "raise max_connections or end idle sessions; a relay takes three connections per sink and those of relay.connections"
        }
        "57P03" => "it is tried again until the server is ready",
        _ => return None,
    })
}
