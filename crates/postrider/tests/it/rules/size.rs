//! The rules of keeping the log below a size.

use std::time::Duration;

use postrider::log::ring::{self, HeldSlot, Reason, Retention, Shortened, Turn};
use sqlx::PgConnection;

use super::Hand;
use crate::support::{database, emit, run};

const DAY: Retention =
    Retention { keep: Duration::from_hours(24), max_slot_bytes: None, max_log_bytes: None };

/// The slots that have events, with how many.
async fn filled(connection: &mut PgConnection) -> Vec<(i16, i64)> {
    sqlx::query_as("select slot, count(*) from postrider.events group by slot order by slot")
        .fetch_all(connection)
        .await
        .unwrap()
}

async fn bytes(connection: &mut PgConnection) -> u64 {
    let bytes: i64 = sqlx::query_scalar("select sum(bytes)::bigint from postrider.slots")
        .fetch_one(connection)
        .await
        .unwrap();
    bytes.unsigned_abs()
}

/// Fills slots 0 to 2 with about a megabyte each and begins slot 3.
async fn fill_three(writer: &mut PgConnection) {
    for slot in 0..3 {
        run(
            writer,
            "select count(postrider.emit('full', json_build_object('x', repeat('y', 900)), key => n::text)) from generate_series(1, 1000) n",
        )
        .await;
        let turned = ring::turn(writer, Retention { max_slot_bytes: Some(1), ..DAY }).await.unwrap();
        assert_eq!(turned, Turn::To(slot + 1));
    }
}

#[tokio::test]
async fn above_its_size_the_log_loses_delivered_events_the_oldest_first() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let mut reader = Hand::open(&database).await;
    fill_three(&mut writer).await;
    reader.look_until_quiet().await;
    reader.settle().await;
    let all = bytes(&mut writer).await;

    // Off by default, and nothing to do below it.
    for retention in [DAY, Retention { max_log_bytes: Some(all), ..DAY }] {
        assert_eq!(ring::shorten(&mut writer, retention).await.unwrap(), Shortened::default());
    }
    assert_eq!(filled(&mut writer).await, [(0, 1000), (1, 1000), (2, 1000)]);

    // One slot is enough, then two.
    let limited = Retention { max_log_bytes: Some(all - 100_000), ..DAY };
    let one = ring::shorten(&mut writer, limited).await.unwrap();
    assert_eq!(one, Shortened { slots: vec![0], held: vec![] });
    assert_eq!(filled(&mut writer).await, [(1, 1000), (2, 1000)]);
    let tiny = Retention { max_log_bytes: Some(1), ..DAY };
    assert_eq!(ring::shorten(&mut writer, tiny).await.unwrap().slots, [1, 2]);
    assert_eq!(filled(&mut writer).await, []);
}

#[tokio::test]
async fn however_large_the_log_is_what_is_owed_stays_and_who_holds_it_is_named() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let mut reader = Hand::open(&database).await;
    emit(&mut writer, "late", "k").await;
    reader.look().await;
    let mut slow = database.connect().await.unwrap();
    run(&mut slow, "begin").await;
    emit(&mut slow, "slow", "k").await;
    fill_three(&mut writer).await;
    let tiny = Retention { max_log_bytes: Some(1), ..DAY };
    let owed = |slot| HeldSlot { slot, reason: Reason::Owed(vec!["by hand".to_owned()]) };
    let held = ring::shorten(&mut writer, tiny).await.unwrap();
    assert_eq!(held, Shortened { slots: vec![], held: vec![owed(0), owed(1), owed(2)] });
    assert_eq!(held.holders(), ["by hand"]);

    // Everything that can be seen is settled; an open transaction has still written into the first.
    reader.look_until_quiet().await;
    reader.settle().await;
    let in_use = HeldSlot { slot: 0, reason: Reason::InUse };
    assert_eq!(
        ring::shorten(&mut writer, tiny).await.unwrap(),
        Shortened { slots: vec![1, 2], held: vec![in_use] }
    );
    run(&mut slow, "commit").await;
    assert_eq!(
        ring::shorten(&mut writer, tiny).await.unwrap(),
        Shortened { slots: vec![], held: vec![owed(0)] }
    );
    assert_eq!(reader.look_until_quiet().await, ["slow"]);
    reader.settle().await;
    assert_eq!(ring::shorten(&mut writer, tiny).await.unwrap().slots, [0]);
}

#[tokio::test]
async fn the_slot_that_is_written_is_closed_at_its_share() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let mut reader = Hand::open(&database).await;
    let limited = |bytes| Retention { max_log_bytes: Some(bytes), ..DAY };
    emit(&mut writer, "one", "k").await;
    assert_eq!(ring::turn(&mut writer, limited(8_000_000)).await.unwrap(), Turn::NotDue);
    for slot in 1..8 {
        assert_eq!(ring::turn(&mut writer, limited(8)).await.unwrap(), Turn::To(slot));
        emit(&mut writer, "one", "k").await;
    }
    // No slot is free, and that is no trouble of its own: what is too large is said by what shortens.
    assert_eq!(ring::turn(&mut writer, limited(8)).await.unwrap(), Turn::NotDue);
    reader.look_until_quiet().await;
    reader.settle().await;
    ring::shorten(&mut writer, limited(8)).await.unwrap();
    assert_eq!(filled(&mut writer).await, [(7, 1)]);
    assert_eq!(ring::turn(&mut writer, limited(8)).await.unwrap(), Turn::To(0));
}
