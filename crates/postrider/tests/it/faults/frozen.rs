//! A reader that stands still for longer than its lease, as in a paused virtual machine.

use tokio::runtime::{Builder, Runtime};

use super::until;
use crate::support::{database, emit, open, read_types, reading};

/// What is not inside `block_on` of it stands still.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn fault_5_a_reader_that_stood_still_goes_on_from_what_others_have_settled() {
    let (world, frozen) = (runtime(), runtime());
    let database = world.block_on(database());
    let mut connection = world.block_on(async { database.connect().await.unwrap() });
    world.block_on(emit(&mut connection, "before", "k"));
    let mut reader = frozen.block_on(open(&database, reading("test")));
    assert_eq!(frozen.block_on(read_types(&mut reader, 1)), ["before"]);

    world.block_on(async {
        for _ in 0..20 {
            emit(&mut connection, "meanwhile", "k").await;
        }
        until(&mut connection, "select bool_and(expires_at < clock_timestamp()) from postrider.readers")
            .await;
        let mut other = open(&database, reading("test")).await;
        assert_eq!(read_types(&mut other, 20).await, ["meanwhile"; 20]);
        other.close().await.unwrap();
        emit(&mut connection, "after", "k").await;
    });
    assert_eq!(frozen.block_on(read_types(&mut reader, 1)), ["after"]);
}
