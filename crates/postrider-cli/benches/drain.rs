//! `postrider run` working off a backlog: how fast, against COPY of the same rows, and in how much memory.
//!
//! `./dev bench drain [--strict] [--quick] [FIGURE-FILTER...]`, written to `target/bench/drain.json`. The relay is the real binary with its
//! default settings (`max_in_flight` 1000), started anew for each run; its time includes starting, connecting and handing the lanes back.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use postrider_testkit::bench::{Bench, Figure, Goal, copy_log, pairs, print_facts};
use postrider_testkit::{Database, PostgresServer, Settings, Template, Version};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::process::Command;

const POSTRIDER: &str = env!("CARGO_BIN_EXE_postrider");
const TO_NULL: &str = "1 drain to null";
const TO_FILE: &str = "2 drain to file, fsync: batch";
const MEMORY: &str = "3 memory, draining all";
const GROWTH: &str = "4 memory, draining all against a tenth";

/// About 500 bytes of payload, 10,000 keys.
const SAMPLE: &str = r#"
    'order.paid'::text as type, 'order-' || n as entity, 'customer-' || n % 10000 as key, 'tenant-' || n % 100 as tenant,
    ('{"order":' || n || ',"customer":"customer-' || n % 10000 || '","total":' || n % 9973 || ',"currency":"EUR","note":"'
        || repeat('x', 420) || '"}')::json as payload"#;

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let mut bench = Bench::from_arguments(std::env::args().skip(1))?;
    let server = PostgresServer::private(Version::V15, Settings::durable()).await?;
    print_facts(&server).await?;
    let template = Template::new("postrider_drain", |url| async move { init(&url).await });
    let database = server.database(&template).await?;
    let events = bench.size(2_000_000, 50_000);
    fill(&database, events).await?;
    let runs = bench.size(3, 1);
    let mut drain = Drain { database: &database, sinks: 0 };

    let mut memory: f64 = 0.0;
    if bench.wants(TO_NULL) || bench.wants(MEMORY) || bench.wants(GROWTH) {
        let measured = pairs(
            runs,
            async || {
                let (rate, peak) = drain.run("null", events).await?;
                memory = memory.max(peak);
                Ok(rate)
            },
            async || copy_log(&database, events).await,
        )
        .await?;
        bench.add(
            Figure::paired(TO_NULL, "events/s", "COPY in order", &measured).goal(Goal::RatioAtLeast(0.7)),
        );
    }
    if bench.wants(TO_FILE) {
        let folder = tempfile(&database);
        let measured = pairs(
            runs,
            async || {
                let file = folder.join("events.ndjson");
                let _ = std::fs::remove_file(&file);
                Ok(drain.run(&format!("file:{}", file.display()), events).await?.0)
            },
            async || copy_log(&database, events).await,
        )
        .await?;
        std::fs::remove_dir_all(&folder)?;
        bench.add(
            Figure::paired(TO_FILE, "events/s", "COPY in order", &measured).goal(Goal::RatioAtLeast(0.5)),
        );
    }
    if bench.wants(MEMORY) {
        bench.add(Figure::measured(MEMORY, "MB", memory).goal(Goal::Below(100.0)));
    }
    if bench.wants(GROWTH) {
        let few = server.database(&template).await?;
        fill(&few, events / 10).await?;
        // As often as the large ones: of several runs it is the highest.
        let (mut drain, mut small) = (Drain { database: &few, sinks: 0 }, 0.0_f64);
        for _ in 0..runs {
            small = small.max(drain.run("null", events / 10).await?.1);
        }
        bench.add(
            Figure::compared(GROWTH, "MB", memory, "a tenth of the events", small)
                .goal(Goal::RatioAtMost(1.1)),
        );
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    bench.finish(&target.with_file_name("bench").join("drain.json"))
}

struct Drain<'d> {
    database: &'d Database,
    sinks: u32,
}

impl Drain<'_> {
    /// Events per second from the start of the process to its end, and the most memory it had, in MB.
    async fn run(&mut self, to: &str, events: u32) -> Result<(f64, f64)> {
        self.sinks += 1;
        // Progress belongs to a sink's name: each run needs a new one.
        let config = tempfile(self.database).join("postrider.yaml");
        let kind = match to.split_once(':') {
            Some((kind, path)) => format!("{kind}: {{ path: {path} }}"),
            None => format!("{to}: {{}}"),
        };
        let text = format!(
            "sinks:\n  drain-{}:\n    {kind}\n    start: earliest\nhttp: {{ listen: \"off\" }}\n",
            self.sinks
        );
        std::fs::write(&config, text)?;
        let begin = Instant::now();
        let mut child = Command::new(POSTRIDER)
            .args(["run", "--once", "--config"])
            .arg(&config)
            .env("DATABASE_URL", self.database.url())
            .env("POSTRIDER_LOG", "error")
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().context("it has ended at once")?;
        let mut peak: f64 = 0.0;
        let status = loop {
            tokio::select! {
                status = child.wait() => break status?,
                () = tokio::time::sleep(Duration::from_millis(50)) => peak = peak.max(resident(pid).unwrap_or_default()),
            }
        };
        let seconds = begin.elapsed().as_secs_f64();
        ensure!(status.success(), "postrider run ended with {status}");
        let mut connection = self.database.connect().await?;
        let left: Option<i64> =
            sqlx::query_scalar("select sum(events)::bigint from postrider.backlog where sink = $1")
                .bind(format!("drain-{}", self.sinks))
                .fetch_one(&mut connection)
                .await?;
        connection.close().await?;
        ensure!(left == Some(0), "{left:?} events are left");
        Ok((f64::from(events) / seconds, peak))
    }
}

/// A folder of this bench.
fn tempfile(database: &Database) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "drain-{}-{}",
        std::process::id(),
        database.name()
    ));
    let _ = std::fs::create_dir_all(&folder);
    folder
}

/// The most memory that was resident, in MB.
fn resident(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()? / 1000.0)
}

async fn init(url: &str) -> Result<()> {
    let status = Command::new(POSTRIDER).args(["init", "--database", url]).status().await?;
    ensure!(status.success(), "postrider init ended with {status}");
    Ok(())
}

/// Fills the log in one transaction.
async fn fill(database: &Database, events: u32) -> Result<()> {
    let mut connection = database.connect().await?;
    let insert = format!(
        r#"insert into postrider.events (slot, lane, id, type, entity, key, tenant, payload)
           select 0, (hashtextextended(e.key collate "C", 0) & (postrider.lanes() - 1))::smallint, gen_random_uuid(),
                  e.type, e.entity, e.key, e.tenant, e.payload
           from (select {SAMPLE} from generate_series(1, {events}) n) e"#
    );
    for statement in [insert.as_str(), "vacuum analyze", "checkpoint"] {
        run(&mut connection, statement).await?;
    }
    Ok(())
}

async fn run(connection: &mut PgConnection, statement: &str) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(connection).await?;
    Ok(())
}
