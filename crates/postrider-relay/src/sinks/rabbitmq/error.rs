//! What RabbitMQ says when it does not do as it was told, and what follows.

use std::io;

use lapin::{Error, ErrorKind};

use crate::sink::{Refusal, RefusalKind, Unavailable, UnavailableKind};

/// Codes of AMQP 0.9.1.
const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const RESOURCE_LOCKED: u16 = 405;
const PRECONDITION_FAILED: u16 = 406;
const NOT_ALLOWED: u16 = 530;
const RESOURCE_ERROR: u16 = 506;

/// What the server said, by its code and in its words.
pub(super) fn said(error: &Error) -> Option<(u16, String)> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some((error.get_id(), error.get_message().to_string())),
        _ => None,
    }
}

/// Whether the server forbids it.
pub(super) fn is_forbidden(error: &Error) -> bool {
    said(error).is_some_and(|(code, _)| code == ACCESS_REFUSED)
}

/// Something that concerns everything: a connection that could not be made or did not hold, an exchange that is not what it should be.
pub(super) fn unavailable(error: Error) -> Unavailable {
    let Some((code, words)) = said(&error) else {
        let kind = match error.kind() {
            ErrorKind::MissingHeartbeatError => UnavailableKind::Timeout,
            ErrorKind::IOError(error) if error.kind() == io::ErrorKind::TimedOut => UnavailableKind::Timeout,
            _ => UnavailableKind::Connection,
        };
        return Unavailable::new(kind, error);
    };
    let kind = match code {
        ACCESS_REFUSED => UnavailableKind::Forbidden,
        NOT_ALLOWED if words.contains("not found") => UnavailableKind::Missing,
        // Of a virtual host that is there; more connections or channels than are allowed have the same code.
        NOT_ALLOWED if words.contains("refused") => UnavailableKind::Forbidden,
        NOT_FOUND | PRECONDITION_FAILED => UnavailableKind::Missing,
        NOT_ALLOWED | RESOURCE_LOCKED | RESOURCE_ERROR => UnavailableKind::Blocked,
        _ => UnavailableKind::Connection,
    };
    Unavailable::new(kind, format!("RabbitMQ says: {words}"))
}

/// The exchange cannot be published to.
pub(super) fn no_exchange(error: Error, exchange: &str) -> Unavailable {
    match said(&error) {
        Some((PRECONDITION_FAILED, words)) => Unavailable::new(
            UnavailableKind::Missing,
            format!(
                "the exchange `{exchange}` is there, and is another one than the configuration says: {words}"
            ),
        ),
        Some((NOT_FOUND, _)) => Unavailable::new(
            UnavailableKind::Missing,
            format!("RabbitMQ has no exchange `{exchange}`, and this user may not declare it"),
        ),
        _ => unavailable(error),
    }
}

/// What the server holds against a single message when it closes a channel because of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// It has more bytes than this.
    Larger(u64),
    /// It has this routing key.
    RoutingKey(String),
}

/// Whose fault it was that the server closed the channel; `None` if it does not concern single messages.
pub(super) fn blame(error: &Error) -> Option<Blame> {
    let (code, words) = said(error)?;
    blamed(code, &words)
}

fn blamed(code: u16, words: &str) -> Option<Blame> {
    match code {
        PRECONDITION_FAILED if words.contains("message size") => {
            let mut numbers = words.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok());
            numbers.next_back().map(Blame::Larger)
        }
        ACCESS_REFUSED => {
            let (_, rest) = words.split_once("topic '")?;
            let (key, _) = rest.split_once("' in exchange '")?;
            Some(Blame::RoutingKey(key.to_owned()))
        }
        _ => None,
    }
}

impl Blame {
    /// Why this message was refused, if it is one of those.
    pub(super) fn refusal(&self, routing_key: &str, size: usize) -> Option<Refusal> {
        match self {
            Self::Larger(most) => (size as u64 > *most).then(|| too_large(size, *most)),
            Self::RoutingKey(key) => (key == routing_key).then(|| Refusal {
                kind: RefusalKind::Rejected,
                reason: format!("RabbitMQ does not let this user publish with the routing key {key:?}"),
            }),
        }
    }
}

/// Beyond what the server takes.
pub(super) fn too_large(size: usize, most: u64) -> Refusal {
    Refusal {
        kind: RefusalKind::TooLarge,
        reason: format!("{size} bytes, and RabbitMQ takes {most} (its max_message_size)"),
    }
}

/// The server has said nothing.
pub(super) fn silent(what: &'static str) -> Unavailable {
    Unavailable::new(UnavailableKind::Timeout, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_names_what_it_holds_against_a_message() {
        let large = "PRECONDITION_FAILED - message size 20971520 is larger than configured max size 16777216";
        assert_eq!(blamed(406, large), Some(Blame::Larger(16_777_216)));
        let topic = "ACCESS_REFUSED - write access to topic 'a.b' in exchange 'events' in vhost '/' refused for user 'shop'";
        assert_eq!(blamed(403, topic), Some(Blame::RoutingKey("a.b".to_owned())));
        for (code, words) in [
            (403, "ACCESS_REFUSED - write access to exchange 'events' in vhost '/' refused for user 'shop'"),
            (404, "NOT_FOUND - no exchange 'events' in vhost '/'"),
            (406, "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'events'"),
        ] {
            assert_eq!(blamed(code, words), None, "{words}");
        }
    }
}
