//! What RabbitMQ says when it does not do as it was told, and what follows.

use std::collections::BTreeSet;
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

/// Whether the exchange is the one that is meant, and was declared with arguments of its own (`alternate-exchange`). The server compares them
/// last: in everything else it is right.
pub(super) fn has_other_arguments(error: &Error) -> bool {
    said(error).is_some_and(|(code, words)| differs_in_arguments(code, &words))
}

fn differs_in_arguments(code: u16, words: &str) -> bool {
    const NO_ARGUMENTS: [&str; 4] = ["type", "durable", "auto_delete", "internal"];
    let named = words.split_once("inequivalent arg '").and_then(|(_, rest)| rest.split_once('\''));
    code == PRECONDITION_FAILED && named.is_some_and(|(name, _)| !NO_ARGUMENTS.contains(&name))
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
    /// Its routing key is forbidden. The server's words, from that key on.
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
            let (_, rest) = words.split_once("access to topic '")?;
            Some(Blame::RoutingKey(rest.to_owned()))
        }
        _ => None,
    }
}

/// Whether the server's answer cannot be read. A text that it has cut in the midst of a letter is none.
pub(super) fn is_unreadable(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::ParsingError(_))
}

/// Which of these routing keys the server's words name, if that is certain. A key may hold anything, also what follows it in the words, and the
/// server cuts what it says at 255 bytes, with three dots in place of the rest.
pub(super) fn named<'a>(
    words: &str,
    exchange: &str,
    keys: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let cut = words.strip_suffix("...");
    let is_named = |key: &str| {
        let whole = format!("{key}' in exchange '{exchange}' in vhost '");
        words.starts_with(&whole) || cut.is_some_and(|cut| whole.starts_with(cut))
    };
    let found: BTreeSet<&str> = keys.into_iter().filter(|key| is_named(key)).collect();
    // Of words that go on, the longest key explains the most; what was cut off might tell for any of them.
    let is_certain = cut.is_none() || found.len() == 1;
    found.into_iter().max_by_key(|key| key.len()).filter(|_| is_certain)
}

/// This user may not publish with it.
pub(super) fn forbidden(routing_key: &str) -> Refusal {
    Refusal {
        kind: RefusalKind::Rejected,
        reason: format!("RabbitMQ does not let this user publish with the routing key {routing_key:?}"),
    }
}

/// What the server says to it, when nothing else is on its way, is no AMQP.
pub(super) fn unreadable(routing_key: &str) -> Refusal {
    Refusal {
        kind: RefusalKind::Rejected,
        reason: format!(
            "RabbitMQ's answer to it cannot be read; it may not let this user publish with the routing key {routing_key:?}"
        ),
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
        let rest = "a.b' in exchange 'events' in vhost '/' refused for user 'shop'";
        assert_eq!(blamed(403, topic), Some(Blame::RoutingKey(rest.to_owned())));
        for (code, words) in [
            (403, "ACCESS_REFUSED - write access to exchange 'events' in vhost '/' refused for user 'shop'"),
            (404, "NOT_FOUND - no exchange 'events' in vhost '/'"),
            (406, "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'events'"),
        ] {
            assert_eq!(blamed(code, words), None, "{words}");
        }
    }

    #[test]
    fn an_exchange_with_arguments_of_its_own_is_told_from_another_one() {
        let differs = |name: &str| {
            let words = format!(
                "PRECONDITION_FAILED - inequivalent arg '{name}' for exchange 'events' in vhost '/': received none but current is the value 'x'"
            );
            differs_in_arguments(406, &words)
        };
        assert!(differs("alternate-exchange"));
        for name in ["type", "durable", "auto_delete", "internal"] {
            assert!(!differs(name), "{name}");
        }
        assert!(!differs_in_arguments(406, "PRECONDITION_FAILED - invalid something"));
    }

    /// As RabbitMQ says it, from the routing key on.
    fn words(key: &str) -> String {
        let beginning = "ACCESS_REFUSED - write access to topic '";
        let said = format!("{beginning}{key}' in exchange 'events' in vhost '/' refused for user 'shop'");
        let said = if said.len() > 255 { format!("{}...", &said[..252]) } else { said };
        said[beginning.len()..].to_owned()
    }

    #[test]
    fn a_routing_key_is_known_in_the_words_of_the_server() {
        let long = "y".repeat(200);
        let longer = format!("{long}{}", "z".repeat(55));
        let quoting = "x' in exchange 'y";
        let doubled = "x' in exchange 'events' in vhost '/' refused for user 'shop'";
        let keys = ["x", "x.y", "", quoting, doubled, &long, &longer];
        for key in keys {
            let words = words(key);
            assert_eq!(named(&words, "events", keys), Some(key), "{words}");
            // The same event several times is no other.
            assert_eq!(named(&words, "events", [key, "else", key]), Some(key), "{words}");
            assert_eq!(named(&words, "events", ["else", "x.z"]), None, "{words}");
        }
    }

    #[test]
    fn nobody_is_blamed_for_what_was_cut_off() {
        let begun = "y".repeat(230);
        let (one, other) = (format!("{begun}1"), format!("{begun}2"));
        assert_eq!(words(&one), words(&other));
        assert_eq!(named(&words(&one), "events", [one.as_str(), &other]), None);
        assert_eq!(named(&words(&one), "events", [one.as_str(), "else"]), Some(one.as_str()));
        // What follows the key is cut, and may have been in another.
        let key = "y".repeat(190);
        let hostile = format!("{key}' in exchange 'events' in vhost '/' no");
        assert_eq!(named(&words(&key), "events", [key.as_str(), &hostile]), None);
    }
}
