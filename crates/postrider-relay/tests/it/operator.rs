//! What an operator does to a sink while a relay feeds it.

use std::time::Duration;

use postrider::log::sink as known;
use postrider_relay::State;

use crate::support::{PATIENCE, Probe, database, emit, emit_many, sink, start, until};

/// A sink that is forgotten under a relay is created again, as it is configured; it does not stand still and look well.
#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_is_forgotten_under_a_relay_begins_anew_and_that_is_said() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let probe = Probe::new();
    let relay = start(&database, vec![sink("probe", probe.target())]);
    emit_many(&mut writer, 0, 3, 3).await;
    probe.wait_for(3).await;
    until(&mut writer, "select coalesce(sum(events), 0) = 0 from postrider.backlog").await;
    assert!(known::forget(&mut writer, "probe").await.unwrap());
    let watcher = relay.watcher();
    let said = async {
        loop {
            match &watcher()[0].state {
                State::Failed { reason } => return reason.clone(),
                _ => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    };
    let reason = tokio::time::timeout(PATIENCE, said).await.expect("it says what happened");
    assert!(reason.contains("was forgotten while this reader read it"), "{reason}");
    // It begins with the first event, as it is configured.
    probe.wait_for(6).await;
    emit(&mut writer, "after", Some("a")).await;
    let taken = probe.wait_for(7).await;
    assert_eq!(taken[6].r#type, "after");
    until(&mut writer, "select coalesce(sum(events), 0) = 0 from postrider.backlog").await;
    relay.stop().await;
    assert_eq!(probe.count(), 7);
}

/// Also one whose connection is lost before it hears of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_is_forgotten_while_the_relay_is_cut_off_begins_anew() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let probe = Probe::new();
    let relay = start(&database, vec![sink("probe", probe.target())]);
    emit_many(&mut writer, 0, 3, 3).await;
    probe.wait_for(3).await;
    until(&mut writer, "select coalesce(sum(events), 0) = 0 from postrider.backlog").await;
    sqlx::raw_sql(
        "begin;
         delete from postrider.progress;
         delete from postrider.sinks;
         select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid();
         commit",
    )
    .execute(&mut writer)
    .await
    .unwrap();
    probe.wait_for(6).await;
    emit(&mut writer, "after", Some("a")).await;
    probe.wait_for(7).await;
    relay.stop().await;
    assert_eq!(probe.count(), 7);
}
