//! Several relays with one configuration.

use super::world::World;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_6_relays_share_the_lanes_and_send_nothing_twice() {
    let world = World::new("shared lanes").await;
    let mut connection = world.database.connect().await.unwrap();
    let load = super::load::start(&world);
    let (one, two) = (world.steady_relay(), world.steady_relay());
    world.until_lanes(one.number, 8, &mut connection).await;
    world.until_lanes(two.number, 8, &mut connection).await;
    world.until_all_lanes_flow(&mut connection).await;
    let three = world.steady_relay();
    world.until_lanes(three.number, 5, &mut connection).await;
    world.until_all_lanes_flow(&mut connection).await;
    assert!(two.stop().await.success());
    world.until_lanes(one.number, 8, &mut connection).await;
    world.until_lanes(three.number, 8, &mut connection).await;
    world.until_all_lanes_flow(&mut connection).await;
    let report = world.finish(load, vec![one, three]).await;
    println!("shared lanes: {report}");
    assert!(report.is_exact(), "{report}");
}
