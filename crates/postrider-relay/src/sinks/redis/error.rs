//! What a Redis server says when it does not do as it was told, and what follows.

use std::io;

use redis::{ErrorKind, RedisError, ServerError};

use crate::sink::{Refusal, RefusalKind, Unavailable, UnavailableKind};

/// What an error of the server means.
pub(super) enum Meaning {
    /// It will not have this event.
    Refused(Refusal),
    /// It takes nothing now.
    Unavailable(Unavailable),
}

/// What the server says to one command of a transaction, for this stream.
pub(super) fn meaning(error: &ServerError, stream: &str) -> Meaning {
    let said = error.details().unwrap_or("no more than that");
    let refused = |kind, reason| Meaning::Refused(Refusal { kind, reason });
    match error.code() {
        "WRONGTYPE" => refused(
            RefusalKind::Unroutable,
            format!("the key {stream:?} in Redis holds something that is no stream"),
        ),
        "NOPERM" if is_of_a_key(said) => refused(
            RefusalKind::Rejected,
            format!("Redis does not let this user write to {stream:?}: {said}"),
        ),
        "ERR" if said.contains("too large") => refused(RefusalKind::TooLarge, format!("Redis says: {said}")),
        // A server before version 5, or one that renamed its commands.
        "ERR" if !said.contains("unknown command") => {
            refused(RefusalKind::Rejected, format!("Redis says: {said}"))
        }
        code => Meaning::Unavailable(Unavailable::new(kind(code), format!("Redis says: {code} {said}"))),
    }
}

/// Whether a stream is forbidden, and not a command. By the server's phrases, of Redis 6 and of those after it: others of them have the user's
/// name in them, which may be `monkey`.
fn is_of_a_key(said: &str) -> bool {
    said.contains("access a key") || said.contains("access one of the keys")
}

/// By the first word of what the server says.
fn kind(code: &str) -> UnavailableKind {
    match code {
        "OOM" => UnavailableKind::Full,
        "NOAUTH" | "WRONGPASS" | "NOPERM" => UnavailableKind::Forbidden,
        // A cluster whose slots we are not allowed to ask for (`+cluster|slots`).
        "ERR" | "CROSSSLOT" => UnavailableKind::Missing,
        // LOADING, BUSY, MISCONF, READONLY, NOREPLICAS, CLUSTERDOWN, TRYAGAIN, MASTERDOWN: it is not ready, and says so. MOVED and
        // ASK: a slot moves to another node; with the next connection it is asked anew who has it.
        _ => UnavailableKind::Blocked,
    }
}

/// Why a transaction was given up although each of its events was taken, if `EXEC` says so: the last of them may have used up the memory.
pub(super) fn given_up(executed: &ServerError) -> Option<Unavailable> {
    let (_, why) = executed.details()?.split_once("because of: ")?;
    let code = why.split(' ').next().unwrap_or_default();
    Some(Unavailable::new(kind(code), format!("Redis gave up a transaction: {why}")))
}

/// A connection that could not be made, or did not hold.
pub(super) fn lost(error: RedisError) -> Unavailable {
    let kind = match error.kind() {
        ErrorKind::AuthenticationFailed => UnavailableKind::Forbidden,
        ErrorKind::InvalidClientConfig => UnavailableKind::Missing,
        _ if error.is_timeout() => UnavailableKind::Timeout,
        _ if error.to_string().contains("max number of clients") => UnavailableKind::Blocked,
        _ => error.code().map_or(UnavailableKind::Connection, kind),
    };
    Unavailable::new(kind, error)
}

/// Whether somebody was there, and ended the connection.
pub(super) fn is_hung_up(error: &RedisError) -> bool {
    error.is_connection_dropped() && !error.is_connection_refusal()
}

/// The server has said nothing.
pub(super) fn silent(what: &'static str) -> Unavailable {
    Unavailable::new(UnavailableKind::Timeout, io::Error::new(io::ErrorKind::TimedOut, what))
}

#[cfg(test)]
mod tests {
    use redis::{Value, parse_redis_value};

    use super::*;

    fn said(words: &str) -> Meaning {
        match parse_redis_value(format!("-NOPERM {words}\r\n").as_bytes()) {
            Ok(Value::ServerError(error)) => meaning(&error, "events"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_transaction_that_is_given_up_says_why() {
        let words = "-EXECABORT Transaction discarded because of: OOM command not allowed when used memory > 'maxmemory'.\r\n";
        let Ok(Value::ServerError(error)) = parse_redis_value(words.as_bytes()) else { panic!("{words}") };
        assert_eq!(given_up(&error).unwrap().kind, UnavailableKind::Full);
        let Ok(Value::ServerError(error)) =
            parse_redis_value(b"-EXECABORT Transaction discarded because of previous errors.\r\n")
        else {
            panic!()
        };
        assert!(given_up(&error).is_none());
    }

    #[test]
    fn a_stream_that_is_forbidden_is_told_from_a_command() {
        for words in [
            "No permissions to access a key",
            "this user has no permissions to access one of the keys used as arguments",
        ] {
            assert!(
                matches!(said(words), Meaning::Refused(refusal) if refusal.kind == RefusalKind::Rejected),
                "{words}"
            );
        }
        for words in [
            "User monkey has no permissions to run the 'xadd' command",
            "this user has no permissions to run the 'xadd' command or its subcommand",
        ] {
            assert!(
                matches!(said(words), Meaning::Unavailable(why) if why.kind == UnavailableKind::Forbidden),
                "{words}"
            );
        }
    }
}
