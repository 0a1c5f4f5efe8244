//! An outbox table that is there already, worked off by `postrider run` and by a poller as teams write it.
//!
//! `./dev bench adopt [--strict] [--quick] [FIGURE-FILTER...]`, written to `target/bench/adopt.json`. Every run has a fresh copy of one database: an
//! outbox of the preset `plane`, full of rows that wait. Ours ends when every row is marked as sent, as the poller's does; its time includes `apply`, which
//! takes the rows that were there, starting, connecting and handing the lanes back.

use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use postrider_testkit::bench::{Bench, Figure, Goal, pairs, print_facts};
use postrider_testkit::{Database, PostgresServer, Settings, Template, Version};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::process::Command;

const POSTRIDER: &str = env!("CARGO_BIN_EXE_postrider");
const BY_TRIGGER: &str = "1 mode: trigger";
const BY_POLLING: &str = "2 mode: poll";
const RIVAL: &str = "claim, publish, mark in Python";

const TABLE: &str = "
    create table public.outbox (id bigserial primary key, event_id uuid not null unique default gen_random_uuid(), event_type text not null,
        entity_type text not null, entity_id uuid not null, payload jsonb not null, workspace_id uuid not null, initiator_type text,
        created_at timestamptz not null default now(), claimed_at timestamptz, processed_at timestamptz);
    create index outbox_waiting on public.outbox (claimed_at, processed_at, id) where claimed_at is null and processed_at is null";

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let mut bench = Bench::from_arguments(std::env::args().skip(1))?;
    let server = PostgresServer::private(Version::V15, Settings::durable()).await?;
    print_facts(&server).await?;
    let rows = bench.size(300_000, 10_000);
    let runs = bench.size(3, 1);
    let template = Template::new("postrider_adopt", move |url| async move { fill(&url, rows).await });
    for (figure, mode) in [(BY_TRIGGER, "trigger"), (BY_POLLING, "poll")] {
        if !bench.wants(figure) {
            continue;
        }
        let measured = pairs(
            runs,
            async || ours(&server.database(&template).await?, mode, rows).await,
            async || poller(&server.database(&template).await?, rows).await,
        )
        .await?;
        bench.add(Figure::paired(figure, "rows/s", RIVAL, &measured).goal(Goal::RatioAtLeast(5.0)));
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    bench.finish(&target.with_file_name("bench").join("adopt.json"))
}

async fn fill(url: &str, rows: u32) -> Result<()> {
    let status = Command::new(POSTRIDER).args(["init", "--database", url]).status().await?;
    ensure!(status.success(), "postrider init ended with {status}");
    let mut connection = PgConnection::connect(url).await?;
    let fill = format!(
        "insert into public.outbox (event_type, entity_type, entity_id, payload, workspace_id, initiator_type)
         select 'workitem.updated', 'workitem', md5((n % 10000)::text)::uuid,
                jsonb_build_object('data', jsonb_build_object('id', n, 'name', repeat('x', 200)), 'previous_attributes', jsonb_build_object('name', 'y')),
                md5((n % 10)::text)::uuid, 'user'
         from generate_series(1, {rows}) n"
    );
    for statement in [TABLE, &fill, "vacuum analyze", "checkpoint"] {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await?;
    }
    connection.close().await?;
    Ok(())
}

/// Rows per second, from `apply` to the last row that is marked.
async fn ours(database: &Database, mode: &str, rows: u32) -> Result<f64> {
    let folder = folder(database)?;
    let config = folder.join("postrider.yaml");
    std::fs::write(
        &config,
        format!(
            "outbox:\n  public.outbox: {{ preset: plane, mode: {mode} }}\n\
             sinks:\n  drain:\n    null: {{}}\n    envelope: plane\n    start: earliest\nhttp: {{ listen: \"off\" }}\n"
        ),
    )?;
    let begin = Instant::now();
    let applied = postrider(database, &config, "apply").status().await?;
    ensure!(applied.success(), "postrider apply ended with {applied}");
    let mut relay = postrider(database, &config, "run").kill_on_drop(true).spawn()?;
    let mut connection = database.connect().await?;
    loop {
        let left: i64 = sqlx::query_scalar(
            "select count(*) from (select from public.outbox where processed_at is null limit 1) w",
        )
        .fetch_one(&mut connection)
        .await?;
        if left == 0 {
            break;
        }
        if let Some(status) = relay.try_wait()? {
            anyhow::bail!("postrider run ended with {status}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let seconds = begin.elapsed().as_secs_f64();
    relay.kill().await?;
    std::fs::remove_dir_all(&folder)?;
    Ok(f64::from(rows) / seconds)
}

fn postrider(database: &Database, config: &Path, command: &str) -> Command {
    let mut postrider = Command::new(POSTRIDER);
    postrider.args([command, "--config"]).arg(config);
    postrider
        .env("DATABASE_URL", database.url())
        .env("POSTRIDER_LOG", "error")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    postrider
}

/// Rows per second of the poller, from its start.
async fn poller(database: &Database, rows: u32) -> Result<f64> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/baselines/plane_poller.py");
    let begin = Instant::now();
    let done = Command::new("/usr/bin/python3")
        .arg(script)
        .arg(database.url())
        .env("PYTHONPATH", postrider_testkit::cache().join("pip"))
        .output()
        .await
        .context("/usr/bin/python3")?;
    let seconds = begin.elapsed().as_secs_f64();
    let sent = String::from_utf8_lossy(&done.stdout);
    ensure!(
        sent.trim() == rows.to_string(),
        "the poller sent {sent}: {}; ./dev setup installs psycopg",
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(f64::from(rows) / seconds)
}

fn folder(database: &Database) -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "adopt-{}-{}",
        std::process::id(),
        database.name()
    ));
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}
