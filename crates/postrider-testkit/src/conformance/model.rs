//! The smallest server and sink that keep the contract, and three sinks that do not: the suite must tell them apart.

mod server;
mod sink;

use anyhow::Result;
use postrider_relay::sink::{BoxFuture, Sink, Unavailable};
use uuid::Uuid;

use super::{Control, Door, Subject, Test, Way};
use server::ModelServer;
use sink::ModelSink;

/// The server takes no larger event.
const LARGEST: usize = 1 << 20;

/// What is wrong with a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Nothing.
    None,
    /// It calls delivered what it has written to its socket.
    AcksEarly,
    /// The first batch after a connection was lost goes out last event first.
    ReordersAfterReconnect,
    /// An event that is too large is left out, and called delivered.
    DropsOversize,
}

/// A sink with a flaw, and a server inside this process.
pub struct Model {
    flaw: Flaw,
    server: ModelServer,
}

impl Model {
    /// Starts the server.
    pub async fn new(flaw: Flaw) -> Result<Self> {
        Ok(Self { flaw, server: ModelServer::start().await? })
    }
}

impl Subject for Model {
    fn open<'a>(&'a self, way: &'a Way) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async move {
            let sink: Box<dyn Sink> = Box::new(ModelSink::new(way.port, way.patience, self.flaw));
            Ok(sink)
        })
    }

    fn upstream(&self, _door: Door) -> Option<String> {
        Some(self.server.address().to_string())
    }

    fn destination(&self) -> String {
        "somewhere".to_owned()
    }

    fn stored(&self) -> BoxFuture<'_, Result<Vec<Uuid>>> {
        Box::pin(async { Ok(self.server.stored()) })
    }

    fn server(&self, what: Control) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.server.control(what))
    }

    fn oversize(&self) -> usize {
        LARGEST + 1
    }

    fn unroutable(&self) -> String {
        server::NOWHERE.to_owned()
    }

    fn kills(&self) -> usize {
        1
    }

    fn exempt(&self, test: Test) -> Option<&'static str> {
        match test {
            Test::BadCredentials => Some("the model lets everybody in"),
            Test::BadTls => Some("the model speaks no TLS"),
            _ => None,
        }
    }
}
