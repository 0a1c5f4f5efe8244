//! `PgBouncer` in transaction mode, the pooler that most producers sit behind.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rustix::process::Signal;

use crate::database::Database;
use crate::postgres::{PostgresServer, answers};
use crate::server::{CommandLine, Place, Server, Service, Stop};

/// A private `PgBouncer` in transaction mode in front of a server; ends when dropped.
///
/// Version 1.18 (Debian 12) does not carry protocol-level prepared statements across transactions.
#[derive(Clone)]
pub struct PgBouncer {
    server: Arc<Server<Pooler>>,
}

struct Pooler {
    upstream: u16,
    pool_size: u32,
}

impl PgBouncer {
    /// Starts one that opens at most `pool_size` connections per database and role. Any role of the server
    /// may come in, without a password.
    pub async fn start(upstream: &PostgresServer, pool_size: u32) -> Result<Self> {
        let pooler = Pooler { upstream: upstream.port(), pool_size };
        let server = tokio::task::spawn_blocking(move || Server::private(pooler)).await??;
        Ok(Self { server: Arc::new(server) })
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.server.place().port()
    }

    /// Address of `database` through the pooler, as the superuser.
    pub fn url(&self, database: &Database) -> String {
        database.url_via(self.port())
    }

    /// Address of `database` through the pooler, as `role`.
    pub fn url_as(&self, role: &str, database: &Database) -> String {
        format!("postgres://{role}@127.0.0.1:{}/{}", self.port(), database.name())
    }

    /// Address of the pooler's own console (`show pools`, `pause`, `kill`), which knows only simple queries.
    pub fn console_url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/pgbouncer", self.port())
    }

    /// `kill -9`.
    pub async fn crash(&self) -> Result<()> {
        let server = Arc::clone(&self.server);
        tokio::task::spawn_blocking(move || server.kill()).await?
    }

    /// Starts it again on the same port.
    pub async fn restart(&self) -> Result<()> {
        let server = Arc::clone(&self.server);
        tokio::task::spawn_blocking(move || server.start()).await?
    }
}

impl Service for Pooler {
    fn name(&self) -> String {
        format!("pgbouncer-{}-{}", self.upstream, self.pool_size)
    }

    fn prepare(&self, place: &Place) -> Result<()> {
        let users = place.write("users.txt", "\"postgres\" \"\"\n")?;
        let config = [
            "[databases]".to_owned(),
            // Roles that are not in the file are looked up in the server (auth_query) by this user.
            format!("* = host=127.0.0.1 port={} auth_user=postgres", self.upstream),
            "[pgbouncer]".to_owned(),
            "listen_addr = 127.0.0.1".to_owned(),
            format!("listen_port = {}", place.port()),
            "unix_socket_dir =".to_owned(),
            "auth_type = trust".to_owned(),
            format!("auth_file = {}", users.display()),
            "admin_users = postgres".to_owned(),
            "pool_mode = transaction".to_owned(),
            format!("default_pool_size = {}", self.pool_size),
            "max_client_conn = 500".to_owned(),
            "ignore_startup_parameters = extra_float_digits".to_owned(),
        ];
        place.write("pgbouncer.ini", &(config.join("\n") + "\n"))?;
        Ok(())
    }

    fn command(&self, place: &Place) -> Result<CommandLine> {
        let program =
            ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"].into_iter().find(|path| Path::new(path).exists());
        let program = program.context("PgBouncer is not installed: run ./dev setup")?;
        Ok(CommandLine::new(program).arg(place.dir.join("pgbouncer.ini").to_string_lossy()))
    }

    fn is_ready(&self, place: &Place) -> bool {
        answers(place.port())
    }

    /// TERM waits for clients from 1.23 on; QUIT ends every version at once.
    fn stop(&self) -> Stop {
        Stop::with(Signal::QUIT)
    }
}
