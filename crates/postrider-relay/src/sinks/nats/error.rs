//! What NATS says when it does not keep an event, and what follows.

use std::error::Error;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{GetStreamError, GetStreamErrorKind, PublishError, PublishErrorKind};
use async_nats::{ConnectError, ConnectErrorKind, jetstream};

use crate::sink::{Refusal, RefusalKind, Unavailable, UnavailableKind};

/// What an error means.
pub(super) enum Meaning {
    /// The stream will not have this event.
    Refused(Refusal),
    /// It takes nothing now.
    Unavailable(Unavailable),
}

/// Why one event was not kept.
pub(super) fn meaning(error: PublishError, subject: &str) -> Meaning {
    let refused = |kind, reason| Meaning::Refused(Refusal { kind, reason });
    let kind = match error.kind() {
        PublishErrorKind::MaxPayloadExceeded => {
            return refused(RefusalKind::TooLarge, format!("NATS takes no message of that size: {error}"));
        }
        PublishErrorKind::TimedOut => UnavailableKind::Timeout,
        PublishErrorKind::BrokenPipe => UnavailableKind::Connection,
        // The stream takes this subject, so it is JetStream itself that does not answer.
        PublishErrorKind::StreamNotFound => UnavailableKind::Blocked,
        _ => match said(&error) {
            Some(said) => match by_code(said, subject) {
                Ok(refusal) => return Meaning::Refused(refusal),
                Err(kind) => kind,
            },
            None => UnavailableKind::Connection,
        },
    };
    Meaning::Unavailable(Unavailable::new(kind, error))
}

/// Of a single event, or of the stream as a whole.
fn by_code(said: &jetstream::Error, subject: &str) -> Result<Refusal, UnavailableKind> {
    let refusal = |kind| Ok(Refusal { kind, reason: format!("NATS says of {subject:?}: {said}") });
    match said.error_code() {
        ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM => refusal(RefusalKind::TooLarge),
        // Another stream has this subject now.
        ErrorCode::STREAM_NOT_MATCH => refusal(RefusalKind::Unroutable),
        ErrorCode::STREAM_STORE_FAILED if said.to_string().contains("per subject") => {
            refusal(RefusalKind::Rejected)
        }
        // Whatever comes, until it is another stream; and an event that was sent before, on which the servers have not agreed yet.
        ErrorCode::STREAM_SEALED | ErrorCode::STREAM_DUPLICATE_MESSAGE_CONFLICT => {
            Err(UnavailableKind::Blocked)
        }
        ErrorCode::STREAM_STORE_FAILED
        | ErrorCode::INSUFFICIENT_RESOURCES
        | ErrorCode::MEMORY_RESOURCES_EXCEEDED => Err(UnavailableKind::Full),
        // Of any event, while the server or the stream has more to do than it takes on: 10167, too many requests, is one.
        _ if said.code() >= 500 || matches!(said.code(), 408 | 429) => Err(UnavailableKind::Blocked),
        _ => refusal(RefusalKind::Rejected),
    }
}

/// The server's own words.
fn said(error: &PublishError) -> Option<&jetstream::Error> {
    error.source()?.downcast_ref()
}

/// A connection that could not be made.
pub(super) fn not_connected(error: ConnectError) -> Unavailable {
    // What rustls says when something else answers: a server without TLS goes on with its own protocol.
    if error.to_string().contains("InvalidContentType") {
        let why = format!("{error}; the port may not speak TLS");
        return Unavailable::new(UnavailableKind::Connection, why);
    }
    let kind = match error.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            UnavailableKind::Forbidden
        }
        ConnectErrorKind::TimedOut => UnavailableKind::Timeout,
        ConnectErrorKind::ServerParse => UnavailableKind::Missing,
        _ => UnavailableKind::Connection,
    };
    Unavailable::new(kind, error)
}

/// The stream could not be looked at.
pub(super) fn no_stream(error: GetStreamError, stream: &str) -> Unavailable {
    match error.kind() {
        GetStreamErrorKind::JetStream(said) if said.error_code() == ErrorCode::STREAM_NOT_FOUND => {
            let why = format!("NATS has no stream `{stream}`; make it, or set `create: true`");
            Unavailable::new(UnavailableKind::Missing, why)
        }
        GetStreamErrorKind::EmptyName | GetStreamErrorKind::InvalidStreamName => {
            Unavailable::new(UnavailableKind::Missing, format!("{stream:?} is no name of a stream: {error}"))
        }
        GetStreamErrorKind::JetStream(_) => Unavailable::new(UnavailableKind::Blocked, error),
        GetStreamErrorKind::Request => {
            let timed_out = error.to_string().contains("timed out");
            let kind = if timed_out { UnavailableKind::Timeout } else { UnavailableKind::Blocked };
            Unavailable::new(kind, error)
        }
    }
}
