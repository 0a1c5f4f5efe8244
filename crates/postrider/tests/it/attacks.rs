//! Attacks that once succeeded.

use std::time::Duration;

use postrider::log::ring::{self, Retention, Turn};
use postrider::log::{Record, bell, cursor::Cursor};
use sqlx::PgConnection;

use crate::rules::Hand;
use crate::support::{PATIENCE, database, database_of, emit, next, open, reading, run};

/// A reader whose lanes are all busy under a backlog must still give up what is beyond its share.
#[tokio::test]
async fn a_second_reader_gets_its_share_under_a_backlog() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let mut options = reading("test");
    options.page = 5;
    let mut first = open(&database, options.clone()).await;
    run(
        &mut writer,
        "select count(postrider.emit('t', '{}'::json, key => n::text)) from generate_series(1, 60000) n",
    )
    .await;
    let second = open(&database, options).await;
    let shared = async {
        while second.lanes().len() < 8 {
            let batch = next(&mut first).await;
            first.settle(&batch).await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, shared).await.expect("the first reader keeps every lane");
    assert_eq!(first.lanes().len(), 8);
}

/// A lane that is further inside a late set than the others of its group stays there.
#[tokio::test]
async fn a_lane_never_goes_back_inside_a_late_set() {
    let database = database().await;
    let (mut slow, mut fast) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    let mut reader = Hand::open(&database).await;
    run(&mut slow, "begin").await;
    for n in 0..60 {
        // Two keys of different lanes, all but the first events of one of them behind the other's.
        emit(&mut slow, &n.to_string(), if n < 20 || n % 2 == 0 { "b0" } else { "a" }).await;
    }
    emit(&mut fast, "fast", "zz").await;
    reader.look().await;
    run(&mut slow, "commit").await;
    reader.page = 3;
    let round = reader.peek().await;
    // The lane of "a" is settled to its end, the other one only just begun: both are inside the same late set, and one is further.
    let settled: Vec<String> = reader
        .move_past(&round)
        .into_iter()
        .filter(|n| n.parse::<i32>().is_ok_and(|n| n == 0 || n >= 20 && n % 2 == 1))
        .collect();
    assert!(settled.len() > 10, "{settled:?}");
    for (lane, page) in &round.pages {
        let delivered = if page.records.iter().any(|record: &Record| record.key.as_deref() == Some("a")) {
            usize::MAX
        } else {
            1
        };
        reader.cursors.insert(*lane, page.cursor_after(delivered));
    }
    reader.page = 1;
    let mut again = Vec::new();
    for _ in 0..100 {
        // As a reader does: each group of lanes by itself.
        let cursors = std::mem::take(&mut reader.cursors);
        let mut moved = std::collections::BTreeMap::new();
        let mut rest: Vec<(i16, Cursor)> = cursors.into_iter().collect();
        while let Some((_, first)) = rest.first().cloned() {
            let (group, others) = rest.into_iter().partition(|(_, cursor)| cursor.reads_with(&first));
            rest = others;
            reader.cursors = Vec::into_iter(group).collect();
            again.extend(reader.look().await);
            moved.append(&mut reader.cursors);
        }
        reader.cursors = moved;
    }
    let twice: Vec<&String> = again.iter().filter(|n| settled.contains(n)).collect();
    assert!(twice.is_empty(), "read again: {twice:?}");
    assert_eq!(again.len() + settled.len(), 60, "{again:?}");
}

/// A cursor that is missing cannot say what it is owed.
#[tokio::test]
async fn a_missing_cursor_holds_the_ring() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    open(&database, reading("test")).await.close().await.unwrap();
    emit(&mut connection, "owed", "k").await;
    run(&mut connection, "delete from postrider.progress").await;
    let at_once = Retention { keep: Duration::ZERO, max_slot_bytes: None, max_log_bytes: None };
    for _ in 0..10 {
        let turned = ring::turn(&mut connection, at_once).await.unwrap();
        assert!(matches!(turned, Turn::Held(_)), "{turned:?}");
    }
    let events: i64 =
        sqlx::query_scalar("select count(*) from postrider.events").fetch_one(&mut connection).await.unwrap();
    assert_eq!(events, 1);
}

/// Anybody may notify anything, on our channel too.
#[tokio::test]
async fn a_forged_ticket_does_not_silence_the_bell() {
    async fn sequences(connection: &mut PgConnection) -> (i64, i64) {
        sqlx::query_as(
            "select pg_sequence_last_value('postrider.armed'), pg_sequence_last_value('postrider.disarmed')",
        )
        .fetch_one(connection)
        .await
        .unwrap()
    }
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let ticket = bell::take_ticket(&mut connection, Duration::from_secs(5)).await.unwrap();
    bell::disarm(&mut connection, u64::MAX).await.unwrap();
    assert_eq!(sequences(&mut connection).await, (ticket.cast_signed(), ticket.cast_signed()));
    let next_ticket = bell::take_ticket(&mut connection, Duration::from_secs(5)).await.unwrap();
    assert_eq!(
        sequences(&mut connection).await,
        (next_ticket.cast_signed(), ticket.cast_signed()),
        "armed again"
    );
}

/// Settling an old batch once more does not move anything back.
#[tokio::test]
async fn settling_twice_changes_nothing() {
    let database = database_of(postrider_testkit::Version::default()).await;
    let mut writer = database.connect().await.unwrap();
    let mut reader = open(&database, reading("test")).await;
    let mut batches = Vec::new();
    for n in 0..3 {
        emit(&mut writer, &n.to_string(), "k").await;
        let batch = next(&mut reader).await;
        reader.settle(&batch).await.unwrap();
        batches.push(batch);
    }
    reader.settle(&batches[0]).await.unwrap();
    emit(&mut writer, "last", "k").await;
    let batch = next(&mut reader).await;
    reader.settle(&batch).await.unwrap();
    let lag: i64 = sqlx::query_scalar("select sum(events)::bigint from postrider.backlog")
        .fetch_one(&mut writer)
        .await
        .unwrap();
    assert_eq!(lag, 0);
}
