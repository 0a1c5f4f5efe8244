//! What a NATS sink is told.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::redact::redact;
use crate::units::Span;

/// `nats: { url: nats://HOST:4222, stream: events }`
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NatsConfig {
    /// The server, as `nats://USER:PASSWORD@HOST:PORT`, or several of one cluster with commas between them; over TLS with `tls://`. A
    /// user without a password is a token.
    #[schemars(extend("writeOnly" = true, "examples" = ["nats://127.0.0.1:4222"]))]
    pub url: String,
    /// The JetStream stream that keeps the events. It has to be there and to take the subjects that `route` renders, unless `create` is set.
    #[serde(default = "stream")]
    pub stream: String,
    /// Whether the stream is made if it is not there: in files, for the subjects that begin with its name and a dot.
    #[serde(default)]
    pub create: bool,
    /// On how many servers a stream that is made here is kept.
    #[serde(default = "replicas")]
    pub replicas: u32,
    /// A file with a user's JWT and seed, as `nsc` writes it.
    #[serde(default)]
    pub credentials: Option<PathBuf>,
    /// A file with the certificates of the authorities that are trusted over TLS, in PEM. Without it, those of the system.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// How long the server may take to connect, and to confirm an event.
    #[serde(default = "timeout")]
    pub timeout: Span,
}

fn stream() -> String {
    "events".to_owned()
}

fn replicas() -> u32 {
    1
}

fn timeout() -> Span {
    Span(Duration::from_secs(10))
}

impl NatsConfig {
    /// The defaults, for this server.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            stream: stream(),
            create: false,
            replicas: replicas(),
            credentials: None,
            ca: None,
            timeout: timeout(),
        }
    }

    /// What can never work.
    pub(crate) fn objections(&self) -> Vec<(&'static str, String)> {
        let Self { url, stream, replicas, timeout, .. } = self;
        let mut wrong = Vec::new();
        let is_address = |url: &str| {
            (url.starts_with("nats://") || url.starts_with("tls://"))
                && url.parse::<async_nats::ServerAddr>().is_ok()
        };
        if !url.split(',').map(str::trim).all(is_address) {
            wrong.push((
                "url",
                "write nats://HOST:PORT, or tls://HOST:PORT for TLS; several with commas".to_owned(),
            ));
        }
        // The library takes whichever answers: whoever keeps the first from answering would get user and password in the clear.
        let over_tls = |url: &str| url.starts_with("tls://");
        if url.split(',').map(str::trim).any(over_tls) && !url.split(',').map(str::trim).all(over_tls) {
            let how = "some addresses are over TLS and some in the clear; write tls:// for all of them, or nats:// for all";
            wrong.push(("url", how.to_owned()));
        }
        if stream.is_empty()
            || stream.contains(|c: char| ".*>/\\".contains(c) || c.is_whitespace() || c.is_control())
        {
            wrong.push(("stream", "a name of a stream has no blanks, dots, stars, slashes or >".to_owned()));
        }
        if !(1..=5).contains(replicas) {
            wrong.push(("replicas", "NATS keeps a stream on 1 to 5 servers".to_owned()));
        }
        if timeout.0.is_zero() {
            wrong.push(("timeout", "no server answers in no time; take 1s or more".to_owned()));
        }
        wrong
    }
}

/// By hand: the address may hold a password.
impl fmt::Debug for NatsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, stream, create, replicas, credentials, ca, timeout } = self;
        let urls: Vec<String> = url.split(',').map(redact).collect();
        f.debug_struct("NatsConfig")
            .field("url", &urls.join(","))
            .field("stream", stream)
            .field("create", create)
            .field("replicas", replicas)
            .field("credentials", credentials)
            .field("ca", ca)
            .field("timeout", timeout)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_never_work_is_said_by_its_key() {
        assert!(NatsConfig::new("nats://me:pw@a:4222, nats://b").objections().is_empty());
        let wrong = NatsConfig {
            stream: "a.b".to_owned(),
            replicas: 0,
            timeout: Span(Duration::ZERO),
            ..NatsConfig::new("nats://a,http://me:c4n4ry@host")
        };
        let keys: Vec<&str> = wrong.objections().iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, ["url", "stream", "replicas", "timeout"]);
        assert!(!format!("{wrong:?} {:?}", wrong.objections()).contains("c4n4ry"));
    }

    #[test]
    fn all_addresses_are_over_tls_or_none() {
        assert!(NatsConfig::new("tls://me:pw@a, tls://b:4222").objections().is_empty());
        for mixed in ["tls://me:c4n4ry@a,nats://b", "nats://a, tls://me:c4n4ry@b"] {
            let objections = NatsConfig::new(mixed).objections();
            let [("url", why)] = objections.as_slice() else { panic!("{objections:?}") };
            assert!(why.contains("write tls:// for all") && !why.contains("c4n4ry"), "{why}");
        }
    }
}
