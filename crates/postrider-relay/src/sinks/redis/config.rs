//! What a Redis sink is told.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use redis::IntoConnectionInfo as _;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::redact::redact;
use crate::units::Span;

/// `redis: { url: redis://HOST:6379 }`
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RedisConfig {
    /// The server, as `redis://USER:PASSWORD@HOST:PORT/DATABASE`, or several of one cluster with commas between them; over TLS with
    /// `rediss://`. Redis 6.2 or newer, or Valkey.
    #[schemars(extend("writeOnly" = true, "examples" = ["redis://127.0.0.1:6379"]))]
    pub url: String,
    /// A file with the certificates of the authorities that are trusted over TLS, in PEM. Without it, those of the system.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// Each stream is cut to about so many entries whenever one is added, whether they were read or not. Never by default: then streams
    /// grow until somebody else cuts them.
    #[serde(default)]
    pub max_len: Option<u64>,
    /// How long the server may take to connect, and to confirm a batch.
    #[serde(default = "timeout")]
    pub timeout: Span,
}

fn timeout() -> Span {
    Span(Duration::from_secs(10))
}

impl RedisConfig {
    /// The defaults, for this server.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), ca: None, max_len: None, timeout: timeout() }
    }

    /// The address of each server.
    pub(super) fn servers(&self) -> impl Iterator<Item = &str> {
        self.url.split(',').map(str::trim)
    }

    /// What can never work.
    pub(crate) fn objections(&self) -> Vec<(&'static str, String)> {
        let Self { ca, max_len, timeout, .. } = self;
        let mut wrong = Vec::new();
        let is_address = |url: &str| {
            (url.starts_with("rediss://") || url.starts_with("redis://"))
                && url.into_connection_info().is_ok()
        };
        if !self.servers().all(is_address) {
            let how = "write redis://HOST:PORT, or rediss://HOST:PORT for TLS; of one cluster several, each whole, with commas";
            wrong.push(("url", how.to_owned()));
        }
        let is_over_tls = self.servers().all(|url| url.starts_with("rediss://"));
        // The first that answers is taken: whoever keeps one from answering would get user and password in the clear.
        if !is_over_tls && self.servers().any(|url| url.starts_with("rediss://")) {
            let how = "some addresses are over TLS and some in the clear; write rediss:// for all of them, or redis:// for all";
            wrong.push(("url", how.to_owned()));
        }
        if ca.is_some() && !is_over_tls {
            wrong
                .push(("ca", "it counts over TLS alone, and `url` does not begin with rediss://".to_owned()));
        }
        if *max_len == Some(0) {
            wrong.push((
                "max_len",
                "every event would be gone at once; leave it out to keep them all".to_owned(),
            ));
        }
        if timeout.0.is_zero() {
            wrong.push(("timeout", "no server answers in no time; take 1s or more".to_owned()));
        }
        wrong
    }
}

/// By hand: the address may hold a password.
impl fmt::Debug for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ca, max_len, timeout, .. } = self;
        let urls: Vec<String> = self.servers().map(redact).collect();
        f.debug_struct("RedisConfig")
            .field("url", &urls.join(","))
            .field("ca", ca)
            .field("max_len", max_len)
            .field("timeout", timeout)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_never_work_is_said_by_its_key() {
        assert!(RedisConfig::new("rediss://me:pw@host:7/3").objections().is_empty());
        assert!(RedisConfig::new("redis://a, redis://b:7").objections().is_empty());
        assert_eq!(RedisConfig::new("redis://a/shop").objections().len(), 1, "databases have numbers");
        let wrong = RedisConfig {
            ca: Some("ca.pem".into()),
            max_len: Some(0),
            timeout: Span(Duration::ZERO),
            ..RedisConfig::new("redis://a,http://me:c4n4ry@host")
        };
        let keys: Vec<&str> = wrong.objections().iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, ["url", "ca", "max_len", "timeout"]);
        assert!(!format!("{wrong:?} {:?}", wrong.objections()).contains("c4n4ry"));
    }

    #[test]
    fn all_addresses_are_over_tls_or_none() {
        assert!(RedisConfig::new("rediss://me:pw@a, rediss://b:7").objections().is_empty());
        for mixed in ["rediss://me:c4n4ry@a,redis://b", "redis://a, rediss://me:c4n4ry@b"] {
            let objections = RedisConfig::new(mixed).objections();
            let [("url", why)] = objections.as_slice() else { panic!("{objections:?}") };
            assert!(why.contains("write rediss:// for all") && !why.contains("c4n4ry"), "{why}");
        }
    }
}
