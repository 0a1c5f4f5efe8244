//! SIGTERM: what is in flight is settled, the lanes are handed back, nothing comes twice.

use std::time::{Duration, Instant};

use postrider_testkit::Confirm;
use rand::RngExt as _;

use super::soak;
use super::world::World;
use crate::support::PATIENCE;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_4_sigterm_with_work_in_flight_gives_no_duplicate() {
    let world = World::new("SIGTERM").await;
    let mut connection = world.database.connect().await.unwrap();
    world.collector.confirm(Confirm::After(Duration::from_millis(50)));
    let load = super::load::start(&world);
    let mut longest = Duration::ZERO;
    for _ in 0..6 * soak() {
        let relay = world.steady_relay();
        let (number, begun) = (relay.number, Instant::now());
        for _ in 0..2 {
            let sends = tokio::time::timeout(PATIENCE, world.collector.next_from(number)).await;
            assert!(sends.is_ok(), "relay {number} sends nothing");
        }
        // Sent 50 ms before it can be confirmed.
        while world.unsettled_of(number, &mut connection).await == 0 {
            assert!(begun.elapsed() < PATIENCE, "relay {number} sends nothing more");
        }
        let told = Instant::now();
        assert!(relay.stop().await.success());
        longest = longest.max(told.elapsed());
        assert_eq!(world.unsettled_of(number, &mut connection).await, 0, "settled before it ended");
        assert_eq!(world.lanes_of(number, &mut connection).await, 0, "handed back");
    }
    let last = world.steady_relay();
    let report = world.finish(load, vec![last]).await;
    println!("{report}; drained in {longest:.2?} at most");
    assert!(report.is_exact(), "{report}");
    // Ten, and what a machine that is full of other tests may take for itself.
    assert!(longest <= Duration::from_secs(20), "{longest:?}");
}

/// A new relay comes up, the old one is told to stop: sometimes when lanes are shared out already, sometimes in the middle of that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_4_a_rolling_deploy_gives_no_duplicate() {
    let world = World::new("rolling deploy").await;
    let mut connection = world.database.connect().await.unwrap();
    world.collector.confirm(Confirm::After(Duration::from_millis(20)));
    let mut rng = world.seed.for_task(1000).rng();
    let load = super::load::start(&world);
    let mut old = world.steady_relay();
    world.until_lanes(old.number, 16, &mut connection).await;
    for _ in 0..7 * soak() {
        let new = world.steady_relay();
        if rng.random() {
            world.until_lanes(new.number, 8, &mut connection).await;
        } else {
            tokio::time::sleep(Duration::from_millis(rng.random_range(0..1000))).await;
        }
        assert!(old.stop().await.success());
        old = new;
        world.until_all_lanes_flow(&mut connection).await;
    }
    let report = world.finish(load, vec![old]).await;
    println!("rolling deploy: {report}");
    assert!(report.is_exact(), "{report}");
}
