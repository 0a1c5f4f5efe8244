//! A reader that stands still for longer than its lease, as in a paused virtual machine.

use sqlx::PgConnection;
use tokio::runtime::{Builder, Runtime};

use super::notify::ASLEEP;
use super::until;
use crate::support::{PATIENCE, database, emit, next, open, read_types, reading};

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

/// Waits for a heartbeat of the only reader.
async fn heartbeat(connection: &mut PgConnection) {
    let mut last = async || -> String {
        let last = "select expires_at::text from postrider.readers";
        sqlx::query_scalar(last).fetch_one(&mut *connection).await.unwrap()
    };
    let before = last().await;
    while last().await == before {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// It had read on when it stood still: one batch waits to be taken, the next to be handed over. Others deliver both meanwhile.
#[test]
fn fault_5_what_was_read_ahead_of_standing_still_is_not_handed_out() {
    let (world, frozen) = (runtime(), runtime());
    let database = world.block_on(database());
    let mut connection = world.block_on(async { database.connect().await.unwrap() });
    world.block_on(emit(&mut connection, "first", "k"));
    let mut reader = frozen.block_on(async {
        let reader = open(&database, reading("test")).await;
        let mut connection = database.connect().await.unwrap();
        until(&mut connection, ASLEEP).await;
        emit(&mut connection, "second", "k").await;
        // The first may come before it has heard of it.
        heartbeat(&mut connection).await;
        heartbeat(&mut connection).await;
        reader
    });
    let before = reader.tenures();

    world.block_on(async {
        until(&mut connection, "select bool_and(expires_at < clock_timestamp()) from postrider.readers")
            .await;
        let mut other = open(&database, reading("test")).await;
        assert_eq!(read_types(&mut other, 2).await, ["first", "second"]);
        other.close().await.unwrap();
        emit(&mut connection, "after", "k").await;
    });
    frozen.block_on(async {
        let has_them_anew = async {
            while reader.tenures().len() < 16 || reader.tenures() == before {
                reader.changed().await;
            }
        };
        tokio::time::timeout(PATIENCE, has_them_anew).await.expect("it does not get its lanes again");
        loop {
            let batch = next(&mut reader).await;
            let types: Vec<&str> = batch.records().map(|record| record.r#type.as_str()).collect();
            if types == ["after"] {
                break;
            }
            // Handed over before it stood still, and whoever takes it can tell.
            assert_eq!(types, ["first"]);
            assert!(batch.lanes().all(|(lane, _)| !reader.holds(&batch, lane)));
        }
    });
}
