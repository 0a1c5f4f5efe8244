//! `PostgreSQL` servers of every supported major version.

mod cluster;
mod probe;
mod settings;
mod version;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use sqlx::{Connection as _, PgConnection};

use crate::database::{Database, Template};
use crate::server::Server;
use cluster::{Cluster, Origin};
pub(crate) use probe::answers;
pub use settings::Settings;
pub use version::Version;

/// The run's shared server of that version, with the settings of [`Settings::for_tests`].
pub async fn postgres(version: Version) -> Result<PostgresServer> {
    postgres_with(version, Settings::for_tests()).await
}

/// The run's shared server of that version with those settings: one server per distinct settings.
pub async fn postgres_with(version: Version, settings: Settings) -> Result<PostgresServer> {
    let cluster = Cluster { version, settings, origin: Origin::Initdb, small_disk: None };
    PostgresServer::made_by(move || Server::shared(cluster)).await
}

/// A `PostgreSQL` server. Cheap to clone; clones are the same server.
///
/// The superuser is `postgres`, without a password, on 127.0.0.1.
#[derive(Clone)]
pub struct PostgresServer {
    server: Arc<Server<Cluster>>,
}

impl PostgresServer {
    /// A server of the caller's own: it may be stopped, killed and started, and vanishes when dropped.
    pub async fn private(version: Version, settings: Settings) -> Result<Self> {
        let cluster = Cluster { version, settings, origin: Origin::Initdb, small_disk: None };
        Self::made_by(move || Server::private(cluster)).await
    }

    /// As [`PostgresServer::private`], with a file system of so many bytes at [`PostgresServer::small_disk`]. What is there ends with the
    /// server: such a server cannot be started again.
    pub async fn private_with_small_disk(version: Version, settings: Settings, bytes: u64) -> Result<Self> {
        let cluster = Cluster { version, settings, origin: Origin::Initdb, small_disk: Some(bytes) };
        Self::made_by(move || Server::private(cluster)).await
    }

    /// Where a tablespace on the small file system goes.
    pub fn small_disk(&self) -> PathBuf {
        Cluster::small_disk(self.server.place())
    }

    /// A private streaming standby of this server. Needs `pg_basebackup`, which only Debian's packages bring.
    pub async fn standby(&self, settings: Settings) -> Result<Self> {
        let origin = Origin::StandbyOf { port: self.port() };
        let cluster = Cluster { version: self.version(), settings, origin, small_disk: None };
        Self::made_by(move || Server::private(cluster)).await
    }

    async fn made_by(start: impl FnOnce() -> Result<Server<Cluster>> + Send + 'static) -> Result<Self> {
        let server = Arc::new(tokio::task::spawn_blocking(start).await??);
        Ok(Self { server })
    }

    /// Its major version.
    pub fn version(&self) -> Version {
        self.server.service().version
    }

    /// The port on 127.0.0.1; the same after a restart.
    pub fn port(&self) -> u16 {
        self.server.place().port()
    }

    /// Process id of the postmaster.
    pub fn pid(&self) -> Result<i32> {
        Ok(self.server.process()?.pid())
    }

    /// The data directory.
    pub fn data_dir(&self) -> PathBuf {
        Cluster::data_dir(self.server.place())
    }

    /// Where `postgres` and `initdb` are; other programs only for Debian's packages.
    pub fn bin_dir(&self) -> Result<PathBuf> {
        self.version().bin_dir()
    }

    /// A command of the server's own programs (`pg_resetwal`, `pg_dump`), run as the server's user.
    pub fn run_as(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        let program = self.bin_dir()?.join(program.as_ref());
        ensure!(
            program.exists(),
            "{} does not exist: PostgreSQL {} here comes without it",
            program.display(),
            self.version()
        );
        Ok(self.server.place().user.command(program))
    }

    /// Address of a database as the superuser.
    pub fn url(&self, database: &str) -> String {
        self.url_as("postgres", database)
    }

    /// Address of a database as `role`.
    pub fn url_as(&self, role: &str, database: &str) -> String {
        format!("postgres://{role}@127.0.0.1:{}/{database}", self.port())
    }

    /// A superuser's connection to the database `postgres`.
    pub async fn connect(&self) -> Result<PgConnection> {
        let error = match PgConnection::connect(&self.url("postgres")).await {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        // That the server is dead explains more than a refused connection.
        self.server.ensure_alive()?;
        Err(error).with_context(|| format!("connecting to PostgreSQL {}", self.version()))
    }

    /// A database of the caller's own, copied from `template`, which is prepared at first use.
    pub async fn database(&self, template: &Template) -> Result<Database> {
        Database::create(self, template).await
    }

    /// Changes a setting from the next start on. (`alter system` and a reload work too.)
    pub fn set(&self, name: &str, value: impl ToString) -> Result<()> {
        Cluster::configure(self.server.place(), &Settings::empty().set(name, value))
    }

    /// Ends it by fast shutdown: transactions are rolled back, a checkpoint is written.
    pub async fn stop(&self) -> Result<()> {
        self.blocking(|server| server.stop(Signal::INT)).await
    }

    /// Ends it by immediate shutdown: no checkpoint, recovery at the next start. Clients are told.
    pub async fn stop_immediate(&self) -> Result<()> {
        self.blocking(|server| server.stop(Signal::QUIT)).await
    }

    /// `kill -9` of postmaster and backends: clients see a closed connection, the next start recovers.
    pub async fn crash(&self) -> Result<()> {
        self.blocking(Server::kill).await
    }

    /// Starts it again on the same port and data, and waits until it serves.
    pub async fn start(&self) -> Result<()> {
        self.blocking(Server::start).await
    }

    /// Starts it without waiting: clients find a server that is starting up.
    pub async fn launch(&self) -> Result<()> {
        self.blocking(Server::launch).await
    }

    /// Waits until it serves, after [`PostgresServer::launch`].
    pub async fn wait_until_ready(&self) -> Result<()> {
        self.blocking(Server::wait_until_ready).await
    }

    /// Sends a signal to the postmaster only.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.server.process()?.signal(signal)
    }

    /// Fails with the end of the server's log if it has died by itself.
    pub fn ensure_alive(&self) -> Result<()> {
        self.server.ensure_alive()
    }

    /// The end of the server's log.
    pub fn log_tail(&self) -> String {
        self.server.place().log_tail()
    }

    /// Names this server within its run.
    pub(crate) fn name(&self) -> String {
        // A private server's own directory: two of them may have the same service name.
        self.server.place().dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    async fn blocking(
        &self,
        work: impl FnOnce(&Server<Cluster>) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let server = Arc::clone(&self.server);
        tokio::task::spawn_blocking(move || work(&server)).await?
    }
}
