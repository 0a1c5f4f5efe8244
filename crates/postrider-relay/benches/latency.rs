//! How long after its commit has returned an event is delivered: to a file, with `fsync: batch`, through the whole relay.
//!
//! `./dev bench latency [--strict] [--quick] [FIGURE-FILTER...]`, written to `target/bench/latency.json`. Producers commit one event per
//! transaction on a schedule of their own (an open loop: a slow relay does not slow them down). The clock of an event starts when its
//! COMMIT has returned, and stops when the file sink has answered that its batch is on disk. Beside it stands what the commits themselves
//! took, on the same disk and the same cores at the same time, and who had the cores. The producers have a thread and a runtime of their own: they are
//! no part of the relay, whose tasks would wait behind theirs.

#[path = "latency/cores.rs"]
mod cores;

use std::collections::HashMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use postrider::schema::{self, Install};
use postrider_relay::sink::BoxFuture;
use postrider_relay::sinks::file::FileConfig;
use postrider_relay::sinks::{Custom, Target};
use postrider_relay::{
    Message, Outcome, Relay, RelaySettings, Report, Sink, SinkSettings, State, Unavailable,
};
use postrider_testkit::bench::{Bench, Figure, Goal, print_facts, quantile};
use postrider_testkit::{Database, PostgresServer, Settings, Template, Version};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, PgConnection};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use uuid::Uuid;

use cores::Cores;

/// Connections that commit. Each waits for the disk in turn, so a rate needs several.
const PRODUCERS: u32 = 16;

/// Above this share of the cores' time whoever wants one waits for it.
const BUSY: f64 = 0.75;
const SHARED: &str =
    "the producers, the server and the relay share the cores, and those were busy: see how much above";

type Moments = Arc<Mutex<HashMap<Uuid, Instant>>>;

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let mut bench = Bench::from_arguments(std::env::args().skip(1))?;
    let server = PostgresServer::private(Version::V15, Settings::durable()).await?;
    print_facts(&server).await?;
    let template = Template::new("postrider_latency", |url| async move {
        let mut connection = PgConnection::connect(&url).await?;
        schema::install(&mut connection, &Install::default()).await?;
        connection.close().await?;
        Ok(())
    });
    for rate in [1_000, 5_000] {
        let names = ["p50", "p99"].map(|quantile| format!("{quantile} at {rate}/s"));
        if !names.iter().any(|name| bench.wants(name)) {
            continue;
        }
        let database = server.database(&template).await?;
        let seconds = bench.size(30, 3);
        let Measured { commits, delays, busy, shares } =
            measure(&database, server.pid()?, rate, seconds).await?;
        println!("{rate}/s, the cores: {:.0} % busy; in percent of one: {shares}", 100.0 * busy);
        print_distribution(&format!("{rate}/s, ms of the commits themselves"), &commits);
        print_distribution(&format!("{rate}/s, ms from commit to delivered"), &delays);
        for (name, share, limit) in [(&names[0], 0.5, 2.0), (&names[1], 0.99, 10.0)] {
            let figure = Figure::measured(name, "ms", quantile(&delays, share)).goal(Goal::AtMost(limit));
            bench.add(if busy > BUSY { figure.reason(SHARED) } else { figure });
        }
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    bench.finish(&target.with_file_name("bench").join("latency.json"))
}

/// Milliseconds, of every event.
struct Measured {
    /// Until its transaction had committed.
    commits: Vec<f64>,
    /// From then until it was delivered.
    delays: Vec<f64>,
    /// The share of the cores' time that was taken meanwhile, and by whom.
    busy: f64,
    shares: String,
}

async fn measure(database: &Database, server: i32, rate: u32, seconds: u32) -> Result<Measured> {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("latency-{}-{rate}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let delivered = Moments::default();
    let target = timed(FileConfig::new(folder.join("events.ndjson")), &delivered);
    let relay =
        Relay::start(RelaySettings::new(database.url().parse()?, vec![SinkSettings::new("file", target)]))?;
    while relay.status().iter().any(|sink| sink.state != State::Running) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let Produced { committed, busy, shares } = produce(database, server, rate, seconds).await?;
    let patience = Instant::now() + Duration::from_secs(30);
    while lock(&delivered).len() < committed.len() {
        ensure!(Instant::now() < patience, "{} of {} events came", lock(&delivered).len(), committed.len());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    relay.stop().await;
    std::fs::remove_dir_all(&folder)?;
    let delivered = lock(&delivered);
    let mut measured = Measured { commits: Vec::new(), delays: Vec::new(), busy, shares };
    for commit in committed {
        let delivery = delivered.get(&commit.id).context("an event was not delivered")?;
        // Seen before its own COMMIT had returned to the producer: nothing was waited for.
        let delay = delivery.saturating_duration_since(commit.returned);
        measured.delays.push(delay.as_secs_f64() * 1000.0);
        measured.commits.push(commit.took.as_secs_f64() * 1000.0);
    }
    Ok(measured)
}

struct Commit {
    id: Uuid,
    took: Duration,
    returned: Instant,
}

struct Produced {
    committed: Vec<Commit>,
    busy: f64,
    shares: String,
}

/// Commits one event per transaction at a rate, whatever happens.
async fn produce(database: &Database, server: i32, rate: u32, seconds: u32) -> Result<Produced> {
    let url: PgConnectOptions = database.url().parse()?;
    let (ready, is_ready) = oneshot::channel();
    let (begin, has_begun) = oneshot::channel();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (done, is_done) = oneshot::channel();
    let thread = thread::Builder::new().name(cores::PRODUCERS.to_owned()).spawn(move || {
        let committed = runtime.block_on(async {
            let mut connections = Vec::new();
            for _ in 0..PRODUCERS {
                connections.push(url.clone().application_name(cores::PRODUCERS).connect().await?);
            }
            let _ = ready.send(());
            has_begun.await?;
            commit_all(connections, rate, seconds).await
        });
        let _ = done.send(());
        committed
    })?;
    is_ready.await.context("the producers could not connect")?;
    let before = Cores::now(&database.url(), server).await?;
    begin.send(()).map_err(|()| anyhow!("the producers are gone"))?;
    // While they are connected: of a process that is gone nobody knows what it took.
    let due = Duration::from_secs(seconds.into());
    let _ = tokio::time::timeout(due, is_done).await;
    let after = Cores::now(&database.url(), server).await?;
    let committed = tokio::task::spawn_blocking(|| thread.join()).await?;
    let committed = committed.map_err(|_| anyhow!("the producers panicked"))??;
    Ok(Produced { committed, busy: after.busy_since(&before), shares: after.shares_since(&before) })
}

async fn commit_all(connections: Vec<PgConnection>, rate: u32, seconds: u32) -> Result<Vec<Commit>> {
    let begin = Instant::now() + Duration::from_millis(100);
    let mut producers = Vec::new();
    for (producer, mut connection) in (0..).zip(connections) {
        producers.push(tokio::spawn(async move {
            let mut committed = Vec::new();
            for number in (producer..rate * seconds).step_by(PRODUCERS as usize) {
                let due = begin + Duration::from_secs(1) * number / rate;
                tokio::time::sleep_until(due.into()).await;
                let asked = Instant::now();
                let id: Uuid = sqlx::query_scalar(
                    "select postrider.emit('order.paid', '{\"order\": 7, \"total\": \"12.50\", \"currency\": \"EUR\"}', key => $1)",
                )
                .bind(format!("customer-{}", number % 1000))
                .fetch_one(&mut connection)
                .await?;
                committed.push(Commit { id, took: asked.elapsed(), returned: Instant::now() });
            }
            connection.close().await?;
            anyhow::Ok(committed)
        }));
    }
    let mut committed = Vec::new();
    for producer in producers {
        committed.extend(producer.await??);
    }
    let took = begin.elapsed().as_secs_f64();
    println!("{rate}/s offered: {} commits in {took:.1} s", committed.len());
    Ok(committed)
}

/// A file sink that notes when each event was answered.
fn timed(config: FileConfig, moments: &Moments) -> Target {
    let moments = Arc::clone(moments);
    let open = move || -> BoxFuture<'static, Result<Box<dyn Sink>, Unavailable>> {
        let (target, moments) = (Target::File(config.clone()), Arc::clone(&moments));
        Box::pin(async move {
            let sink = target.open().await?;
            Ok(Box::new(Timed { sink, moments }) as Box<dyn Sink>)
        })
    };
    Target::Custom(Custom::new("file", open).exclusive())
}

struct Timed {
    sink: Box<dyn Sink>,
    moments: Moments,
}

impl Sink for Timed {
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report> {
        Box::pin(async move {
            let report = self.sink.deliver(batch).await;
            let now = Instant::now();
            let mut moments = lock(&self.moments);
            for (message, outcome) in batch.iter().zip(&report.outcomes) {
                if *outcome == Outcome::Delivered {
                    moments.insert(message.record.id, now);
                }
            }
            report
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        self.sink.close()
    }
}

fn lock(moments: &Moments) -> std::sync::MutexGuard<'_, HashMap<Uuid, Instant>> {
    moments.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn print_distribution(of: &str, times: &[f64]) {
    let shares = [0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0];
    let line: Vec<String> =
        shares.iter().map(|share| format!("p{} {:.2}", share * 100.0, quantile(times, *share))).collect();
    println!("{of}: {}", line.join("  "));
}
