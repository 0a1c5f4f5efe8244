//! One connection, and what is left of the one before.

use std::fs;
use std::time::Duration;

use memchr::memmem;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, Pipeline,
    TlsCertificates, Value,
};
use tokio::time::timeout;

use super::cluster::{Address, Slots};
use super::config::RedisConfig;
use super::error::{is_hung_up, lost, silent};
use crate::sink::{Unavailable, UnavailableKind};

/// How much a server takes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// In one value: `proto-max-bulk-len`. Whoever sends more finds the connection ended, without a word.
    pub(super) value: u64,
    /// Before it is executed, and so in one transaction: `client-query-buffer-limit`. It ends the same way.
    pub(super) transaction: u64,
    /// Altogether: `maxmemory`. What is larger would be waited for until there is room, which is never.
    pub(super) memory: u64,
}

/// What a server needs for itself, about. With less it takes nothing from anybody, and no event is to blame for that.
const EMPTY: u64 = 1 << 20;

impl Default for Limits {
    /// Of a server that does not say otherwise.
    fn default() -> Self {
        Self { value: 512 << 20, transaction: 1 << 30, memory: u64::MAX }
    }
}

/// A connection that is ready.
pub(super) struct Connection {
    redis: MultiplexedConnection,
    pub(super) limits: Limits,
    /// By which the server knows it.
    pub(super) name: Option<Name>,
    /// Where each stream is kept, if the server is one of a cluster.
    pub(super) slots: Option<Slots>,
    patience: Duration,
}

/// How a server names a connection of its own: a number, and the address that it comes from. The number alone may be another's after the
/// server was started again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    id: String,
    address: String,
}

impl Connection {
    /// Connects, to a server that is configured or to another node of its cluster. What the server may still find of `old` in its
    /// sockets must not come behind what is sent from now on, so that connection is ended over there first.
    pub(super) async fn open(
        config: &RedisConfig,
        server: &str,
        node: Option<&Address>,
        old: Option<&Name>,
    ) -> Result<Self, Unavailable> {
        let patience = config.timeout.0;
        let client = client(config, server, node)?;
        let is_over_tls = matches!(client.get_connection_info().addr(), ConnectionAddr::TcpTls { .. });
        let how = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(patience))
            .set_response_timeout(Some(patience));
        let connecting = client.get_multiplexed_async_connection_with_config(&how);
        let connected = match timeout(patience, connecting).await {
            // One that speaks TLS takes our greeting for none, and hangs up.
            Ok(Err(error)) if !is_over_tls && is_hung_up(&error) => {
                let why = format!(
                    "{error}; it may speak TLS at this port (rediss://), or have as many clients as it takes (maxclients)"
                );
                Err(Unavailable::new(UnavailableKind::Connection, why))
            }
            Ok(connected) => connected.map_err(lost),
            Err(_) => Err(silent("the server took no connection in time")),
        };
        let redis = connected.map_err(|why| match why.kind {
            // One that speaks none takes our greeting for the beginning of a command, and waits for the rest.
            UnavailableKind::Timeout if is_over_tls => {
                silent("the server took no connection over TLS in time; does it speak TLS at this port?")
            }
            _ => why,
        })?;
        let limits = Limits::default();
        let mut connection = Self { redis, limits, name: None, slots: None, patience };
        connection.introduce(old).await?;
        connection.look().await?;
        Ok(connection)
    }

    /// Each of the three may be forbidden to our user; then it is done without.
    async fn introduce(&mut self, old: Option<&Name>) -> Result<(), Unavailable> {
        let mut pipeline = Pipeline::new();
        pipeline.cmd("CLIENT").arg("INFO");
        pipeline.cmd("CLUSTER").arg("SLOTS");
        if let Some(Name { id, address }) = old {
            pipeline.cmd("CLIENT").arg("KILL").arg("ID").arg(id).arg("ADDR").arg(address);
        }
        let answers = self.ask(&pipeline).await?;
        self.name = answers.first().and_then(text).and_then(|info| Name::parse(&info));
        // A server that is part of no cluster answers with an error.
        self.slots = answers.get(1).and_then(Slots::parse);
        Ok(())
    }

    /// How much the server takes now, as far as it tells.
    pub(super) async fn look(&mut self) -> Result<(), Unavailable> {
        let told = self.settings(["proto-max-bulk-len", "client-query-buffer-limit", "maxmemory"]).await?;
        let [value, transaction, memory] = told.map(|told| told.and_then(|told| told.parse::<u64>().ok()));
        let usual = Limits::default();
        self.limits = Limits {
            value: value.unwrap_or(usual.value),
            transaction: transaction.unwrap_or(usual.transaction),
            // 0 is none.
            memory: memory.filter(|most| *most >= EMPTY).unwrap_or(usual.memory),
        };
        Ok(())
    }

    /// The server's own settings; those that it does not tell us are `None`.
    pub(super) async fn settings<const N: usize>(
        &mut self,
        names: [&str; N],
    ) -> Result<[Option<String>; N], Unavailable> {
        let mut pipeline = Pipeline::new();
        for name in names {
            pipeline.cmd("CONFIG").arg("GET").arg(name);
        }
        let answers = self.ask(&pipeline).await?;
        Ok(std::array::from_fn(|place| answers.get(place).and_then(setting)))
    }

    /// Sends commands together, and waits for the answer to each. An error of the server is an answer.
    pub(super) async fn ask(&mut self, pipeline: &Pipeline) -> Result<Vec<Value>, Unavailable> {
        let asking = self.redis.send_packed_commands(pipeline, 0, pipeline.len());
        match timeout(self.patience, asking).await {
            Ok(answers) => answers.map_err(lost),
            Err(_) => Err(silent("the server did not confirm in time")),
        }
    }
}

fn client(config: &RedisConfig, server: &str, node: Option<&Address>) -> Result<Client, Unavailable> {
    let missing = |why: String| Unavailable::new(UnavailableKind::Missing, why);
    // The parser's own words may repeat the address.
    let info = server
        .into_connection_info()
        .map_err(|_| missing("the address is none of Redis: write redis://HOST:PORT".to_owned()))?;
    let info = match node {
        Some(node) => at(info, node),
        None => info,
    };
    let Some(ca) = &config.ca else {
        return Client::open(info).map_err(lost);
    };
    let root_cert = fs::read(ca)
        .map_err(|error| missing(format!("cannot read the authorities in {}: {error}", ca.display())))?;
    // The library takes a file without any for trust in nobody, and says of the server that its issuer is unknown.
    if memmem::find(&root_cert, b"-----BEGIN CERTIFICATE-----").is_none() {
        return Err(missing(format!("there is no certificate in {}", ca.display())));
    }
    Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert: Some(root_cert) })
        .map_err(lost)
}

/// The same user and the same TLS, at another node. One that does not know its own host is where the configured one is.
fn at(info: ConnectionInfo, node: &Address) -> ConnectionInfo {
    let address = match info.addr().clone() {
        ConnectionAddr::Tcp(host, _) => ConnectionAddr::Tcp(node.host_or(host), node.port),
        ConnectionAddr::TcpTls { host, insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host: node.host_or(host), port: node.port, insecure, tls_params }
        }
        other => other,
    };
    info.set_addr(address)
}

impl Name {
    /// From what `CLIENT INFO` says: `id=7 addr=10.0.0.1:4711 …`.
    fn parse(info: &str) -> Option<Self> {
        let field = |name: &str| {
            let mut fields = info.split_whitespace();
            fields.find_map(|field| field.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
        };
        Some(Self { id: field("id")?, address: field("addr")? })
    }
}

/// What the server answers to `CONFIG GET` with one name.
fn setting(answer: &Value) -> Option<String> {
    match answer {
        Value::Array(pair) => pair.get(1).and_then(text),
        Value::Map(pairs) => pairs.first().and_then(|(_, value)| text(value)),
        _ => None,
    }
}

pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_known_by_its_number_and_its_address() {
        let name = Name::parse("id=7 addr=10.0.0.1:4711 laddr=10.0.0.2:6379 fd=8 name=").unwrap();
        assert_eq!((name.id.as_str(), name.address.as_str()), ("7", "10.0.0.1:4711"));
        assert_eq!(Name::parse("something else"), None);
    }
}
