//! Private servers, a fault proxy and the delivery checker behind Postrider's tests.
//!
//! A test asks for what it needs and gets the real thing:
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use postrider_testkit::{Template, Version, postgres};
//!
//! let server = postgres(Version::default()).await?; // started once per run, shared
//! let database = server.database(&Template::empty()).await?; // this test's own
//! let mut connection = database.connect().await?;
//! sqlx::query("select 1").execute(&mut connection).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Servers belong to a [`Run`] and vanish with it, whatever ends it: a clean exit, a panic or `kill -9`.
//! Linux only: it relies on `/proc`, `setpriv`, `setsid` and `flock` (util-linux) and GNU `env`.
#![forbid(unsafe_code)]

pub mod bench;
mod brokers;
mod checker;
mod cloudevents;
mod collector;
#[cfg(feature = "conformance")]
pub mod conformance;
mod database;
mod pgbouncer;
mod ports;
mod postgres;
mod process;
mod proxy;
mod run;
mod seed;
mod server;
mod tls;
mod user;

pub use brokers::{Broker, Kafka, Nats, RabbitMq, Redis, RedisCluster};
pub use checker::{Ledger, Offenders, Receipts, Report};
pub use cloudevents::{Heard, cloudevents};
pub use collector::{Arrival, Collector, Confirm};
pub use database::{Database, Template};
pub use pgbouncer::PgBouncer;
pub use postgres::{PostgresServer, Settings, Version, postgres, postgres_with};
pub use process::Process;
pub use proxy::{Direction, Proxy};
pub use run::Run;
pub use rustix::process::Signal;
pub use seed::Seed;
pub use server::{CommandLine, Place, Server, Service, Stop, StopTarget, run_to_end};
pub use tls::{Authority, Certificate};
pub use user::User;

/// Where `./dev setup` keeps the servers and tools it fetched.
pub fn cache() -> std::path::PathBuf {
    std::env::var_os("POSTRIDER_CACHE").map_or_else(|| "/var/cache/postrider".into(), Into::into)
}
