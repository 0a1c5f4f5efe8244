//! What `/livez` and a watchdog go by: how long ago a loop has turned.

use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use postrider_relay::Relay;
use tokio::runtime::Runtime;

use crate::support::{Answer, PATIENCE, Probe, database, emit, sink, start};

/// A sink that holds the thread of its loop is what nothing but a new start helps against.
///
/// The relay has a runtime of its own. In one with the test, the thread that is held may be the one that was to look at the clock
/// and the sockets of all, or have the end of `emit` next in its queue: then the test would wait for what it holds.
#[tokio::test]
async fn a_loop_that_is_held_falls_silent_until_it_is_let_go() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let (let_go, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let held = Probe::answering(move |_| {
        // Blocks the thread, until the other end is dropped; in the end also if that is never, or the test could not fail.
        let _ = released.lock().unwrap().recv_timeout(PATIENCE * 2);
        Answer::Take
    });
    let runtime = Runtime::new().unwrap();
    let relay = {
        let _in_there = runtime.enter();
        start(&database, vec![sink("held", held.target())])
    };
    until(&relay, |silent_for| silent_for < Duration::from_secs(1)).await;
    emit(&mut writer, "1", Some("k")).await;
    until(&relay, |silent_for| silent_for > Duration::from_millis(1500)).await;
    drop(let_go);
    held.wait_for(1).await;
    until(&relay, |silent_for| silent_for < Duration::from_secs(1)).await;
    relay.stop().await;
    runtime.shutdown_background();
}

async fn until(relay: &Relay, holds: impl Fn(Duration) -> bool) {
    let begun = Instant::now();
    while !holds(relay.status()[0].silent_for) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", relay.status());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
