//! A relay that stands still for longer than its lease, and then goes on as if nothing had happened.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use postrider_testkit::{Confirm, Signal};
use sqlx::PgConnection;

use super::process::SINK;
use super::soak;
use super::world::{LEASE, MAX_IN_FLIGHT, World};

/// Where each lane stands.
async fn positions(connection: &mut PgConnection) -> BTreeMap<i16, i64> {
    let rows: Vec<(i16, i64)> =
        sqlx::query_as("select lane, position from postrider.cursors where sink = $1")
            .bind(SINK)
            .fetch_all(connection)
            .await
            .unwrap();
    rows.into_iter().collect()
}

/// Watches for a while that no lane goes back.
pub async fn never_back(connection: &mut PgConnection) {
    let begun = Instant::now();
    let mut before = positions(connection).await;
    while begun.elapsed() < LEASE {
        let now = positions(connection).await;
        assert_eq!(now.len(), 16);
        assert!(before.iter().all(|(lane, position)| now[lane] >= *position), "{before:?}, then {now:?}");
        before = now;
    }
}

/// The other one has caught up when it wakes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_5_a_frozen_relay_settles_nothing_when_it_wakes() {
    let world = World::new("frozen").await;
    let mut connection = world.database.connect().await.unwrap();
    let load = super::load::start(&world);
    let (mut one, mut other) = (world.steady_relay(), world.steady_relay());
    let freezes = soak();
    for _ in 0..freezes {
        world.until_lanes(one.number, 8, &mut connection).await;
        world.collector.next_from(one.number).await;
        one.signal(Signal::STOP);
        world.until_lanes(other.number, 16, &mut connection).await;
        world.until_all_lanes_flow(&mut connection).await;
        one.signal(Signal::CONT);
        never_back(&mut connection).await;
        world.until_lanes(one.number, 8, &mut connection).await;
        (one, other) = (other, one);
    }
    let report = world.finish(load, vec![one, other]).await;
    println!("frozen: {report}");
    assert!(report.is_faithful(), "{report}");
    assert!(report.duplicated.count <= freezes * MAX_IN_FLIGHT as usize, "{report}");
}

/// The other one works through a backlog when it wakes: what it read and did not send is further than that, and must not be sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_5_a_frozen_relay_does_not_overtake_when_it_wakes() {
    let world = World::new("frozen with a backlog").await;
    let mut connection = world.database.connect().await.unwrap();
    let load = super::load::start(&world);
    let (mut one, mut other) = (world.steady_relay(), world.steady_relay());
    let freezes = 2 * soak();
    for _ in 0..freezes {
        world.until_lanes(one.number, 8, &mut connection).await;
        // Both have sent half a window, and read what comes after it.
        world.collector.confirm(Confirm::None);
        world.collector.withholds_from(one.number).await;
        world.collector.withholds_from(other.number).await;
        tokio::time::sleep(LEASE).await;
        one.signal(Signal::STOP);
        // Slower than the load.
        world.collector.confirm(Confirm::All);
        world.collector.confirm(Confirm::After(Duration::from_millis(150)));
        world.until_lanes(other.number, 16, &mut connection).await;
        one.signal(Signal::CONT);
        never_back(&mut connection).await;
        world.collector.confirm(Confirm::All);
        world.until_lanes(one.number, 8, &mut connection).await;
        world.until_all_lanes_flow(&mut connection).await;
        (one, other) = (other, one);
    }
    let report = world.finish(load, vec![one, other]).await;
    println!("frozen with a backlog: {report}");
    assert!(report.is_faithful(), "{report}");
    assert!(report.duplicated.count <= freezes * MAX_IN_FLIGHT as usize, "{report}");
}
