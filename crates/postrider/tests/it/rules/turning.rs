//! Steps of turning the rings that matter only when something else happens in the middle of it.

use std::time::Duration;

use postrider::log::ring::{self, Reason, Retention, Turn};
use sqlx::Connection as _;

use super::Hand;
use super::ring::{AT_ONCE, count, somebody_waits_for};
use crate::support::{database, emit, run};

/// A settling reads which table of progress is written and is held up; the ring of progress turns three times; then it commits, into the
/// table that is emptied next.
#[tokio::test]
async fn progress_that_was_written_into_an_old_table_is_carried_along() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let mut reader = Hand::open(&database).await;
    emit(&mut writer, "one", "k").await;
    assert_eq!(reader.look().await, ["one"]);
    run(&mut reader.connection, "begin; set local idle_in_transaction_session_timeout = 0").await;
    reader.settle().await;
    for slot in 1..4 {
        assert_eq!(ring::turn_progress_beyond(&mut writer, 0).await.unwrap(), Some(slot));
    }
    assert_eq!(ring::turn_progress_beyond(&mut writer, 0).await.unwrap(), None, "it is being written");
    run(&mut reader.connection, "commit").await;
    assert_eq!(ring::turn_progress_beyond(&mut writer, 0).await.unwrap(), Some(0));
    reader.resume().await;
    assert_eq!(reader.look_until_quiet().await, [""; 0], "settled, and delivered again");
}

/// Under an older snapshot the check would not see what has committed since: the slot is not emptied, whatever the check says.
#[tokio::test]
async fn a_slot_is_emptied_only_under_read_committed() {
    for (begin, refused) in [
        ("begin isolation level read committed", Reason::Owed(vec!["by hand".to_owned()])),
        ("begin isolation level repeatable read", Reason::OldSnapshot),
        ("begin isolation level serializable", Reason::OldSnapshot),
    ] {
        let database = database().await;
        let (mut slow, mut rotator) = (database.connect().await.unwrap(), database.connect().await.unwrap());
        let mut reader = Hand::open(&database).await;
        run(&mut slow, "begin").await;
        emit(&mut slow, "owed", "a").await;
        run(&mut rotator, "select setval('postrider.slot', 1)").await;
        let mut turning = rotator.begin_with(begin).await.unwrap();
        assert!(ring::owed(&mut turning, 0).await.unwrap().is_empty(), "not committed, so not owed");
        run(&mut slow, "commit").await;
        assert_eq!(ring::empty(&mut turning, 0, AT_ONCE).await.unwrap(), Some(refused));
        turning.commit().await.unwrap();
        assert_eq!(reader.look_until_quiet().await, ["owed"]);
    }
}

/// A rotator commits before it sets the next slot. Another one that comes in between reads the old one, and must not empty the slot that
/// has been begun when it gets there: that one has no age yet, so its retention does not protect it.
#[tokio::test]
async fn a_slot_that_becomes_the_current_one_is_not_emptied() {
    let small = Retention { keep: Duration::from_hours(24), max_slot_bytes: Some(1), max_log_bytes: None };
    let database = database().await;
    let (mut first, mut second) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    let (mut gate, mut watcher) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    let mut reader = Hand::open(&database).await;
    assert_eq!(ring::turn(&mut first, small).await.unwrap(), Turn::To(1));
    emit(&mut first, "kept", "k").await;
    assert_eq!(reader.look().await, ["kept"]);
    reader.settle().await;
    // As the second one finds it. It is stopped where it asks for the size of what it takes for the current slot.
    run(&mut first, "select setval('postrider.slot', 0)").await;
    run(&mut gate, "begin; lock table postrider.events_0 in access exclusive mode").await;
    let turn = tokio::spawn(async move { ring::turn(&mut second, small).await.unwrap() });
    somebody_waits_for(&mut watcher, "postrider.events_0").await;
    run(&mut first, "select setval('postrider.slot', 1)").await;
    run(&mut gate, "commit").await;
    assert_eq!(turn.await.unwrap(), Turn::To(2));
    assert_eq!(count(&mut first).await, 1, "emptied before its time");
}
