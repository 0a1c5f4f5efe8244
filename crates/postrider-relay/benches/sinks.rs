//! Brokers: how fast `postrider run` fills each, against what its own client can do at best and against a poller in Python; and what the
//! others notice when one of them is down.
//!
//! `./dev bench sinks [--strict] [--quick] [NAME...]`, written to `target/bench/sinks.json`. NAME is part of a figure's name: `rabbitmq`,
//! `kafka`, `nats`, `redis`, `Debezium`, `outage`. Every broker runs on the same cores, keeps what it confirms as well as one server can, and is emptied before each run.
//! Ours is the real binary with its default settings over a backlog, started anew for each run; its time includes starting, connecting
//! and handing the lanes back.

#[path = "sinks/backlog.rs"]
mod backlog;
#[path = "sinks/bare.rs"]
mod bare;
#[path = "sinks/compare.rs"]
mod compare;
#[path = "sinks/debezium.rs"]
mod debezium;
#[path = "sinks/kafka.rs"]
mod kafka;
#[path = "sinks/nats.rs"]
mod nats;
#[path = "sinks/outage.rs"]
mod outage;
#[path = "sinks/rabbitmq.rs"]
mod rabbitmq;
#[path = "sinks/redis.rs"]
mod redis;
#[path = "sinks/relay.rs"]
mod relay;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use postrider_testkit::bench::{Bench, print_facts};
use postrider_testkit::{PostgresServer, Settings, Version};

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let mut bench = Bench::from_arguments(std::env::args().skip(1))?;
    let server = PostgresServer::private(Version::V15, Settings::durable()).await?;
    print_facts(&server).await?;
    compare::figures::<rabbitmq::Measured>(&server, &mut bench).await?;
    rabbitmq::unroutable(&server, &mut bench).await?;
    compare::figures::<kafka::Measured>(&server, &mut bench).await?;
    debezium::figures(&mut bench).await?;
    compare::figures::<redis::Measured>(&server, &mut bench).await?;
    compare::figures::<nats::Measured>(&server, &mut bench).await?;
    outage::figures(&server, &mut bench).await?;
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    bench.finish(&target.with_file_name("bench").join("sinks.json"))
}
