//! What a relay could not do in lanes that others have now is not its trouble any more.

use std::time::{Duration, Instant};

use postrider_relay::{Relay, State};

use super::{ALIVE, DEAD, first, lanes, run, second, waits};
use crate::support::{Answer, PATIENCE, Probe, database, emit, sink};

async fn state(relay: &Relay, is_it: impl Fn(&State) -> bool) {
    let begun = Instant::now();
    while !is_it(&relay.status()[0].state) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", relay.status());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Who has nothing left to settle is not kept from anything by a settlement that failed.
#[tokio::test(flavor = "multi_thread")]
async fn a_settlement_that_failed_is_no_trouble_when_others_have_its_lanes() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let probe = Probe::new();
    let relay = first(&database, sink("probe", probe.target()));
    lanes(&relay, 16).await;
    run(
        &mut admin,
        "create function no_space() returns trigger language plpgsql as $$
         begin
             if exists (select from postrider.leases l join postrider.readers r on r.reader = l.owner
                        where l.sink = new.sink and l.epoch = new.epoch and r.name = 'first') then
                 raise disk_full using message = 'no space left';
             end if;
             return new;
         end $$;
         create trigger no_space before insert on postrider.progress for each row execute function no_space()",
    )
    .await;
    emit(&mut admin, "one", Some("k")).await;
    state(
        &relay,
        |state| matches!(state, State::Disconnected { reason } if reason.contains("no space left")),
    )
    .await;

    run(&mut admin, DEAD).await;
    let reader = second(&database, 1).await;
    state(&relay, |state| *state == State::Standby).await;
    run(&mut admin, ALIVE).await;
    reader.close().await.unwrap();
    relay.stop().await;
}

/// Nor is what it could not deliver.
#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_is_away_is_no_trouble_when_others_have_the_lanes() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let probe = Probe::answering(|_| Answer::Unavailable);
    let relay = first(&database, sink("probe", probe.target()));
    lanes(&relay, 16).await;
    emit(&mut admin, "one", Some("k")).await;
    waits(&relay).await;

    run(&mut admin, DEAD).await;
    let reader = second(&database, 1).await;
    state(&relay, |state| *state == State::Standby).await;
    // And when they come back there is nothing to deliver.
    run(&mut admin, ALIVE).await;
    reader.close().await.unwrap();
    lanes(&relay, 16).await;
    state(&relay, |state| *state == State::Running).await;
    relay.stop().await;
}
