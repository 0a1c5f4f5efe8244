//! The ring is full of what somebody still has to get, or of more than it may have.

use std::time::{Duration, Instant};

use postrider_relay::{Relay, State};
use sqlx::PgConnection;

use super::{eventually, stays};
use crate::support::{Answer, PATIENCE, Probe, assert_in_order, database, emit_many, settings, sink, until};

const STANDS: &str = "select count(distinct slot) < 8
        and (array_agg(slot order by seq desc))[1] = coalesce(pg_sequence_last_value('postrider.slot'), 0)
    from postrider.events";

async fn rows(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar("select count(*) from postrider.events").fetch_one(connection).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_44_a_slot_with_undelivered_rows_is_never_emptied() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let (fine, away) = (Probe::new(), Probe::answering(|_| Answer::Unavailable));
    let sinks = vec![sink("away", away.target()), sink("fine", fine.target())];
    let mut settings = settings(&database, sinks);
    // Nothing has to be kept, and the ring is turned all the time.
    settings.log.retention = Duration::ZERO;
    settings.log.max_slot_size = Some(1);
    settings.log.sweep = Duration::from_millis(20);
    settings.log.lease = Duration::from_millis(300);
    let relay = Relay::start(settings).unwrap();
    // More often than the ring has slots.
    for turn in 0..12_i64 {
        emit_many(&mut writer, turn * 100, 100, 10).await;
        fine.wait_for(usize::try_from(turn + 1).unwrap() * 100).await;
        // As long as there is a free one to turn to. It turns also while the current one is empty, so what counts is where they are.
        let begun = Instant::now();
        while sqlx::query_scalar::<_, bool>(STANDS).fetch_one(&mut writer).await.unwrap() {
            assert!(begun.elapsed() < PATIENCE, "turn {turn}: the ring stands still");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert_eq!(rows(&mut writer).await, 1200, "one of them has nothing yet");
    let slots: i64 = sqlx::query_scalar("select count(distinct slot) from postrider.events")
        .fetch_one(&mut writer)
        .await
        .unwrap();
    assert_eq!(slots, 8, "the whole ring is full");
    eventually("it waits", || matches!(relay.status()[0].state, State::Waiting { .. })).await;
    // Who is in the way is said to whoever asks the database: of every slot that is not written just now, and why.
    until(
        &mut writer,
        "select count(*) = 7 and bool_and(held_by = array['away'] and bytes > 0) from postrider.slots where not is_current",
    )
    .await;
    until(&mut writer, "select count(*) = 1 from postrider.troubles where sink = 'away' and trouble like '%the probe is away%'")
        .await;

    away.answer(|_| Answer::Take);
    assert_in_order(&away.wait_for(1200).await);
    // Then it may go.
    eventually("all is settled", || relay.status().iter().all(|sink| sink.in_flight == 0)).await;
    until(&mut writer, "select count(*) < 1200 from postrider.events").await;
    assert_eq!((away.count(), fine.count()), (1200, 1200));
    relay.stop().await;
}

/// With a limit of its size the log is kept small by what is delivered, and only by that.
#[tokio::test(flavor = "multi_thread")]
async fn fault_44_a_limit_of_the_log_s_size_removes_what_is_delivered_and_nothing_else() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let (fine, away) = (Probe::new(), Probe::answering(|_| Answer::Unavailable));
    let mut settings = settings(&database, vec![sink("away", away.target()), sink("fine", fine.target())]);
    settings.log.max_log_size = Some(1);
    settings.log.sweep = Duration::from_millis(20);
    settings.log.lease = Duration::from_millis(300);
    let relay = Relay::start(settings).unwrap();
    emit_many(&mut writer, 0, 500, 10).await;
    fine.wait_for(500).await;
    // Closed at its share, and there it stays as long as somebody has not got it.
    until(&mut writer, "select coalesce(pg_sequence_last_value('postrider.slot'), 0) > 0").await;
    emit_many(&mut writer, 500, 500, 10).await;
    fine.wait_for(1000).await;
    stays("everything is there", Duration::from_millis(300), || relay.status().len() == 2).await;
    assert_eq!(rows(&mut writer).await, 1000);

    away.answer(|_| Answer::Take);
    assert_in_order(&away.wait_for(1000).await);
    until(&mut writer, "select count(*) < 1000 from postrider.events").await;
    relay.stop().await;
}
