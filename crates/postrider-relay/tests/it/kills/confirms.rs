//! Relays that die while confirmations are on their way.

use std::time::Duration;

use postrider_testkit::Confirm;
use rand::RngExt as _;

use super::process::{Order, RelayProcess};
use super::soak;
use super::world::{LEASE, MAX_IN_FLIGHT, World};
use crate::support::PATIENCE;

/// Two relays; confirmations stop, one of the two is killed while some are owed to it, and everything goes on.
async fn killed_while_waiting(test: &str, how: Confirm, deadline: Duration) {
    let world = World::new(test).await;
    let mut connection = world.database.connect().await.unwrap();
    let mut rng = world.seed.for_task(1000).rng();
    let load = super::load::start(&world);
    // A machine that stands still for a second takes no lanes from who lives: of each relay only one window comes again.
    let start = || RelayProcess::start(&Order { deadline, lease: LEASE * 3, ..world.order() });
    let (mut victim, mut other) = (start(), start());
    for _ in 0..4 * soak() {
        let owes = async {
            world.collector.next_from(victim.number).await;
            world.collector.confirm(how);
            world.collector.withholds_from(victim.number).await;
        };
        assert!(
            tokio::time::timeout(PATIENCE, owes).await.is_ok(),
            "relay {} waits for nothing",
            victim.number
        );
        tokio::time::sleep(Duration::from_millis(rng.random_range(0..500))).await;
        let killed = victim.number;
        victim.kill();
        assert!(world.unsettled_of(killed, &mut connection).await > 0);
        world.collector.confirm(Confirm::All);
        (victim, other) = (other, start());
        world.until_lanes(killed, 0, &mut connection).await;
    }
    let report = world.finish(load, vec![victim, other]).await;
    let again = world.collector.sent_again();
    println!("{test}: {report}; sent again by relay: {again:?}");
    assert!(report.is_faithful(), "{report}");
    assert!(again.values().all(|again| *again <= MAX_IN_FLIGHT as usize), "{again:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_2_killed_after_sending_and_before_any_confirmation() {
    killed_while_waiting("no confirmation", Confirm::None, Duration::from_secs(20)).await;
}

/// In the one the sink waits, in the other it gives up before the relay dies: half of each batch is delivered, with holes, and is sent again
/// around them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_3_killed_with_every_second_confirmation_in() {
    let every_second = Confirm::EverySecond;
    tokio::join!(
        killed_while_waiting("every second confirmation", every_second, Duration::from_secs(20)),
        killed_while_waiting("given up with holes", every_second, Duration::from_millis(100))
    );
}
