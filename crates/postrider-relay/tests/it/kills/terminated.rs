//! A relay whose connections to the database are taken away while deliveries are on their way.

use std::time::Duration;

use postrider_testkit::Confirm;
use rand::RngExt as _;

use super::soak;
use super::world::{MAX_IN_FLIGHT, World};
use crate::support::until;

/// One connection or all of them, again and again. What is read anew must not be mixed up with what was read before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_7_terminated_backends_leave_nothing_behind() {
    let world = World::new("terminated backends").await;
    let mut connection = world.database.connect().await.unwrap();
    world.collector.confirm(Confirm::After(Duration::from_millis(40)));
    let mut rng = world.seed.for_task(1000).rng();
    let load = super::load::start(&world);
    let relay = world.relay();
    world.until_all_lanes_flow(&mut connection).await;
    let mut terminated = 0;
    for _ in 0..20 * soak() {
        tokio::time::sleep(Duration::from_millis(rng.random_range(20..400))).await;
        let ended: i64 = sqlx::query_scalar(
            "select count(pg_terminate_backend(pid)) from (
                select pid from pg_stat_activity
                where datname = current_database() and application_name like 'postrider%' order by md5(pid::text || clock_timestamp()) limit $1) a",
        )
        .bind(if rng.random() { 1_i64 } else { 10 })
        .fetch_one(&mut connection)
        .await
        .unwrap();
        terminated += usize::from(ended > 0);
    }
    world.end(load).await;
    // Nothing comes any more that could push along what was left behind.
    until(&mut connection, "select sum(events) = 0 from postrider.backlog").await;
    assert!(relay.stop().await.success());
    let report = world.ledger.check(world.collector.receipts());
    println!("terminated backends, {terminated} times: {report}");
    assert!(report.is_faithful(), "{report}");
    assert!(report.duplicated.count <= terminated * MAX_IN_FLIGHT as usize, "{report}");
}
