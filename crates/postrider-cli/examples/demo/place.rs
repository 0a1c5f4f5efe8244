//! Where everything happens: a private server with an issue tracker and the log, and a folder with a `postrider.yaml`.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context as _, bail, ensure};
use postrider_testkit::{PostgresServer, Run, Settings, Version};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection as _, PgPool};
use tokio::process::Command;
use tokio::time::sleep;
use uuid::Uuid;

use crate::brokers::{Kind, Running};
use crate::load::WRITERS;
use crate::screen::Screen;

/// How long a relay may take to get to work. It takes a tenth of a second.
const PATIENCE: Duration = Duration::from_secs(20);

const TRACKER: &str = include_str!("tracker.sql");

/// What is captured of it.
const TABLES: &str = include_str!("tables.yaml");

/// So many were made: tests make several.
static PLACES: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Place {
    server: PostgresServer,
    pub(crate) url: String,
    pub(crate) pool: PgPool,
    /// Goes away with the server's own files.
    pub(crate) folder: PathBuf,
    /// The binary.
    pub(crate) postrider: PathBuf,
    pub(crate) brokers: Vec<Running>,
}

/// How many lanes of each sink a relay holds: by relay, then by sink.
pub(crate) type Holders = BTreeMap<String, BTreeMap<String, i64>>;

impl Place {
    pub(crate) async fn make(screen: &mut Screen, with: &[Kind]) -> anyhow::Result<Self> {
        let begin = Instant::now();
        let postrider = binary()?;
        let version = Version::any_installed()?;
        screen.line(&format!("Starting a private PostgreSQL {version} ..."))?;
        // With fsync: what is shown here costs what it costs in earnest.
        let server = PostgresServer::private(version, Settings::durable()).await?;
        let mut admin = server.connect().await?;
        sqlx::raw_sql("create database demo").execute(&mut admin).await?;
        admin.close().await?;

        let mut brokers = Vec::with_capacity(with.len());
        for &kind in with {
            screen.line(&format!("Starting a private {} ...", kind.name()))?;
            brokers.push(Running::start(kind).await?);
        }

        let url = server.url("demo");
        let mut init = Command::new(&postrider);
        tell(screen, "init", prepare(&mut init, &url)).await?;
        // Compiling the plan of a view takes the server longer than answering, and nothing is shown meanwhile.
        let options = PgConnectOptions::from_str(&url)?.options([("jit", "off")]);
        let pool = PgPoolOptions::new().max_connections(WRITERS + 2).connect_with(options).await?;
        sqlx::raw_sql(TRACKER).execute(&pool).await?;
        let number = PLACES.fetch_add(1, Ordering::Relaxed);
        let folder = Run::current()?.dir().join(format!("demo-{}-{number}", std::process::id()));
        fs::create_dir(&folder)?;
        let place = Self { server, url, pool, folder, postrider, brokers };
        fs::write(place.folder.join("postrider.yaml"), place.configuration()?)?;
        let mut apply = Command::new(&place.postrider);
        tell(screen, "apply", prepare(&mut apply, &place.url).current_dir(&place.folder)).await?;
        screen.welcome(begin.elapsed(), with)?;
        Ok(place)
    }

    fn configuration(&self) -> anyhow::Result<String> {
        // A JSON string is a YAML string, whatever the folder is called.
        let archive = serde_json::to_string(&self.archive())?;
        let brokers: String = self.brokers.iter().map(Running::sink).collect();
        Ok(format!(
            "{TABLES}\
             sinks:\n\
             \x20 screen:\n\
             \x20   stdout: {{}}\n\
             \x20   start: earliest\n\
             \x20 archive:\n\
             \x20   file: {{ path: {archive} }}\n\
             \x20   start: earliest\n\
             {brokers}\
             http: {{ listen: off }}\n"
        ))
    }

    /// The file that the sink `archive` writes.
    pub(crate) fn archive(&self) -> PathBuf {
        self.folder.join("events.ndjson")
    }

    /// The ids of all events in the log.
    pub(crate) async fn events(&self) -> anyhow::Result<HashSet<Uuid>> {
        let ids: Vec<Uuid> =
            sqlx::query_scalar("select id from postrider.events").fetch_all(&self.pool).await?;
        Ok(ids.into_iter().collect())
    }

    /// Which relay holds how many lanes of which sink.
    pub(crate) async fn holders(&self) -> anyhow::Result<Holders> {
        let rows: Vec<(String, String, i64)> = sqlx::query_as(
            "select reader, sink, count(*) from postrider.backlog where reader is not null group by 1, 2",
        )
        .fetch_all(&self.pool)
        .await?;
        let mut holders = Holders::new();
        for (relay, sink, lanes) in rows {
            holders.entry(relay).or_default().insert(sink, lanes);
        }
        Ok(holders)
    }

    /// How many events each sink still has before it.
    pub(crate) async fn backlog(&self) -> anyhow::Result<BTreeMap<String, i64>> {
        let rows: Vec<(String, i64)> =
            sqlx::query_as("select sink, sum(events)::bigint from postrider.backlog group by 1")
                .fetch_all(&self.pool)
                .await?;
        Ok(rows.into_iter().collect())
    }

    /// Waits until some relay holds lanes of all sinks.
    pub(crate) async fn until_held(&self) -> anyhow::Result<()> {
        let begin = Instant::now();
        let sinks_of_all = 2 + self.brokers.len();
        while !self.holders().await?.values().any(|sinks| sinks.len() == sinks_of_all) {
            if begin.elapsed() > PATIENCE {
                bail!("no relay has begun to work within {} s", PATIENCE.as_secs());
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Stops the server and removes what was delivered; what little is left of the run goes when this process has ended.
    pub(crate) async fn stop(&self) -> anyhow::Result<()> {
        self.pool.close().await;
        fs::remove_dir_all(&self.folder)?;
        self.server.stop().await
    }

    /// What to type into another terminal.
    pub(crate) fn how_to_write(&self) -> String {
        let Some(psql) = self.psql() else {
            return format!(
                r#"{} emit issue.opened '{{"title": "Hello"}}' --database {}"#,
                self.program(),
                self.url
            );
        };
        format!("{psql} {} -c \"insert into issues (title) values ('Hello')\"", self.url)
    }

    /// The binary, as one would type it.
    pub(crate) fn program(&self) -> String {
        let here = env::current_dir().unwrap_or_default();
        self.postrider.strip_prefix(here).unwrap_or(&self.postrider).display().to_string()
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

/// Runs a command of ours and shows what it says.
async fn tell(screen: &mut Screen, word: &str, command: &mut Command) -> anyhow::Result<()> {
    let end = command.arg(word).output().await?;
    let said = String::from_utf8_lossy(&end.stderr);
    ensure!(end.status.success(), "postrider {word} failed: {said}");
    for line in said.lines() {
        screen.line(&format!("postrider {word}: {line}"))?;
    }
    Ok(())
}

/// `./dev demo` builds both: the binary is one folder up from the examples.
fn binary() -> anyhow::Result<PathBuf> {
    let this = env::current_exe()?;
    let folder = this.parent().and_then(Path::parent).context("no folder above the examples")?;
    let binary = folder.join("postrider");
    ensure!(binary.is_file(), "{} is not there: run ./dev demo, which builds it", binary.display());
    Ok(binary)
}

/// Nothing in the environment may lead a command of ours to another database or configuration.
pub(crate) fn prepare<'c>(command: &'c mut Command, url: &str) -> &'c mut Command {
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("PG") || text.starts_with("POSTRIDER_") || text == "NOTIFY_SOCKET" {
            command.env_remove(name);
        }
    }
    command.env("DATABASE_URL", url)
}
