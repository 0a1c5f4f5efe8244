//! What a server's error means for an operator: its own words, and the next step.

use std::error::Error;

use sqlx::postgres::PgDatabaseError;

/// The words of an error with its remedy.
pub(super) fn said(error: &sqlx::Error) -> String {
    match remedy(error) {
        Some(remedy) => format!("{}; {remedy}", words(error)),
        None => words(error),
    }
}

/// What happened. Of a server's error its message alone: where in its source it was raised is of use to nobody here.
pub fn words(error: &sqlx::Error) -> String {
    let Some(database) = error.as_database_error() else { return error.to_string() };
    let message = database.message();
    message.strip_prefix(OURS).unwrap_or(message).to_owned()
}

/// What to do about it: what a function of ours says itself, then what we know of the circumstances, then the server's own hint.
pub fn remedy(error: &sqlx::Error) -> Option<&str> {
    let database = error.as_database_error()?;
    let hint = database.try_downcast_ref::<PgDatabaseError>().and_then(PgDatabaseError::hint);
    if database.message().starts_with(OURS) && hint.is_some() {
        return hint;
    }
    database.code().as_deref().and_then(by_code).or(hint)
}

/// An error and its causes, each said once.
pub fn chain(error: &(dyn Error + 'static)) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let known = error.downcast_ref::<sqlx::Error>();
        let text = known.map_or_else(|| error.to_string(), words);
        // Some errors quote their cause.
        if !texts.iter().any(|said| said.contains(&text)) {
            texts.push(text);
        }
        next = error.source().filter(|_| known.is_none_or(|known| known.as_database_error().is_none()));
    }
    texts
}

/// What our own functions begin their messages with.
const OURS: &str = "postrider: ";

/// Whether a function of ours refused what it was given.
pub(super) fn is_input(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| {
        let is_argument = |code: &str| code.starts_with("22") || code == "54000";
        error.message().starts_with(OURS) && error.code().as_deref().is_some_and(is_argument)
    })
}

fn by_code(code: &str) -> Option<&'static str> {
    Some(match code {
        "28000" | "28P01" => "check the user, the password and pg_hba.conf",
        "42501" => {
            "the role lacks a privilege: make it a member of the role for the task (postrider_emit emits, postrider_reader looks at the views, postrider_consume consumes, works off jobs and changes them, postrider_relay carries events and changes what is parked or paused; who owns captured tables and installs their triggers is let to with `select postrider.allow_capture('ROLE')`), or restore what that role may do with `postrider init`"
        }
        "53100" => "make room on the server's disk: nothing more is delivered until progress can be stored",
        "53300" => {
            "raise max_connections or end idle sessions; a relay takes three connections per sink and those of relay.connections"
        }
        "57P03" => "it is tried again until the server is ready",
        _ => return None,
    })
}
