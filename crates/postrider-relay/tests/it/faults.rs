//! Faults of PostgreSQL as the source, by their numbers.

mod backlog;
mod child;
mod connections;
mod crashes;
mod failover;
mod large;
mod limits;
mod load;
mod payloads;
mod privileges;
mod retention;
mod sessions;
mod storing;
mod tls;
mod upgrade;
mod wraparound;

use std::time::{Duration, Instant};

use postrider_relay::{Relay, State};
use postrider_testkit::{Database, Ledger, Proxy, Receipts, Report};
use sqlx::{AssertSqlSafe, PgConnection};

use crate::support::{PATIENCE, Probe};

/// More rounds under `./dev soak`.
fn rounds(suite: usize, soak: usize) -> usize {
    if std::env::var_os("POSTRIDER_SOAK").is_some() { soak } else { suite }
}

async fn run(connection: &mut PgConnection, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements)).execute(connection).await.unwrap();
}

/// What a sink's relay is in.
fn state(relay: &Relay) -> State {
    relay.status()[0].state.clone()
}

/// The reason a relay gives for not working, if it does not.
fn reason(relay: &Relay) -> Option<String> {
    match state(relay) {
        State::Disconnected { reason } | State::Failed { reason } | State::Waiting { reason, .. } => {
            Some(reason)
        }
        _ => None,
    }
}

/// Waits until something is true.
async fn eventually(what: &str, is_true: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until a relay gives a reason with these words.
async fn says(relay: &Relay, words: &str) -> String {
    let begun = Instant::now();
    loop {
        if let Some(reason) = reason(relay).filter(|reason| reason.contains(words)) {
            return reason;
        }
        assert!(begun.elapsed() < PATIENCE, "never says {words:?}: {:?}", state(relay));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until a relay carries events.
async fn runs(relay: &Relay) {
    let begun = Instant::now();
    while state(relay) != State::Running {
        assert!(begun.elapsed() < PATIENCE, "never runs: {:?}", state(relay));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Watches for a while that something stays true.
async fn stays(what: &str, time: Duration, is_true: impl Fn() -> bool) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        assert!(is_true(), "not any more: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What the probe took, against what was committed.
fn compare(ledger: &Ledger, probe: &Probe) -> Report {
    let receipts = Receipts::new();
    for taken in probe.taken() {
        let number = taken.r#type.parse().unwrap();
        receipts.record(0, taken.id.parse().unwrap(), taken.key.as_deref().unwrap(), number);
    }
    ledger.check(&receipts)
}

/// Waits until everything that was committed has come, and says how.
async fn all_delivered(ledger: &Ledger, probe: &Probe) -> Report {
    let begun = Instant::now();
    loop {
        let report = compare(ledger, probe);
        if report.lost.is_empty() {
            assert!(report.is_faithful(), "{report}");
            return report;
        }
        assert!(begun.elapsed() < PATIENCE, "{report}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A proxy in front of a database's server.
async fn proxy_of(database: &Database) -> Proxy {
    Proxy::start(format!("127.0.0.1:{}", database.server().port())).await.unwrap()
}
