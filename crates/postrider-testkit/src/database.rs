//! A database per test, copied from a template that is prepared once.

mod removal;
mod template;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, PgConnection, PgPool};

use crate::postgres::{PostgresServer, Version};
pub use template::Template;

/// A test's own database. Dropped, with everyone still connected to it, when this value is.
pub struct Database {
    server: PostgresServer,
    name: String,
}

impl Database {
    pub(crate) async fn create(server: &PostgresServer, template: &Template) -> Result<Self> {
        let name = unique_name();
        let mut admin = server.connect().await?;
        // Looking first would cost a round trip in every test, a missing template only fails in the first.
        if copy(&mut admin, server.version(), &name, template).await? == Copied::NoTemplate {
            template.prepare(server, &mut admin).await?;
            let again = copy(&mut admin, server.version(), &name, template).await?;
            anyhow::ensure!(again == Copied::Done, "template {} vanished", template.name());
        }
        admin.close().await?;
        Ok(Self { server: server.clone(), name })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its server.
    pub fn server(&self) -> &PostgresServer {
        &self.server
    }

    /// Its address as the superuser.
    pub fn url(&self) -> String {
        self.server.url(&self.name)
    }

    /// Its address as `role`.
    pub fn url_as(&self, role: &str) -> String {
        self.server.url_as(role, &self.name)
    }

    /// Its address as the superuser through something that listens on `port`, such as a proxy.
    pub fn url_via(&self, port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/{}", self.name)
    }

    /// A superuser's connection. Views that a test looks at over and over have large plans: compiling them would take most of the time.
    pub async fn connect(&self) -> Result<PgConnection> {
        let url = self.url();
        let options: PgConnectOptions = url.parse()?;
        options.options([("jit", "off")]).connect().await.with_context(|| format!("connecting to {url}"))
    }

    /// A superuser's pool of at most `size` connections.
    pub async fn pool(&self, size: u32) -> Result<PgPool> {
        let url = self.url();
        let pool = PgPoolOptions::new().max_connections(size).connect(&url).await;
        pool.with_context(|| format!("connecting to {url}"))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        removal::later(self.server.url("postgres"), std::mem::take(&mut self.name));
    }
}

#[derive(PartialEq)]
enum Copied {
    Done,
    NoTemplate,
}

async fn copy(admin: &mut PgConnection, version: Version, name: &str, template: &Template) -> Result<Copied> {
    // Either strategy takes 20 ms alone (fsync off, an almost empty template); four at once take 26 to 29 ms each
    // with file_copy, 33 to 39 ms with wal_log, which also writes 7 MB of WAL and fills the buffers.
    let strategy = if version >= Version::V15 { " strategy = file_copy" } else { "" };
    let sql = format!(r#"create database "{name}" template "{}"{strategy}"#, template.database());
    for _ in 0..100 {
        let Err(error) = admin.execute(AssertSqlSafe(sql.as_str())).await else {
            return Ok(Copied::Done);
        };
        match error.as_database_error().and_then(DatabaseError::code).as_deref() {
            Some("3D000") => return Ok(Copied::NoTemplate),
            // Someone is connected to the template: autovacuum, as nobody else may.
            Some("55006") => tokio::time::sleep(Duration::from_millis(50)).await,
            _ => return Err(error).with_context(|| sql.clone()),
        }
    }
    anyhow::bail!("template {} stays in use", template.name())
}

/// Named after the test (which the harness makes the thread's name), to be recognised in `pg_stat_activity`.
fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let thread = std::thread::current();
    let test = thread.name().unwrap_or_default().rsplit("::").next().unwrap_or_default();
    let test: String = test.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '_').take(40).collect();
    format!("{test}_{}_{number}", std::process::id())
}
