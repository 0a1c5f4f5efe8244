//! Too little memory, too few files, one core.

use postrider_relay::{Relay, RelayError, State};

use super::child::Child;
use super::load::Load;
use super::{all_delivered, eventually, run};
use crate::support::{PATIENCE, Probe, database, emit_many, settings, sink, start, until};

#[tokio::test(flavor = "multi_thread")]
async fn fault_115_over_the_memory_limit_a_relay_drains_hands_its_lanes_back_and_ends() {
    let database = database().await;
    let probe = Probe::new();
    let mut limited = settings(&database, vec![sink("probe", probe.target())]);
    limited.memory_limit = 1 << 20;
    let mut relay = Relay::start(limited).unwrap();
    let load = Load::start(&database.url(), 2);
    // It works until then; whether it has too much is asked as soon as somebody waits for its end.
    probe.wait_for(1).await;
    let ended = tokio::time::timeout(PATIENCE, relay.ended()).await.unwrap();
    assert!(matches!(ended, RelayError::Memory { .. }), "{ended}");
    assert!(ended.to_string().contains("relay.memory_limit is 1048576"), "{ended}");
    relay.stop().await;
    // Its supervisor starts it anew; the lanes are free at once.
    let next = start(&database, vec![sink("probe", probe.target())]);
    eventually("it has all lanes", || next.status()[0].lanes.len() == 16).await;
    let ledger = load.stop().await;
    let report = all_delivered(&ledger, &probe).await;
    assert!(report.duplicated.is_empty(), "it drained: {report}");
    next.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_115_without_a_free_file_handle_a_relay_waits_and_goes_on() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let mut child = Child::start(&database.url(), &[]);
    child.open_gate().await;
    emit_many(&mut writer, 0, 1000, 100).await;
    child.took(1000).await;
    // What is open stays open; what it loses it cannot open again.
    child.limit_files(4);
    run(
        &mut writer,
        "select pg_terminate_backend(pid) from pg_stat_activity
         where datname = current_database() and application_name like 'postrider%'",
    )
    .await;
    child.is(&["disconnected", "failed"]).await;
    child.says("Too many open files").await;
    emit_many(&mut writer, 1000, 1000, 100).await;
    child.limit_files(1024);
    let again = child.took(2000).await;
    assert_eq!(again, 0);
    child.is(&[State::Running.word()]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_115_one_core_64_files_and_no_place_for_its_messages_are_enough() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    // Its standard error is a disk that is full.
    let limits = "ulimit -n 64; exec taskset -c 0 \"$0\" \"$@\" 2>/dev/full";
    let mut child = Child::start(&database.url(), &["sh", "-c", limits]);
    emit_many(&mut writer, 0, 5000, 100).await;
    // It has something to say, and no place for it.
    child.says("the gate is closed").await;
    child.open_gate().await;
    let again = child.took(5000).await;
    assert_eq!(again, 0, "each once");
    until(&mut writer, "select sum(events) = 0 from postrider.backlog").await;
}
