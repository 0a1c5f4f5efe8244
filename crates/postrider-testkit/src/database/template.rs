//! Templates: databases that tests get a copy of.

use std::pin::Pin;

use anyhow::{Context as _, Result};
use sqlx::{AssertSqlSafe, Executor as _, PgConnection};

use crate::postgres::PostgresServer;
use crate::run::Run;

type Prepare = dyn Fn(String) -> Pin<Box<dyn Future<Output = Result<()>> + Send>> + Send + Sync;

/// A database to be copied by tests: a name, and what brings an empty database into that state.
pub struct Template {
    name: String,
    prepare: Box<Prepare>,
}

impl Template {
    /// A template that `prepare` makes from an empty database, given its address. It runs once per server
    /// and run, so everything that makes the result differ must be in `name`. It must close its connections.
    pub fn new<F, R>(name: impl Into<String>, prepare: F) -> Self
    where
        F: Fn(String) -> R + Send + Sync + 'static,
        R: Future<Output = Result<()>> + Send + 'static,
    {
        Self { name: name.into(), prepare: Box::new(move |url| Box::pin(prepare(url))) }
    }

    /// An empty database.
    pub fn empty() -> Self {
        Self::new("empty", |_| async { Ok(()) })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The database that tests copy. It has this name only once it is complete.
    pub(super) fn database(&self) -> String {
        format!("template_{}", self.name)
    }

    /// Makes the template unless another test or process has done so meanwhile.
    pub(super) async fn prepare(&self, server: &PostgresServer, admin: &mut PgConnection) -> Result<()> {
        let lock = format!("{}-{}", server.name(), self.database());
        let _lock = tokio::task::spawn_blocking(move || Run::current()?.lock(&lock)).await??;
        let done = self.database();
        let exists = "select from pg_database where datname = $1";
        if sqlx::query(exists).bind(&done).fetch_optional(&mut *admin).await?.is_some() {
            return Ok(());
        }
        let draft = format!("draft_{}", self.name);
        // Left over only where an earlier try failed.
        execute(admin, format!(r#"drop database if exists "{draft}" with (force)"#)).await?;
        execute(admin, format!(r#"create database "{draft}""#)).await?;
        (self.prepare)(server.url(&draft))
            .await
            .with_context(|| format!("preparing template {}", self.name))?;
        // A copy fails while anyone is connected to its template. Connections that `prepare` has closed may
        // take a moment to be gone, others are a mistake; then nobody may come in any more.
        execute(admin, format!(r#"alter database "{draft}" with allow_connections false"#)).await?;
        sqlx::query("select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = $1")
            .bind(&draft)
            .execute(&mut *admin)
            .await?;
        execute(admin, format!(r#"alter database "{draft}" rename to "{done}""#)).await
    }
}

async fn execute(admin: &mut PgConnection, sql: String) -> Result<()> {
    admin.execute(AssertSqlSafe(sql.as_str())).await.context(sql)?;
    Ok(())
}
