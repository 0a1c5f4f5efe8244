//! One broker: ours against a bare loop of its own client, and against a poller in Python.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use postrider_testkit::PostgresServer;
use postrider_testkit::bench::{Bench, Figure, Goal, pairs};
use tokio::process::Command;

use crate::backlog::{Backlog, outbox};
use crate::bare::Bare;
use crate::relay::Relay;

/// A broker that is measured.
pub(crate) trait Broker: Sized {
    /// As the sink is called.
    const NAME: &'static str;

    /// What ours has to reach of the best bare loop.
    const GOAL: f64;

    /// How many events are published in each run: enough for some ten seconds, beside which the start of a process counts for little.
    const EVENTS: u32 = 200_000;

    /// How the bare loop publishes: each is tried, the fastest counts.
    const VARIANTS: &'static [Variant];

    /// Starts one.
    async fn start() -> Result<Self>;

    /// What stands in the configuration for the sink, in braces' inside: `redis: { url: … }`.
    fn sink(&self) -> String;

    /// Its address for the poller.
    fn url(&self) -> String;

    /// As new.
    async fn empty(&self) -> Result<()>;

    /// How many messages it has.
    async fn count(&self) -> Result<u64>;

    /// Publishes all of these, and waits for the confirmation of each.
    async fn publish(&self, variant: &Variant, messages: Bare) -> Result<()>;
}

/// One way to publish.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Variant {
    /// What is special about it.
    pub(crate) name: &'static str,
    /// Connections or channels.
    pub(crate) channels: usize,
    /// Messages of each that are under way together.
    pub(crate) in_flight: usize,
}

impl Variant {
    pub(crate) const fn new(name: &'static str, channels: usize, in_flight: usize) -> Self {
        Self { name, channels, in_flight }
    }

    fn name(self) -> String {
        format!("bare loop, {}", self.name)
    }
}

pub(crate) async fn figures<B: Broker>(server: &PostgresServer, bench: &mut Bench) -> Result<()> {
    let against_bare = format!("{} 1 against the best bare loop", B::NAME);
    let against_poller = format!("{} 2 against a poller in Python", B::NAME);
    if ![&against_bare, &against_poller].into_iter().any(|name| bench.wants(name)) {
        return Ok(());
    }
    let broker = B::start().await?;
    let events = bench.size(B::EVENTS, 10_000);
    let backlog = Backlog::fill(server, events).await?;
    let mut relay = Relay::new(&backlog.database)?;
    let mut ours = async || {
        broker.empty().await?;
        let run = relay.drain(&broker.sink(), events).await?;
        holds(&broker, events).await?;
        anyhow::Ok(run.rate)
    };
    if bench.wants(&against_bare) {
        let mut rates = Vec::new();
        for variant in B::VARIANTS {
            let rate = bare(&broker, variant, events).await?;
            let name = format!("{} {}", B::NAME, variant.name());
            bench.add(Figure::measured(&name, "events/s", rate));
            rates.push((rate, variant));
        }
        let best = rates.into_iter().max_by(|one, other| one.0.total_cmp(&other.0));
        let best = best.context("there is no way to publish")?.1;
        let runs = bench.size(5, 1);
        let measured = pairs(runs, &mut ours, async || bare(&broker, best, events).await).await?;
        let figure = Figure::paired(&against_bare, "events/s", &best.name(), &measured);
        bench.add(figure.goal(Goal::RatioAtLeast(B::GOAL)));
    }
    if bench.wants(&against_poller) {
        let rows = bench.size(50_000, 2_000);
        let template = outbox(rows);
        let measured = pairs(bench.size(3, 1), &mut ours, async || {
            broker.empty().await?;
            let database = server.database(&template).await?;
            let rate = poller(B::NAME, &broker.url(), &database.url(), rows).await?;
            holds(&broker, rows).await?;
            Ok(rate)
        })
        .await?;
        let figure = Figure::paired(&against_poller, "events/s", "claim 250, publish, mark", &measured);
        bench.add(figure.goal(Goal::RatioAtLeast(5.0)));
    }
    Ok(())
}

/// Nobody is fast by losing.
async fn holds<B: Broker>(broker: &B, events: u32) -> Result<()> {
    let count = broker.count().await?;
    ensure!(count == u64::from(events), "{} has {count} messages of {events}", B::NAME);
    Ok(())
}

/// Messages per second of the bare loop, from connecting to the last confirmation.
async fn bare<B: Broker>(broker: &B, variant: &Variant, events: u32) -> Result<f64> {
    broker.empty().await?;
    let messages = Bare::new(B::NAME, events)?;
    let begin = Instant::now();
    broker.publish(variant, messages).await?;
    let rate = f64::from(events) / begin.elapsed().as_secs_f64();
    holds(broker, events).await?;
    Ok(rate)
}

/// Rows per second of the poller, from its start.
async fn poller(name: &str, broker: &str, database: &str, rows: u32) -> Result<f64> {
    let baselines = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/baselines");
    let cache = postrider_testkit::cache();
    let path = ["bench", "pip", "nats"].map(|part| cache.join(part).display().to_string()).join(":");
    let begin = Instant::now();
    let done = Command::new("/usr/bin/python3")
        .arg(baselines.join("sink_poller.py"))
        .args([name, broker, database])
        .env("PYTHONPATH", path)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .await
        .context("/usr/bin/python3")?;
    let seconds = begin.elapsed().as_secs_f64();
    let sent = String::from_utf8_lossy(&done.stdout);
    ensure!(
        sent.trim() == rows.to_string(),
        "the poller sent {sent}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(f64::from(rows) / seconds)
}
