//! Connections to RabbitMQ, as the relay's sink and the consumer both make them.

mod address;
mod socket;

use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{AsyncTcpStream, Connection, ConnectionProperties};

pub use address::servers;
use socket::Sockets;
pub use socket::{End, Socket};

/// In seconds. What tells a server that is silent from one that has nothing to say.
const HEARTBEAT: u16 = 10;

/// What to say of a text that names no server. The parser's own words may repeat the address, and with it the password.
pub const NO_ADDRESS: &str = "the address is none of RabbitMQ: write amqp://HOST:PORT/VHOST";

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The server cannot be reached, or is not who it should be. `NotFound` is about a file.
    #[error(transparent)]
    Socket(#[from] io::Error),
    /// It does not want us.
    #[error(transparent)]
    Server(#[from] lapin::Error),
}

/// Connects to one server; over TLS its certificate has to be of one of the authorities in `ca`, or of one that the system trusts. The
/// connection is at its end when the second value is dropped.
pub async fn connect(mut server: AMQPUri, ca: Option<&Path>) -> Result<(Connection, End), ConnectError> {
    let (host, port) = (server.authority.host.clone(), server.authority.port);
    let socket = match server.scheme {
        AMQPScheme::AMQPS => Socket::tls(&host, port, ca).await?,
        AMQPScheme::AMQP => Socket::plain(&host, port).await?,
    };
    let end = socket.end()?;
    server.query.heartbeat = server.query.heartbeat.or(Some(HEARTBEAT));
    let tokio = Tokio::current();
    let runtime = Runtime::new(RuntimeParts::new(tokio.clone(), Sockets(tokio)));
    let socket = Mutex::new(Some(socket));
    let given = async move |_, _| {
        let socket = socket.lock().unwrap_or_else(PoisonError::into_inner).take();
        // There is one connection for each: connecting again is ours.
        socket.map(AsyncTcpStream::Plain).ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected).into())
    };
    let properties = ConnectionProperties::default().with_connection_name("postrider".into());
    Ok((Connection::connector(server, runtime, given, properties).await?, end))
}
