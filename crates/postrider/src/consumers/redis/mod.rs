//! Redis streams, read by a consumer group.

mod entry;
mod link;
mod pump;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, IntoConnectionInfo as _, RedisError, TlsCertificates};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::DEAD_LETTERS;
use crate::consumer::{Deliveries, Source, Terms, Trouble};
pub use link::{RedisLink, RedisReceipt};
use pump::Pump;

/// Streams of a Redis server (6.2 or newer), or of Valkey.
///
/// The consumer is a group of its name in each stream; every process is a member of it under a name of its own. What a process that died
/// had in hand is claimed by the others. Dead letters are entries of the stream `dead:CONSUMER`.
#[derive(Clone)]
#[must_use = "a source does nothing until a consumer runs on it"]
pub struct Redis {
    url: String,
    ca: Option<PathBuf>,
    streams: Vec<Arc<str>>,
    start: &'static str,
    reclaim_after: Duration,
    dead_letters: Option<String>,
    keep_dead: Duration,
    timeout: Duration,
}

impl Redis {
    /// `redis://USER:PASSWORD@HOST:PORT/DATABASE`, over TLS with `rediss://`, and the streams that the events are in.
    pub fn new<N: Into<String>>(url: impl Into<String>, streams: impl IntoIterator<Item = N>) -> Self {
        Self {
            url: url.into(),
            ca: None,
            streams: streams.into_iter().map(|stream| stream.into().into()).collect(),
            start: "0",
            reclaim_after: Duration::from_secs(30),
            dead_letters: None,
            keep_dead: DEAD_LETTERS,
            timeout: Duration::from_secs(10),
        }
    }

    /// A file with the certificates of the authorities that are trusted over TLS, in PEM. Without it, those of the system.
    pub fn ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca = Some(file.into());
        self
    }

    /// A group that is new begins with what is added from now on, in place of all that is there.
    pub fn from_now(mut self) -> Self {
        self.start = "$";
        self
    }

    /// How long a process may say nothing of a message before others take it over. A process that works on one says so three times as
    /// often.
    pub fn reclaim_after(mut self, silence: Duration) -> Self {
        self.reclaim_after = silence.max(Duration::from_millis(30));
        self
    }

    /// The stream of the dead letters, and how long each is kept there.
    pub fn dead_letters(mut self, stream: impl Into<String>, keep: Duration) -> Self {
        (self.dead_letters, self.keep_dead) = (Some(stream.into()), keep);
        self
    }

    /// How long the server may take to answer.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// `room` is how much longer an answer may take, where a command waits by itself.
    async fn connect(&self, room: Duration) -> Result<MultiplexedConnection, Trouble> {
        let how = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(Some(self.timeout + room));
        let client = self.client()?;
        let connecting = client.get_multiplexed_async_connection_with_config(&how);
        match tokio::time::timeout(self.timeout, connecting).await {
            Ok(connected) => connected.map_err(trouble),
            Err(_) => Err(Trouble::away("the server took no connection in time")),
        }
    }

    fn client(&self) -> Result<Client, Trouble> {
        // The parser's own words may repeat the address.
        let info = self.url.as_str().into_connection_info();
        let info =
            info.map_err(|_| Trouble::wrong("the address is none of Redis: write redis://HOST:PORT"))?;
        let Some(ca) = &self.ca else { return Client::open(info).map_err(trouble) };
        let root_cert = fs::read(ca).map_err(|error| {
            Trouble::wrong(format!("cannot read the authorities in {}: {error}", ca.display()))
        })?;
        let certificates = TlsCertificates { client_tls: None, root_cert: Some(root_cert) };
        Client::build_with_tls(info, certificates).map_err(trouble)
    }
}

impl Source for Redis {
    type Link = RedisLink;

    fn kind(&self) -> &'static str {
        "redis"
    }

    async fn open(&self, terms: &Terms) -> Result<(RedisLink, Deliveries<RedisReceipt>), Trouble> {
        if self.streams.is_empty() {
            return Err(Trouble::wrong("there is no stream to read"));
        }
        let redis = self.connect(Duration::ZERO).await?;
        let member = format!("{}-{}", terms.consumer, Uuid::now_v7());
        let mut link = RedisLink::new(redis, self, terms, member.clone());
        link.join(self.start).await?;
        let (outlet, deliveries) = mpsc::channel(terms.prefetch as usize + self.streams.len());
        let redis = self.connect(pump::WAIT).await?;
        let pump = Pump::new(redis, self, terms, member, outlet);
        link.pump = Some(tokio::spawn(pump.run()));
        Ok((link, deliveries))
    }
}

fn trouble(error: RedisError) -> Trouble {
    match error.kind() {
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => Trouble::wrong(error),
        _ if matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM" | "WRONGTYPE")) => {
            Trouble::wrong(error)
        }
        _ => Trouble::away(error),
    }
}
