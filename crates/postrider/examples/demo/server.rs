//! The private server with the log and a table `orders` in it.

use std::collections::HashSet;
use std::env;
use std::path::Path;
use std::time::Instant;

use anyhow::Context as _;
use postrider::schema::{self, Install};
use postrider_testkit::{PostgresServer, Settings, Version};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, PgPool};
use uuid::Uuid;

use crate::load::WRITERS;
use crate::screen::Screen;

pub(crate) struct Demo {
    server: PostgresServer,
    pub(crate) options: PgConnectOptions,
    pub(crate) pool: PgPool,
}

impl Demo {
    pub(crate) async fn start(screen: &mut Screen) -> anyhow::Result<Self> {
        let begin = Instant::now();
        let version = Version::any_installed()?;
        screen.line(&format!("Starting a private PostgreSQL {version} ..."))?;
        // With fsync: what is shown here costs what it costs in earnest.
        let server = PostgresServer::private(version, Settings::durable()).await?;
        let mut admin = server.connect().await?;
        sqlx::raw_sql("create database demo").execute(&mut admin).await?;
        admin.close().await?;

        let options: PgConnectOptions = server.url("demo").parse()?;
        let mut connection = options.connect().await?;
        schema::install(&mut connection, &Install::default()).await.context("installing the schema")?;
        sqlx::raw_sql(
            "create table orders (
                 id bigint generated always as identity (start 1001) primary key,
                 customer text not null,
                 cents integer not null,
                 state text not null default 'placed'
             )",
        )
        .execute(&mut connection)
        .await?;
        connection.close().await?;
        let pool = PgPoolOptions::new().max_connections(WRITERS + 1).connect_with(options.clone()).await?;
        let demo = Self { server, options, pool };
        screen.welcome(begin.elapsed(), &demo.how_to_emit())?;
        Ok(demo)
    }

    /// The ids of all events in the log.
    pub(crate) async fn events(&self) -> anyhow::Result<HashSet<Uuid>> {
        let ids: Vec<Uuid> =
            sqlx::query_scalar("select id from postrider.events").fetch_all(&self.pool).await?;
        Ok(ids.into_iter().collect())
    }

    /// Stops the server and removes its files; what little is left of the run goes when this process has ended.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.pool.close().await;
        self.server.stop().await
    }

    /// What to type into another terminal.
    fn how_to_emit(&self) -> String {
        let statement = r#"select postrider.emit('hello', '{\"n\": 1}')"#;
        let port = self.server.port();
        let Some(psql) = self.psql() else {
            return format!(
                r#"select postrider.emit('hello', '{{"n": 1}}');   -- with any client, at {}"#,
                self.server.url("demo")
            );
        };
        format!(r#"{psql} -h 127.0.0.1 -p {port} -U postgres demo -c "{statement}""#)
    }

    /// The client, if there is one: the server alone does not need it.
    fn psql(&self) -> Option<String> {
        let path = env::var_os("PATH").unwrap_or_default();
        if env::split_paths(&path).any(|dir| dir.join("psql").is_file()) {
            return Some("psql".to_owned());
        }
        let beside = self.server.bin_dir().ok()?.join("psql");
        Path::is_file(&beside).then(|| beside.display().to_string())
    }
}
