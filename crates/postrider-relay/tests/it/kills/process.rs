//! A relay in a process of its own: this test binary, started again, with the one test that is a relay if it is told so.

use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use postrider_relay::sinks::rabbitmq::RabbitMqConfig;
use postrider_relay::sinks::{Custom, Target};
use postrider_relay::units::Span;
use postrider_relay::{Relay, RelaySettings, Sink, SinkSettings};
use postrider_testkit::{Process, Signal};
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use super::adopted::Adopted;
use super::sink::{CollectorSink, Eager};
use crate::support::PATIENCE;

const VARIABLE: &str = "POSTRIDER_TEST_RELAY";

/// The sink that all relays of these tests serve.
pub const SINK: &str = "collector";

/// To which exchange, where they go to RabbitMQ.
pub const EXCHANGE: &str = "kills";

/// What a relay process is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    /// Different for every process: the collector and `postrider.readers` know it by this.
    pub number: u32,
    pub database: String,
    pub collector: String,
    pub lease: Duration,
    pub max_in_flight: u32,
    /// How long the sink waits for confirmations.
    pub deadline: Duration,
    /// The sink says "delivered" before it has sent anything: what a build that settles first looks like from outside.
    pub eager: bool,
    /// The outbox table that it keeps.
    pub adopted: Option<Adopted>,
    /// Where RabbitMQ is, if events go there and not to the collector.
    pub rabbitmq: Option<String>,
}

/// Nothing, unless it was started by [`RelayProcess::start`]: then a relay until SIGTERM.
#[test]
fn relay() {
    let Ok(order) = std::env::var(VARIABLE) else { return };
    let order: Order = serde_json::from_str(&order).unwrap();
    std::thread::spawn(|| {
        // Ends with whoever started it, whatever ended that.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(70);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut told = signal(SignalKind::terminate()).unwrap();
        let relay = Relay::start(settings(&order)).unwrap();
        told.recv().await;
        relay.stop().await;
    });
}

fn settings(order: &Order) -> RelaySettings {
    let target = order.rabbitmq.as_ref().map_or_else(|| collector(order), |url| rabbitmq(order, url));
    let sink = SinkSettings { max_in_flight: order.max_in_flight, ..crate::support::sink(SINK, target) };
    let mut settings = RelaySettings::new(order.database.parse().unwrap(), vec![sink]);
    settings.name = format!("relay {}", order.number);
    settings.log.lease = order.lease;
    settings.outboxes.extend(order.adopted.map(Adopted::declared));
    settings
}

fn collector(order: &Order) -> Target {
    let order = order.clone();
    Target::Custom(Custom::new("collector", move || {
        let sink = CollectorSink::new(&order);
        let sink: Box<dyn Sink> = if order.eager { Box::new(Eager::new(sink)) } else { Box::new(sink) };
        Box::pin(async { Ok(sink) })
    }))
}

fn rabbitmq(order: &Order, url: &str) -> Target {
    let timeout = Span(order.deadline);
    Target::RabbitMq(RabbitMqConfig { exchange: EXCHANGE.to_owned(), timeout, ..RabbitMqConfig::new(url) })
}

/// A relay process. Killed when it is dropped.
#[derive(Debug)]
pub struct RelayProcess {
    pub number: u32,
    child: Child,
    process: Process,
}

impl RelayProcess {
    pub fn start(order: &Order) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kills::process::relay", "--nocapture"])
            .env(VARIABLE, serde_json::to_string(order).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let process = Process::find(child.id().cast_signed()).unwrap();
        Self { number: order.number, child, process }
    }

    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal).unwrap();
    }

    /// `kill -9`; it is gone when this returns.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM; answers how it ended.
    pub async fn stop(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        let ended = async {
            loop {
                if let Some(status) = self.child.try_wait().unwrap() {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.expect("the relay did not end")
    }
}

impl Drop for RelayProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
