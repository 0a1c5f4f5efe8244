//! The schema is upgraded under load, with relays of two versions at work.

use std::time::Duration;

use postrider_relay::{Relay, RelayError, State};

use super::load::Load;
use super::{all_delivered, run};
use crate::support::{PATIENCE, Probe, database, settings, sink};

#[tokio::test(flavor = "multi_thread")]
async fn fault_43_a_relay_that_does_not_know_the_schema_stops_with_a_remedy_and_others_go_on() {
    /// What one of them may have sent twice.
    const WINDOW: u32 = 100;
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let old = format!("old{}", rand::random::<u32>());
    run(&mut admin, &format!("create role {old} login in role postrider_relay")).await;
    let probe = Probe::new();
    let start = |url: String, name: &str| {
        let mut settings = settings(&database, vec![sink("probe", probe.target())]);
        settings.database = url.parse().unwrap();
        settings.name = name.to_owned();
        settings.sinks[0].max_in_flight = WINDOW;
        settings.sinks[0].max_batch = WINDOW / 2;
        settings.log.sweep = Duration::from_millis(200);
        // Nothing but the upgrade takes a lane from anybody, not even a machine that stands still for some seconds.
        settings.log.lease = Duration::from_secs(9);
        Relay::start(settings).unwrap()
    };
    let mut old_relay = start(database.url_as(&old), "old");
    let mut new_relay = start(database.url(), "new");
    let load = Load::start(&database.url(), 3);
    // Both at work.
    super::eventually("both hold lanes", || {
        old_relay.status()[0].lanes.len() == 8 && new_relay.status()[0].lanes.len() == 8
    })
    .await;
    load.more(300).await;

    // Installing once more what is there, as every deploy does, is noticed by nobody.
    postrider::schema::install(&mut admin, &postrider::schema::Install::default()).await.unwrap();
    load.more(100).await;
    assert!(super::state(&old_relay) == State::Running && super::state(&new_relay) == State::Running);

    // An upgrade as it may come: more columns, a new table, a new version. This program is the old and the new one at once, so the
    // version depends on who asks.
    let version = postrider::schema::NEWEST;
    run(
        &mut admin,
        &format!(
            "begin;
             alter table postrider.events add column colour text;
             create table postrider.colours (colour text primary key);
             create or replace function postrider.schema_version() returns integer language sql stable parallel safe
                 as 'select case when current_user = ''{old}'' then {} else {version} end';
             commit",
            version + 1
        ),
    )
    .await;
    let ended = tokio::time::timeout(PATIENCE, old_relay.ended()).await.unwrap();
    assert!(matches!(ended, RelayError::Log(postrider::log::Error::SchemaVersion { .. })), "{ended}");
    assert!(ended.to_string().contains("use a newer postrider"), "{ended}");
    old_relay.stop().await;
    super::eventually("the other one has all lanes", || new_relay.status()[0].lanes.len() == 16).await;
    load.more(300).await;
    let ledger = load.stop().await;
    let report = all_delivered(&ledger, &probe).await;
    // What the old one had in flight.
    assert!(report.duplicated.count <= WINDOW as usize, "{report}");
    assert!(tokio::time::timeout(Duration::from_millis(300), new_relay.ended()).await.is_err(), "it goes on");
    new_relay.stop().await;
    run(&mut admin, &format!("drop role {old}")).await;
}
