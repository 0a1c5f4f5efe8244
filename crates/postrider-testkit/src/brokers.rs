//! Message brokers: the far sides that sinks are tested against.

mod kafka;
mod nats;
mod probe;
mod rabbitmq;
mod redis;
mod redis_cluster;

use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::Arc;

use anyhow::Result;
use rustix::process::Signal;

use crate::process::Process;
use crate::server::{Place, Server, Service};
pub use kafka::Kafka;
pub use nats::Nats;
pub use rabbitmq::RabbitMq;
pub use redis::Redis;
pub use redis_cluster::RedisCluster;

/// A private broker: it may be frozen, killed and started again on the same port and data. Clones are the same server, which ends with
/// the last of them.
pub struct Broker<S: Service> {
    server: Arc<Server<S>>,
}

impl<S: Service> Clone for Broker<S> {
    fn clone(&self) -> Self {
        Self { server: Arc::clone(&self.server) }
    }
}

impl<S: Service> Broker<S> {
    /// Starts one of the caller's own, and waits until it serves.
    pub async fn private(service: S) -> Result<Self> {
        Self::made_by(move || Server::private(service)).await
    }

    /// The run's own of that name, for tests that neither disturb it nor mind what others have left in it.
    pub async fn shared(service: S) -> Result<Self> {
        Self::made_by(move || Server::shared(service)).await
    }

    async fn made_by(start: impl FnOnce() -> Result<Server<S>> + Send + 'static) -> Result<Self> {
        let server = Arc::new(tokio::task::spawn_blocking(start).await??);
        Ok(Self { server })
    }

    /// What it was started as.
    pub fn service(&self) -> &S {
        self.server.service()
    }

    /// The port on 127.0.0.1 that clients take; the same after a restart.
    pub fn port(&self) -> u16 {
        self.place().port()
    }

    /// `127.0.0.1:PORT`, for a proxy.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// Process id of what was started.
    pub fn pid(&self) -> Result<i32> {
        Ok(self.server.process()?.pid())
    }

    /// Where it lives.
    pub fn place(&self) -> &Place {
        self.server.place()
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        self.place().log_tail()
    }

    /// `kill -9` of it and all it started.
    pub async fn crash(&self) -> Result<()> {
        self.blocking(Server::kill).await
    }

    /// Asks it to end, and waits for that.
    pub async fn stop(&self) -> Result<()> {
        self.blocking(|server| server.stop(server.service().stop().signal)).await
    }

    /// Starts it again, and waits until it serves.
    pub async fn start(&self) -> Result<()> {
        self.blocking(Server::start).await
    }

    /// SIGSTOP: the sockets stay open, and nobody is at home.
    pub fn freeze(&self) -> Result<()> {
        self.family()?.into_iter().try_for_each(Process::freeze)
    }

    /// SIGCONT.
    pub fn thaw(&self) -> Result<()> {
        self.family()?.into_iter().try_for_each(|process| process.signal(Signal::CONT))
    }

    /// A server that is started by a script is a child of it.
    fn family(&self) -> Result<Vec<Process>> {
        let process = self.server.process()?;
        Ok(process.descendants().into_iter().chain([process]).collect())
    }

    async fn blocking(&self, work: impl FnOnce(&Server<S>) -> Result<()> + Send + 'static) -> Result<()> {
        let server = Arc::clone(&self.server);
        tokio::task::spawn_blocking(move || work(&server)).await?
    }
}

/// Two that differ in their settings are two servers. A hash, because settings make no file names.
fn name(kind: &str, settings: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    settings.hash(&mut hasher);
    format!("{kind}-{:016x}", hasher.finish())
}
