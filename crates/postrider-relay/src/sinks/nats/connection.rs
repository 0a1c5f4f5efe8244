//! One connection, and the stream that it was made for.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::context::{Context, ContextBuilder};
use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};
use async_nats::{Client, ConnectOptions, Event, ServerAddr};
use tokio::sync::watch;
use tokio::time::timeout;

use super::config::NatsConfig;
use super::error::{no_stream, not_connected};
use super::subject;
use crate::sink::{Unavailable, UnavailableKind};

/// A connection that is ready.
pub(super) struct Connection {
    pub(super) context: Context,
    /// Whether it was lost.
    down: watch::Receiver<bool>,
    /// Of the stream.
    subjects: Vec<String>,
}

impl Connection {
    /// Connects, and looks for the stream.
    pub(super) async fn open(config: &NatsConfig) -> Result<Self, Unavailable> {
        let mut connection = Self::connect(config).await?;
        if let Err(why) = connection.look(config).await {
            if !(config.create && why.kind == UnavailableKind::Missing) {
                return Err(why);
            }
            connection.create(config).await?;
            connection.look(config).await?;
        }
        Ok(connection)
    }

    /// Connects, and knows nothing of the stream yet.
    pub(super) async fn connect(config: &NatsConfig) -> Result<Self, Unavailable> {
        let patience = config.timeout.0;
        let (client, down) = match timeout(patience, connect(config, patience)).await {
            Ok(connected) => connected?,
            Err(_) => {
                return Err(Unavailable::new(
                    UnavailableKind::Timeout,
                    "no server took a connection in time",
                ));
            }
        };
        let context = ContextBuilder::new().timeout(patience).max_ack_inflight(10_000).build(client);
        Ok(Self { context, down, subjects: Vec::new() })
    }

    /// How the stream is set up now.
    pub(super) async fn stream(&self, config: &NatsConfig) -> Result<Config, Unavailable> {
        let found = self.context.get_stream(&config.stream).await;
        let stream = found.map_err(|error| no_stream(error, &config.stream))?;
        Ok(stream.cached_info().config.clone())
    }

    /// What subjects the stream has now.
    pub(super) async fn look(&mut self, config: &NatsConfig) -> Result<(), Unavailable> {
        self.subjects = self.stream(config).await?.subjects;
        Ok(())
    }

    async fn create(&self, config: &NatsConfig) -> Result<(), Unavailable> {
        match self.context.create_stream(wanted(config)).await {
            Ok(_) => Ok(()),
            Err(error) => Err(Unavailable::new(UnavailableKind::Missing, error)),
        }
    }

    /// Whether the stream takes this subject. Whoever publishes where no stream listens has spoken into the void.
    pub(super) fn takes(&self, subject: &str) -> bool {
        self.subjects.iter().any(|filter| subject::takes(filter, subject))
    }

    pub(super) fn subjects(&self) -> String {
        self.subjects.join(", ")
    }

    /// Waits until it is lost.
    pub(super) async fn lost(&self) {
        // The sender goes with the connection.
        let _ = self.down.clone().wait_for(|down| *down).await;
    }
}

/// The stream that is made if there is none.
pub(super) fn wanted(config: &NatsConfig) -> Config {
    Config {
        name: config.stream.clone(),
        subjects: vec![format!("{}.>", config.stream)],
        storage: StorageType::File,
        // A stream that is full says so, and the log is the buffer.
        discard: DiscardPolicy::New,
        num_replicas: usize::try_from(config.replicas).unwrap_or(usize::MAX),
        ..Config::default()
    }
}

async fn connect(
    config: &NatsConfig,
    patience: Duration,
) -> Result<(Client, watch::Receiver<bool>), Unavailable> {
    let missing = |why: String| Unavailable::new(UnavailableKind::Missing, why);
    let given: Vec<ServerAddr> = config
        .url
        .split(',')
        .map(|url| url.trim().parse())
        .collect::<Result<_, _>>()
        // The parser's own words may repeat the address.
        .map_err(|_| missing("the address is none of NATS: write nats://HOST:PORT".to_owned()))?;
    let servers = given
        .iter()
        .map(anonymous)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| missing(format!("the address is none of NATS: {error}")))?;
    let mut options = match &config.credentials {
        None => ConnectOptions::new(),
        Some(path) => ConnectOptions::with_credentials_file(path)
            .await
            .map_err(|error| missing(format!("cannot use the credentials in {}: {error}", path.display())))?,
    };
    if let Some(server) = given.iter().find(|server| server.has_user_pass()) {
        let user = decoded(server.username().unwrap_or_default());
        options = match server.password() {
            Some(password) => options.user_and_password(user, decoded(password)),
            None => options.token(user),
        };
    }
    if let Some(ca) = &config.ca {
        options = options.add_root_certificates(ca.clone());
    }
    let (sender, down) = watch::channel(false);
    let sender = Arc::new(sender);
    let client = options
        .name("postrider")
        .connection_timeout(patience)
        .request_timeout(Some(patience))
        // A client that is left to itself, with a server that says nothing, ends after three of them.
        .ping_interval(patience)
        // Reconnecting is ours: a client left to itself would go on for ever, and send what it has kept.
        .max_reconnects(servers.len())
        .ignore_discovered_servers()
        .event_callback(move |event| {
            let sender = Arc::clone(&sender);
            async move {
                if matches!(event, Event::Disconnected | Event::Closed) {
                    sender.send_replace(true);
                }
            }
        })
        .connect(servers)
        .await
        .map_err(not_connected)?;
    Ok((client, down))
}

/// Without user and password: the library writes addresses into its log.
fn anonymous(server: &ServerAddr) -> io::Result<ServerAddr> {
    let (scheme, host, port) = (server.scheme(), server.host(), server.port());
    let bracketed = host.contains(':') && !host.starts_with('[');
    if bracketed { format!("{scheme}://[{host}]:{port}") } else { format!("{scheme}://{host}:{port}") }
        .parse()
}

/// As it was before it became a part of an address.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let code = tail.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_given_without_its_password() {
        for (given, bare) in [
            ("nats://me:c4n4ry@host", "nats://host:4222"),
            ("tls://me@[::1]:7", "tls://[::1]:7"),
            ("nats://h:1", "nats://h:1"),
        ] {
            let server = anonymous(&given.parse().unwrap()).unwrap();
            assert_eq!(server, bare.parse().unwrap(), "{given}");
            assert!(!format!("{server:?}").contains("c4n4ry"));
        }
    }

    #[test]
    fn what_an_address_has_encoded_is_decoded() {
        for (encoded, plain) in [("me", "me"), ("p%40ss%3A%2f", "p@ss:/"), ("50%", "50%"), ("%zz%4", "%zz%4")]
        {
            assert_eq!(decoded(encoded), plain);
        }
    }
}
