//! One connection, and the stream that it was made for.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use async_nats::jetstream::context::{Context, ContextBuilder};
use async_nats::jetstream::stream::{Config, DiscardPolicy, Info, StorageType};
use async_nats::{Client, ConnectOptions, ServerAddr};
use memchr::memmem;
use tokio::sync::watch;
use tokio::time::timeout;

use super::config::NatsConfig;
use super::error::{Meaning, no_stream, not_connected};
use super::heard::Heard;
use super::room::Room;
use super::subject;
use crate::sink::{Refusal, RefusalKind, Unavailable, UnavailableKind};
use crate::sinks::percent::decoded;

/// A connection that is ready.
pub(super) struct Connection {
    pub(super) context: Context,
    heard: watch::Receiver<Heard>,
    /// Of the stream.
    subjects: Vec<String>,
    /// In the stream.
    pub(super) room: Room,
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
        let (client, heard) = match timeout(patience, connect(config, patience)).await {
            Ok(connected) => connected?,
            Err(_) => {
                return Err(Unavailable::new(
                    UnavailableKind::Timeout,
                    "no server took a connection in time",
                ));
            }
        };
        let context = ContextBuilder::new().timeout(patience).max_ack_inflight(10_000).build(client);
        Ok(Self { context, heard, subjects: Vec::new(), room: Room::default() })
    }

    /// How the stream is set up now, and what it has.
    pub(super) async fn stream(&self, config: &NatsConfig) -> Result<Info, Unavailable> {
        let found = self.context.get_stream(&config.stream).await;
        let stream = found.map_err(|error| no_stream(error, &config.stream))?;
        Ok(stream.cached_info().clone())
    }

    /// What subjects the stream has now, and how much it holds.
    pub(super) async fn look(&mut self, config: &NatsConfig) -> Result<(), Unavailable> {
        let found = self.stream(config).await?.config;
        if found.no_ack {
            let why = format!("the stream `{}` confirms nothing (`no_ack`); set it to false", config.stream);
            return Err(Unavailable::new(UnavailableKind::Blocked, why));
        }
        self.room = Room::of(&found);
        self.subjects = found.subjects;
        Ok(())
    }

    async fn create(&self, config: &NatsConfig) -> Result<(), Unavailable> {
        match self.context.create_stream(wanted(config)).await {
            Ok(_) => Ok(()),
            Err(error) => Err(Unavailable::new(UnavailableKind::Missing, error)),
        }
    }

    /// Whether the server is known to have gone.
    pub(super) fn is_lost(&self) -> bool {
        self.heard.borrow().is_lost
    }

    /// Whether the stream takes this subject. Whoever publishes where no stream listens has spoken into the void.
    pub(super) fn takes(&self, subject: &str) -> bool {
        self.subjects.iter().any(|filter| subject::takes(filter, subject))
    }

    pub(super) fn subjects(&self) -> String {
        self.subjects.join(", ")
    }

    /// How often the server has forbidden to publish to this subject.
    pub(super) fn denials(&self, subject: &str) -> u64 {
        self.heard.borrow().denials(subject)
    }

    /// Waits until it is clear that there will be no answer to what was published to this subject, and says why: it was forbidden, more often
    /// than before, or the connection is lost.
    pub(super) async fn no_answer(&self, subject: &str, denials: u64) -> Meaning {
        let mut heard = self.heard.clone();
        match heard.wait_for(|heard| heard.is_lost || heard.denials(subject) > denials).await {
            Ok(heard) if !heard.is_lost => Meaning::Refused(Refusal {
                kind: RefusalKind::Rejected,
                reason: format!("NATS does not let this user publish to {subject:?}"),
            }),
            // The sender goes with the connection.
            _ => Meaning::Unavailable(Unavailable::new(
                UnavailableKind::Connection,
                "the connection to NATS was lost before it confirmed",
            )),
        }
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
) -> Result<(Client, watch::Receiver<Heard>), Unavailable> {
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
        check_authorities(ca).map_err(missing)?;
        options = options.add_root_certificates(ca.clone());
    }
    let (sender, heard) = watch::channel(Heard::default());
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
                sender.send_if_modified(|heard| heard.note(&event));
            }
        })
        .connect(servers)
        .await
        .map_err(not_connected)?;
    Ok((client, heard))
}

/// Whether the file has any. The library takes one without for trust in nobody, and says of the server that its issuer is unknown.
fn check_authorities(ca: &Path) -> Result<(), String> {
    let file = ca.display();
    let text = fs::read(ca).map_err(|error| format!("cannot read the authorities in {file}: {error}"))?;
    match memmem::find(&text, b"-----BEGIN CERTIFICATE-----") {
        Some(_) => Ok(()),
        None => Err(format!("there is no certificate in {file}")),
    }
}

/// Without user and password: the library writes addresses into its log.
fn anonymous(server: &ServerAddr) -> io::Result<ServerAddr> {
    let (scheme, host, port) = (server.scheme(), server.host(), server.port());
    let bracketed = host.contains(':') && !host.starts_with('[');
    if bracketed { format!("{scheme}://[{host}]:{port}") } else { format!("{scheme}://{host}:{port}") }
        .parse()
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
}
