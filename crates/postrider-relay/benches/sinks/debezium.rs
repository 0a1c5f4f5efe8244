//! Debezium with its outbox router, in Kafka Connect, against ours: the same number of events from a backlog to the same broker.
//!
//! The backlog of Debezium is the WAL behind a slot, one row for each transaction; it is written once, and the slot copied for each run. Its
//! rate is that between its first and its last message: the start of its JVM counts for nothing. Ours counts from the start of the process
//! to its end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use postrider_testkit::bench::{Bench, Figure, Goal, median};
use postrider_testkit::{PostgresServer, Settings, Template, Version};
use sqlx::Connection as _;
use tokio::process::Command;

use crate::backlog::Backlog;
use crate::compare::Broker as _;
use crate::kafka::Measured;
use crate::relay::{Relay, resident};

const RATE: &str = "kafka 3 against Debezium";
const MEMORY: &str = "kafka 4 memory against Debezium";
const TOPIC: &str = "outbox.event.order";
const LONGEST: Duration = Duration::from_mins(20);

const TABLE: &str = "
    create table public.outbox (id uuid primary key default gen_random_uuid(), aggregatetype varchar(255) not null, aggregateid varchar(255) not null,
        type varchar(255) not null, payload text not null, created_at timestamptz not null default now());
    create publication pub for table public.outbox";
/// In a transaction of its own: one that has written cannot make a slot.
const SLOT: &str = "select pg_create_logical_replication_slot('origin', 'pgoutput')";

/// One row, of about the size of ours.
const WRITE: &str = r#"\set n random(1, 1000000000)
insert into public.outbox (aggregatetype, aggregateid, type, payload) values ('order', 'customer-' || :n % 10000, 'order.paid',
    '{"order":' || :n || ',"customer":"customer-' || :n % 10000 || '","total":' || :n % 9973 || ',"currency":"EUR","note":"' || repeat('x', 420) || '"}')
"#;

const TUNED: [&str; 6] = [
    "max.batch.size=8192",
    "max.queue.size=32768",
    "poll.interval.ms=50",
    "producer.override.linger.ms=20",
    "producer.override.batch.size=262144",
    "producer.override.compression.type=lz4",
];

/// What a run came to.
struct Run {
    rate: f64,
    memory: f64,
}

pub(crate) async fn figures(bench: &mut Bench) -> Result<()> {
    if !(bench.wants(RATE) || bench.wants(MEMORY)) {
        return Ok(());
    }
    let events = bench.size(1_000_000, 20_000);
    let settings = Settings::durable().set("shared_buffers", "1GB").set("max_wal_size", "8GB");
    let server = PostgresServer::private(Version::V15, settings).await?;
    let broker = Measured::start().await?;
    let source = Source::fill(&server, events).await?;
    let backlog = Backlog::fill(&server, events).await?;
    let mut relay = Relay::new(&backlog.database)?;
    // A broker that is warm: what it has not compiled yet is nobody's fault.
    broker.empty().await?;
    relay.drain(&broker.sink(), events).await?;

    let (mut ours, mut default, mut tuned) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..bench.size(3, 1) {
        broker.empty().await?;
        let run = relay.drain(&broker.sink(), events).await?;
        let count = broker.count().await?;
        ensure!(count == u64::from(events), "Kafka has {count} messages of {events}");
        ours.push(Run { rate: run.rate, memory: run.memory });
        default.push(source.run(&broker, &[]).await?);
        tuned.push(source.run(&broker, &TUNED).await?);
    }
    let rate = |runs: &[Run]| median(&runs.iter().map(|run| run.rate).collect::<Vec<_>>());
    let most = |runs: &[Run]| runs.iter().map(|run| run.memory).fold(0.0, f64::max);
    let least = |runs: &[Run]| runs.iter().map(|run| run.memory).fold(f64::INFINITY, f64::min);
    for (name, runs) in [("default", &default), ("tuned", &tuned)] {
        bench.add(
            Figure::measured(&format!("kafka 3 Debezium, {name}"), "events/s", rate(runs)).runs(runs.len()),
        );
        bench.add(
            Figure::measured(&format!("kafka 4 memory of Debezium, {name}"), "MB", most(runs))
                .runs(runs.len()),
        );
    }
    let (name, better) =
        if rate(&tuned) > rate(&default) { ("tuned", &tuned) } else { ("default", &default) };
    let figure = Figure::compared(RATE, "events/s", rate(&ours), name, rate(better));
    bench.add(figure.runs(ours.len()).goal(Goal::RatioAtLeast(3.0)));
    let figure = Figure::compared(MEMORY, "MB", most(&ours), name, least(&default).min(least(&tuned)));
    bench.add(figure.runs(ours.len()).goal(Goal::RatioAtMost(0.1)));
    Ok(())
}

/// A table with its backlog in the WAL.
struct Source {
    database: postrider_testkit::Database,
    events: u32,
    home: PathBuf,
    number: std::cell::Cell<u32>,
}

impl Source {
    async fn fill(server: &PostgresServer, events: u32) -> Result<Self> {
        let home = postrider_testkit::cache().join("debezium");
        ensure!(
            home.join("pins").exists(),
            "Debezium is not installed: run ./dev bench sinks, which fetches it"
        );
        let database = server.database(&Template::empty()).await?;
        let mut connection = database.connect().await?;
        for statements in [TABLE, SLOT] {
            sqlx::raw_sql(statements).execute(&mut connection).await?;
        }
        connection.close().await?;
        let script = scratch(&database)?.join("write.sql");
        fs::write(&script, WRITE)?;
        let clients = 8;
        let written = Command::new(server.bin_dir()?.join("pgbench"))
            .args(["-n", "-c", &clients.to_string(), "-j", "2", "-t", &(events / clients).to_string(), "-f"])
            .arg(&script)
            .arg(database.url())
            // How fast they were written is not what is measured.
            .env("PGOPTIONS", "-c synchronous_commit=off")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .await
            .context("pgbench")?;
        ensure!(written.success(), "pgbench ended with {written}");
        Ok(Self { database, events: events / clients * clients, home, number: std::cell::Cell::new(0) })
    }

    /// From the first message to the last.
    async fn run(&self, broker: &Measured, more: &[&str]) -> Result<Run> {
        self.number.set(self.number.get() + 1);
        let slot = format!("dbz_{}", self.number.get());
        let mut connection = self.database.connect().await?;
        sqlx::query("select pg_copy_logical_replication_slot('origin', $1)")
            .bind(&slot)
            .execute(&mut connection)
            .await?;
        broker.create(TOPIC).await?;
        let (worker, connector) = self.configure(broker, &slot, more)?;
        let libs = |part: &str| format!("{}/{part}/libs/*", self.home.display());
        let mut connect = Command::new("/usr/bin/java")
            .args(["-Xmx1g", "-cp", &libs("connect"), "org.apache.kafka.connect.cli.ConnectStandalone"])
            .args([&worker, &connector])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let pid = connect.id().context("it has ended at once")?;
        let counter = broker.counter(TOPIC)?;
        let (begin, mut first) = (Instant::now(), None);
        let rate = loop {
            let count = counter.count().await?;
            if count > 0 && first.is_none() {
                first = Some((Instant::now(), count));
            }
            if let Some((since, had)) = first
                && count >= u64::from(self.events)
            {
                break f64::from(self.events - u32::try_from(had)?.min(self.events))
                    / since.elapsed().as_secs_f64();
            }
            ensure!(
                connect.try_wait()?.is_none() && begin.elapsed() < LONGEST,
                "Debezium has sent {count} messages, and no more"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let memory = resident(pid).context("no memory")?;
        connect.kill().await?;
        // The slot is in use for a moment longer.
        while sqlx::query("select pg_drop_replication_slot($1)")
            .bind(&slot)
            .execute(&mut connection)
            .await
            .is_err()
        {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        broker.remove(TOPIC).await?;
        Ok(Run { rate, memory })
    }

    fn configure(&self, broker: &Measured, slot: &str, more: &[&str]) -> Result<(PathBuf, PathBuf)> {
        let folder = scratch(&self.database)?;
        let address = self.database.url();
        let port = address.rsplit(':').next().and_then(|rest| rest.split('/').next()).context("no port")?;
        let kafka = broker.server.bootstrap();
        let string = "org.apache.kafka.connect.storage.StringConverter";
        let worker = [
            format!("bootstrap.servers={kafka}"),
            format!("key.converter={string}"),
            format!("value.converter={string}"),
            format!("offset.storage.file.filename={}", folder.join(slot).display()),
            format!("plugin.path={}", self.home.join("plugin").display()),
            "plugin.discovery=service_load".to_owned(),
            "listeners=http://127.0.0.1:0".to_owned(),
        ];
        let mut connector: Vec<String> = [
            "name=outbox",
            "connector.class=io.debezium.connector.postgresql.PostgresConnector",
            "tasks.max=1",
            "plugin.name=pgoutput",
            "database.hostname=127.0.0.1",
            "database.user=postgres",
            "database.password=x",
            "topic.prefix=app",
            "publication.name=pub",
            "publication.autocreate.mode=disabled",
            "table.include.list=public.outbox",
            "snapshot.mode=no_data",
            "tombstones.on.delete=false",
            "transforms=outbox",
            "transforms.outbox.type=io.debezium.transforms.outbox.EventRouter",
        ]
        .map(str::to_owned)
        .to_vec();
        connector.extend([
            format!("database.port={port}"),
            format!("database.dbname={}", self.database.name()),
            format!("slot.name={slot}"),
        ]);
        connector.extend(more.iter().map(|line| (*line).to_owned()));
        let files = [folder.join("worker.properties"), folder.join("connector.properties")];
        fs::write(&files[0], worker.join("\n"))?;
        fs::write(&files[1], connector.join("\n"))?;
        let [worker, connector] = files;
        Ok((worker, connector))
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Ok(folder) = scratch(&self.database) {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

fn scratch(database: &postrider_testkit::Database) -> Result<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!(
        "debezium-{}-{}",
        std::process::id(),
        database.name()
    ));
    fs::create_dir_all(&folder)?;
    Ok(folder)
}
