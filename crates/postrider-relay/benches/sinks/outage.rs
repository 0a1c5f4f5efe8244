//! All brokers at once, one of which is killed for a while: what the others notice.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use postrider_testkit::bench::{Bench, Figure, Goal, quantile};
use postrider_testkit::{Database, PostgresServer};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::compare::Broker;
use crate::relay::Relay;
use crate::{backlog, kafka, nats, rabbitmq, redis};

const RATE: u32 = 3_000;
/// Events of a transaction. Each alone would measure the disk.
const TOGETHER: u32 = 10;
const PRODUCERS: u32 = 4;
const CHANGE: &str = "outage, the largest change of a median delay";
/// The third is as long as the one that was down needs for what it has missed.
const PHASES: [&str; 4] = ["before", "during", "catching up", "after"];
/// Until everybody is at work: Kafka's first events wait for its compiler.
const WARM_UP: Duration = Duration::from_secs(15);

/// A broker whose messages are read as they come.
pub(crate) trait Listener: Broker + Send + Sync + 'static {
    /// Reads until it is told to stop; an error while the broker is down is no failure.
    fn listen(&self, heard: Heard) -> impl Future<Output = Result<()>> + Send;

    async fn crash(&self) -> Result<()>;

    async fn revive(&self) -> Result<()>;
}

/// Of each event, when it was written and how long it took, in milliseconds.
type Delays = Vec<(f64, f64)>;

/// When each event was written, in milliseconds since the begin, and how long it took to be read; by broker.
#[derive(Clone)]
pub(crate) struct Heard {
    begin: Instant,
    delays: Arc<Mutex<HashMap<&'static str, Delays>>>,
}

impl Heard {
    /// A message was read.
    pub(crate) fn note(&self, broker: &'static str, body: &[u8]) {
        let now = self.begin.elapsed().as_secs_f64() * 1000.0;
        let text = String::from_utf8_lossy(body);
        let at = text.split_once("\"at\":").and_then(|(_, rest)| rest.split([',', '}']).next()?.parse().ok());
        if let Some(at) = at {
            let mut delays = self.delays.lock().unwrap_or_else(PoisonError::into_inner);
            delays.entry(broker).or_default().push((at, now - at));
        }
    }

    /// How many events were read from a broker.
    fn count(&self, broker: &str) -> usize {
        self.delays.lock().unwrap_or_else(PoisonError::into_inner).get(broker).map_or(0, Vec::len)
    }

    /// Medians of a broker's delays in each phase.
    fn medians(&self, broker: &str, phases: &[(f64, f64)]) -> Vec<f64> {
        let delays = self.delays.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |(from, to): &(f64, f64)| {
            let delays = delays.get(broker).into_iter().flatten();
            let in_it = delays.filter(|(at, _)| (*from..*to).contains(at)).map(|(_, delay)| *delay);
            quantile(&in_it.collect::<Vec<_>>(), 0.5)
        };
        phases.iter().map(of).collect()
    }
}

/// The brokers, and those who listen to them.
struct Stage {
    sinks: String,
    names: Vec<&'static str>,
    heard: Heard,
    listeners: JoinSet<Result<()>>,
}

impl Stage {
    fn new() -> Self {
        let heard = Heard { begin: Instant::now(), delays: Arc::default() };
        Self { sinks: String::new(), names: Vec::new(), heard, listeners: JoinSet::new() }
    }

    /// Starts one more, and listens.
    async fn add<B: Listener>(&mut self) -> Result<Arc<B>> {
        let broker = Arc::new(B::start().await?);
        broker.empty().await?;
        let sink = format!("  {}: {{ {}, start: earliest }}\n", B::NAME, broker.sink());
        self.sinks.push_str(&sink);
        self.names.push(B::NAME);
        let (listener, heard) = (Arc::clone(&broker), self.heard.clone());
        self.listeners.spawn(async move { listener.listen(heard).await });
        Ok(broker)
    }
}

pub(crate) async fn figures(server: &PostgresServer, bench: &mut Bench) -> Result<()> {
    if !bench.wants(CHANGE) {
        return Ok(());
    }
    let phase = Duration::from_secs(u64::from(bench.size(30, 4)));
    let database = backlog::empty(server).await?;
    let mut stage = Stage::new();
    let down = stage.add::<rabbitmq::Measured>().await?;
    stage.add::<kafka::Measured>().await?;
    stage.add::<nats::Measured>().await?;
    stage.add::<redis::Measured>().await?;
    let host = Relay::new(&database)?;
    let mut relay = host.start(&stage.sinks, &[])?;
    let Stage { heard, mut listeners, names, .. } = stage;

    let begin = heard.begin;
    let (stop, stopped) = watch::channel(false);
    let load = produce(&database, begin, stopped);
    let outage = async {
        let mut moments = Vec::new();
        let mut note = || Processors::now().map(|processors| moments.push((begin.elapsed(), processors)));
        tokio::time::sleep(WARM_UP).await;
        note()?;
        tokio::time::sleep(phase).await;
        down.crash().await?;
        note()?;
        tokio::time::sleep(phase).await;
        down.revive().await?;
        note()?;
        caught_up(&database, names[0]).await?;
        note()?;
        tokio::time::sleep(phase).await;
        note()?;
        stop.send_replace(true);
        anyhow::Ok(moments)
    };
    let (produced, moments) = tokio::try_join!(load, outage)?;
    ensure!(relay.try_wait()?.is_none(), "the relay has ended");
    let millis = |moment: Duration| moment.as_secs_f64() * 1e3;
    let phases: Vec<(f64, f64)> =
        moments.windows(2).map(|pair| (millis(pair[0].0), millis(pair[1].0))).collect();
    // One that was left behind would only count what came soon.
    let patience = Instant::now() + Duration::from_mins(2);
    for broker in names.iter().skip(1) {
        while heard.count(broker) < produced {
            ensure!(Instant::now() < patience, "{broker} has {} of {produced} events", heard.count(broker));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    listeners.shutdown().await;
    relay.kill().await?;

    let killed = names[0];
    println!(
        "{RATE} events/s offered, {TOGETHER} in a transaction; {killed} down in between; ms from writing to reading"
    );
    let mut largest = [0.0_f64; PHASES.len()];
    for broker in names.into_iter().skip(1) {
        let medians = heard.medians(broker, &phases);
        for ((name, median), largest) in PHASES.iter().zip(&medians).zip(&mut largest) {
            bench.add(Figure::measured(&format!("outage, {broker} {name}, p50"), "ms", *median));
            *largest = largest.max((median / medians[0] - 1.0).abs());
        }
    }
    for (name, pair) in PHASES.iter().zip(moments.windows(2)) {
        let busy = 100.0 * pair[1].1.busy_since(&pair[0].1);
        bench.add(Figure::measured(&format!("outage, {name}, processors at work"), "%", busy));
    }
    for (name, largest) in PHASES.iter().zip(largest).skip(1) {
        bench.add(
            Figure::measured(&format!("{CHANGE}, {name}"), "%", 100.0 * largest).goal(Goal::Below(20.0)),
        );
    }
    Ok(())
}

/// Waits until a sink has what it has missed.
async fn caught_up(database: &Database, sink: &str) -> Result<()> {
    let mut connection = database.connect().await?;
    let patience = Instant::now() + Duration::from_mins(5);
    loop {
        let waiting: i64 = sqlx::query_scalar(
            "select coalesce(sum(events), 0)::bigint from postrider.backlog where sink = $1",
        )
        .bind(sink)
        .fetch_one(&mut connection)
        .await?;
        if waiting < i64::from(RATE) {
            return Ok(());
        }
        ensure!(Instant::now() < patience, "{waiting} events still wait for {sink}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// What all processors have done so far, in ticks.
struct Processors {
    idle: f64,
    all: f64,
}

impl Processors {
    fn now() -> Result<Self> {
        let stat = std::fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
        let line = stat.lines().next().context("/proc/stat has a first line")?;
        // user nice system idle iowait irq softirq steal
        let ticks: Vec<f64> =
            line.split_whitespace().skip(1).take(8).filter_map(|n| n.parse().ok()).collect();
        ensure!(ticks.len() == 8, "/proc/stat has other columns: {line}");
        Ok(Self { idle: ticks[3] + ticks[4], all: ticks.iter().sum() })
    }

    fn busy_since(&self, earlier: &Self) -> f64 {
        1.0 - (self.idle - earlier.idle) / (self.all - earlier.all)
    }
}

/// Writes events at the rate that is offered, each with the moment at which it was written. How many.
async fn produce(database: &Database, begin: Instant, stopped: watch::Receiver<bool>) -> Result<usize> {
    let mut producers = JoinSet::new();
    let pause = Duration::from_secs(1) * TOGETHER * PRODUCERS / RATE;
    let together = usize::try_from(TOGETHER)?;
    for producer in 0..PRODUCERS {
        let mut connection = database.connect().await?;
        let stopped = stopped.clone();
        producers.spawn(async move {
            let mut ticks = interval(pause);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let (mut number, mut written) = (producer, 0);
            while !*stopped.borrow() {
                ticks.tick().await;
                let at = begin.elapsed().as_secs_f64() * 1000.0;
                let (mut payloads, mut keys) = (Vec::new(), Vec::new());
                for _ in 0..TOGETHER {
                    number += PRODUCERS;
                    keys.push(format!("customer-{}", number % 10_000));
                    payloads.push(format!(r#"{{"at":{at:.3},"note":"{}"}}"#, "x".repeat(420)));
                }
                sqlx::query(
                    "select postrider.emit('order.paid', e.payload::json, key => e.key) from unnest($1::text[], $2::text[]) e (payload, key)",
                )
                .bind(payloads)
                .bind(keys)
                .execute(&mut connection)
                .await?;
                written += together;
            }
            anyhow::Ok(written)
        });
    }
    let mut written = 0;
    while let Some(ended) = producers.join_next().await {
        written += ended?.context("writing events")?;
    }
    Ok(written)
}
