//! What Kafka says when it does not keep an event, and what follows.

use rdkafka::error::RDKafkaErrorCode as Code;

use crate::sink::{RefusalKind, Unavailable, UnavailableKind};

/// What it means that one message failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The brokers will not have it.
    Refused(RefusalKind),
    /// They will not have it, or another that was sent in one set with it.
    Suspected(RefusalKind),
    /// The topic is not what it was.
    Moved,
    /// It fell with its producer, or with another of its set, and may be sent again.
    Fallen,
    /// Nothing can be sent now.
    Unavailable,
}

pub(super) fn meaning(code: Code) -> Meaning {
    match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidMessageSize => {
            Meaning::Suspected(RefusalKind::TooLarge)
        }
        Code::InvalidRecord | Code::InvalidMessage | Code::InvalidTimestamp | Code::PolicyViolation => {
            Meaning::Suspected(RefusalKind::Rejected)
        }
        Code::TopicAuthorizationFailed => Meaning::Refused(RefusalKind::Rejected),
        Code::InvalidTopic => Meaning::Refused(RefusalKind::Unroutable),
        Code::UnknownTopic | Code::UnknownPartition | Code::UnknownTopicOrPartition => Meaning::Moved,
        Code::Fatal
        | Code::InvalidDifferentRecord
        | Code::PurgeQueue
        | Code::PurgeInflight
        | Code::GaplessGuarantee
        | Code::Inconsistent
        | Code::OutOfOrderSequenceNumber
        | Code::DuplicateSequenceNumber
        | Code::UnknownProducerId
        | Code::InvalidProducerEpoch
        | Code::ProducerFenced => Meaning::Fallen,
        _ => Meaning::Unavailable,
    }
}

fn kind(code: Code) -> UnavailableKind {
    match code {
        Code::Authentication
        | Code::SaslAuthenticationFailed
        | Code::UnsupportedSASLMechanism
        | Code::IllegalSASLState
        | Code::ClusterAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed => UnavailableKind::Forbidden,
        Code::MessageTimedOut | Code::OperationTimedOut | Code::RequestTimedOut | Code::TimedOutQueue => {
            UnavailableKind::Timeout
        }
        Code::NotEnoughReplicas
        | Code::NotEnoughReplicasAfterAppend
        | Code::ISRInsufficient
        | Code::LeaderNotAvailable
        | Code::ThrottlingQuotaExceeded
        | Code::CoordinatorNotAvailable
        | Code::CoordinatorLoadInProgress => UnavailableKind::Blocked,
        Code::KafkaStorageError => UnavailableKind::Full,
        Code::UnsupportedVersion
        | Code::UnsupportedFeature
        | Code::UnsupportedCompressionType
        | Code::InvalidConfig
        | Code::InvalidArgument => UnavailableKind::Missing,
        _ => UnavailableKind::Connection,
    }
}

/// Something is wrong with the connections.
#[derive(Debug, Clone)]
pub(super) struct Trouble {
    kind: UnavailableKind,
    said: String,
    /// It will be the same the next time.
    is_lasting: bool,
    /// No broker at all can be reached. It follows from something else, which says more.
    is_total: bool,
}

/// What the library says of its connections.
pub(super) fn trouble(code: Code, said: &str) -> Trouble {
    let kind = kind(code);
    let hint = match code {
        // Alone, it came from somebody who hung up without a word: a broker does so to who speaks another protocol.
        Code::AllBrokersDown => "; if one runs, it may speak TLS (kafka+ssl://) or want a user",
        // The library has the same words for both.
        Code::SSL if said.contains("certificate could not be verified") => {
            ", or it is for another name than the host's"
        }
        _ => "",
    };
    Trouble {
        kind,
        said: format!("{said} ({code}){hint}"),
        is_lasting: kind == UnavailableKind::Forbidden || code == Code::SSL,
        is_total: code == Code::AllBrokersDown,
    }
}

impl Trouble {
    /// This, and what was known before it.
    pub(super) fn behind(self, before: Option<Self>) -> Self {
        let Some(before) = before else { return self };
        // When all are down, each is tried again and says why: that is no news of the others.
        let is_total = before.is_total || self.is_total;
        let says_less = !self.is_lasting && (before.is_lasting || self.is_total);
        Self { is_total, ..if says_less { before } else { self } }
    }

    /// It does not go away by waiting.
    pub(super) fn is_lasting(&self) -> bool {
        self.is_lasting
    }

    /// Nobody is there who could answer. That one broker cannot be reached is not that: there may be others.
    pub(super) fn leaves_nobody(&self) -> bool {
        self.is_lasting || self.is_total
    }

    /// Why nothing was heard in time: `what` says of whom. That one broker cannot be reached is no reason while there are others.
    pub(super) fn in_silence(self, what: &str) -> Unavailable {
        if self.kind == UnavailableKind::Connection && !self.leaves_nobody() {
            return silent(format!("{what}, and one of its brokers is away: {}", self.said));
        }
        Unavailable::new(self.kind, format!("Kafka: {}", self.said))
    }
}

/// Something failed with this code.
pub(super) fn unavailable(code: Code, what: &str) -> Unavailable {
    Unavailable::new(kind(code), format!("{what}: {code}"))
}

/// The brokers have said nothing.
pub(super) fn silent(what: impl Into<String>) -> Unavailable {
    Unavailable::new(UnavailableKind::Timeout, what.into())
}

/// A setting, or a file that it names, is wrong.
pub(super) fn wrong(why: impl Into<String>) -> Unavailable {
    Unavailable::new(UnavailableKind::Missing, why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_broker_that_is_away_is_not_all_of_them() {
        let refused = || trouble(Code::BrokerTransportFailure, "Connection refused");
        let all = || trouble(Code::AllBrokersDown, "3/3 brokers are down");
        let wrong = || trouble(Code::SaslAuthenticationFailed, "wrong password");
        for (told, kind, words) in [
            (vec![refused()], UnavailableKind::Timeout, "Connection refused"),
            (vec![refused(), all()], UnavailableKind::Connection, "Connection refused"),
            (vec![refused(), all(), refused()], UnavailableKind::Connection, "Connection refused"),
            (vec![all()], UnavailableKind::Connection, "brokers are down"),
            (vec![all()], UnavailableKind::Connection, "it may speak TLS (kafka+ssl://) or want a user"),
            (vec![wrong(), refused(), all()], UnavailableKind::Forbidden, "wrong password"),
            (vec![refused(), wrong()], UnavailableKind::Forbidden, "wrong password"),
        ] {
            let known = told.into_iter().fold(None, |before, new| Some(new.behind(before)));
            let known = known.unwrap();
            assert_eq!(known.leaves_nobody(), kind != UnavailableKind::Timeout, "{known:?}");
            let why = known.in_silence("Kafka says nothing");
            assert_eq!(why.kind, kind);
            assert!(why.source.to_string().contains(words), "{}", why.source);
        }
    }
}
