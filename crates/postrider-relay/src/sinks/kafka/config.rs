//! What a Kafka sink is told.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::address::Address;
use crate::redact::redact;
use crate::units::Span;

/// `kafka: { url: kafka://HOST:9092 }`
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KafkaConfig {
    /// The brokers to begin with, as `kafka://USER:PASSWORD@HOST:PORT,HOST:PORT`; over TLS with `kafka+ssl://`. They name the others. Kafka 0.11 or newer.
    #[schemars(extend("writeOnly" = true, "examples" = ["kafka://127.0.0.1:9092"]))]
    pub url: String,
    /// How user and password are shown (SASL).
    #[serde(default)]
    pub sasl: Mechanism,
    /// A file with the certificates of the authorities that are trusted over TLS, in PEM. Without it, those of the system.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// A file with our own certificate, in PEM, for brokers that ask for one; `certificate_key` goes with it.
    #[serde(default)]
    pub certificate: Option<PathBuf>,
    /// A file with the key of `certificate`, in PEM.
    #[serde(default)]
    pub certificate_key: Option<PathBuf>,
    /// How messages are compressed.
    #[serde(default)]
    pub compression: Compression,
    /// How long a message waits for others to be sent with it. A batch of the relay is handed over at once, so there is little to wait for.
    #[serde(default = "linger")]
    pub linger: Span,
    /// How a topic is made that is not there. Never by default: events for a topic that is not there are parked.
    #[serde(default)]
    pub create_topics: Option<CreateTopics>,
    /// The topics that `doctor` and `require_durability` look at. Without it, all that this user is shown, except Kafka's own.
    #[serde(default)]
    pub topics: Vec<String>,
    /// How long the brokers may take to connect, and to confirm a batch. Until then the client tries again by itself, without repeating anything.
    #[serde(default = "timeout")]
    pub timeout: Span,
}

/// How user and password are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mechanism {
    /// As they are: for TLS.
    #[default]
    Plain,
    /// Neither is sent, SHA-256.
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    /// Neither is sent, SHA-512.
    #[serde(rename = "scram-sha-512")]
    ScramSha512,
}

impl Mechanism {
    /// As Kafka calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

/// How messages are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// gzip.
    Gzip,
    /// Snappy.
    Snappy,
    /// LZ4.
    Lz4,
    /// Zstandard; Kafka 2.1 or newer.
    Zstd,
}

impl Compression {
    /// As Kafka calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// A topic as it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateTopics {
    /// How many partitions it has. More can be added later, but then keys move.
    #[schemars(extend("examples" = [12]))]
    pub partitions: u16,
    /// On how many brokers each is kept.
    #[schemars(extend("examples" = [3]))]
    pub replication: u16,
}

fn linger() -> Span {
    Span(Duration::from_millis(1))
}

fn timeout() -> Span {
    Span(Duration::from_secs(30))
}

impl KafkaConfig {
    /// The defaults, for these brokers.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            sasl: Mechanism::default(),
            ca: None,
            certificate: None,
            certificate_key: None,
            compression: Compression::default(),
            linger: linger(),
            create_topics: None,
            topics: Vec::new(),
            timeout: timeout(),
        }
    }

    /// What can never work.
    pub(crate) fn objections(&self) -> Vec<(&'static str, String)> {
        let Self { url, ca, certificate, certificate_key, linger, create_topics, timeout, .. } = self;
        let mut wrong = Vec::new();
        let address = Address::parse(url);
        if let Err(why) = &address {
            wrong.push(("url", (*why).to_owned()));
        }
        let is_plain = address.is_ok_and(|address| !address.is_over_tls);
        for (name, file) in [("ca", ca), ("certificate", certificate), ("certificate_key", certificate_key)] {
            if is_plain && file.is_some() {
                let why = "it counts over TLS alone, and `url` does not begin with kafka+ssl://";
                wrong.push((name, why.to_owned()));
            }
        }
        if certificate.is_some() != certificate_key.is_some() {
            wrong.push(("certificate", "`certificate` and `certificate_key` go together".to_owned()));
        }
        if linger.0 >= Duration::from_secs(10) {
            wrong.push(("linger", "take less than 10s: every batch waits that long".to_owned()));
        }
        if create_topics.is_some_and(|topic| topic.partitions == 0 || topic.replication == 0) {
            wrong.push(("create_topics", "`partitions` and `replication` are 1 or more".to_owned()));
        }
        if timeout.0 <= linger.0 {
            wrong.push(("timeout", "no broker answers in no time; take 1s or more".to_owned()));
        }
        wrong
    }
}

/// By hand: the address may hold a password.
impl fmt::Debug for KafkaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            url,
            sasl,
            ca,
            certificate,
            certificate_key,
            compression,
            linger,
            create_topics,
            topics,
            timeout,
        } = self;
        f.debug_struct("KafkaConfig")
            .field("url", &redact(url))
            .field("sasl", sasl)
            .field("ca", ca)
            .field("certificate", certificate)
            .field("certificate_key", certificate_key)
            .field("compression", compression)
            .field("linger", linger)
            .field("create_topics", create_topics)
            .field("topics", topics)
            .field("timeout", timeout)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_never_work_is_said_by_its_key() {
        assert!(KafkaConfig::new("kafka+ssl://me:pw@a:9092,b:9092").objections().is_empty());
        let wrong = KafkaConfig {
            ca: Some("ca.pem".into()),
            certificate_key: Some("key.pem".into()),
            create_topics: Some(CreateTopics { partitions: 0, replication: 1 }),
            timeout: Span(Duration::ZERO),
            ..KafkaConfig::new("kafka://me:c4n4ry@host")
        };
        let keys: Vec<&str> = wrong.objections().iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, ["ca", "certificate_key", "certificate", "create_topics", "timeout"]);
        assert!(!format!("{wrong:?} {:?}", wrong.objections()).contains("c4n4ry"));
        let nowhere = KafkaConfig::new("http://me:c4n4ry@host");
        assert!(!format!("{nowhere:?} {:?}", nowhere.objections()).contains("c4n4ry"));
        assert_eq!(nowhere.objections().len(), 1);
    }
}
