//! River and Graphile Worker, each in a process of its own, as their own benchmarks run them.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use postrider_testkit::{Database, PostgresServer, Template};
use tokio::process::Command;

fn baselines() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/baselines")
}

async fn said(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("{command:?}; `./dev setup` installs what this needs"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Fills an empty queue, tidies up, and has it worked off.
async fn burn(database: &Database, jobs: u32, program: impl Fn() -> Command) -> Result<f64> {
    let (url, number) = (database.url(), jobs.to_string());
    said(program().args(["fill", &url, &number])).await?;
    let mut connection = database.connect().await?;
    sqlx::query("vacuum analyze").execute(&mut connection).await?;
    sqlx::query("checkpoint").execute(&mut connection).await?;
    let seconds: f64 = said(program().args(["burn", &url, &number])).await?.trim().parse()?;
    Ok(f64::from(jobs) / seconds)
}

pub(super) struct River<'s> {
    server: &'s PostgresServer,
    template: Template,
}

impl<'s> River<'s> {
    pub(super) fn new(server: &'s PostgresServer) -> Self {
        let template = Template::new("river", |url| async move {
            said(river().args(["migrate", &url])).await?;
            Ok(())
        });
        Self { server, template }
    }

    /// Jobs per second; a completed row of each is kept.
    pub(super) async fn burn(&mut self, jobs: u32) -> Result<f64> {
        burn(&self.server.database(&self.template).await?, jobs, river).await
    }
}

fn river() -> Command {
    Command::new(postrider_testkit::cache().join("river/river-burn"))
}

pub(super) struct Graphile<'s> {
    server: &'s PostgresServer,
    template: Template,
}

impl<'s> Graphile<'s> {
    pub(super) fn new(server: &'s PostgresServer) -> Self {
        let template = Template::new("graphile", |url| async move {
            said(graphile().args(["migrate", &url])).await?;
            Ok(())
        });
        Self { server, template }
    }

    /// Jobs per second; completed rows are deleted, in batches.
    pub(super) async fn burn(&mut self, jobs: u32) -> Result<f64> {
        burn(&self.server.database(&self.template).await?, jobs, graphile).await
    }
}

fn graphile() -> Command {
    let mut command = Command::new("node");
    command.arg(baselines().join("graphile/burn.mjs")).arg(postrider_testkit::cache().join("graphile"));
    command
}
