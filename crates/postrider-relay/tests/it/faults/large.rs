//! Events so large that the line or the memory is hardly enough for one.

use std::time::Duration;

use postrider_relay::Relay;
use postrider_testkit::{Database, Proxy};
use sqlx::PgConnection;

use super::{proxy_of, runs};
use crate::support::{Probe, database, settings, sink};

/// A relay whose database is behind a proxy, with all its lanes.
async fn behind(proxy: &Proxy, database: &Database, probe: &Probe, patience: Duration) -> Relay {
    let mut settings = settings(database, vec![sink("probe", probe.target())]);
    settings.database = database.url_via(proxy.port()).parse().unwrap();
    settings.log.patience = patience;
    let relay = Relay::start(settings).unwrap();
    runs(&relay).await;
    relay
}

async fn emit_large(connection: &mut PgConnection, count: i32, bytes: i32) {
    sqlx::query(
        "select count(postrider.emit(n::text, json_build_object('fill', repeat('x', $2)), key => n::text))
         from generate_series(1, $1) n",
    )
    .bind(count)
    .bind(bytes)
    .execute(connection)
    .await
    .unwrap();
}

async fn epoch(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar("select max(epoch) from postrider.leases").fetch_one(connection).await.unwrap()
}

/// Reading them takes longer than the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_round_does_not_cost_the_lease() {
    let database = database().await;
    let proxy = proxy_of(&database).await;
    let mut admin = database.connect().await.unwrap();
    let probe = Probe::new();
    let relay = behind(&proxy, &database, &probe, Duration::from_secs(20)).await;
    let before = epoch(&mut admin).await;
    proxy.throttle(1_000_000);
    emit_large(&mut admin, 4, 1_000_000).await;
    let taken = probe.wait_for(4).await;
    assert_eq!(epoch(&mut admin).await, before, "it never lost its lanes");
    assert_eq!(taken.len(), 4, "none twice");
    relay.stop().await;
}

/// One of them takes longer than the database may take to answer.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_takes_longer_than_the_patience_comes_all_the_same() {
    let database = database().await;
    let proxy = proxy_of(&database).await;
    let mut admin = database.connect().await.unwrap();
    let probe = Probe::new();
    let relay = behind(&proxy, &database, &probe, Duration::from_millis(500)).await;
    proxy.throttle(1_000_000);
    emit_large(&mut admin, 3, 1_500_000).await;
    assert_eq!(probe.wait_for(3).await.len(), 3, "none twice");
    relay.stop().await;
}
