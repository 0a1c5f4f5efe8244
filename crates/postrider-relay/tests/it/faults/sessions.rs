//! Settings of the role that would break a session of ours.

use std::time::Duration;

use postrider_relay::{Relay, Retry, SinkSettings};

use super::load::Load;
use super::{all_delivered, proxy_of, reason, run, runs, state};
use crate::support::{Answer, Probe, database, settings, sink, until};

#[tokio::test(flavor = "multi_thread")]
async fn fault_29_timeouts_of_the_role_end_nothing_of_ours() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let role = format!("r{}", rand::random::<u32>());
    run(
        &mut admin,
        &format!(
            "create role {role} login in role postrider_relay;
             alter role {role} set statement_timeout = '5ms'; alter role {role} set lock_timeout = '1ms';
             alter role {role} set idle_in_transaction_session_timeout = '1ms';
             alter role {role} set idle_session_timeout = '300ms';
             alter role {role} set enable_indexscan = off; alter role {role} set synchronous_commit = off"
        ),
    )
    .await;
    // Some are refused at first: parking and retrying go through other connections.
    let probe = Probe::answering(|message| {
        if message.record.r#type.ends_with('7') && rand::random() { Answer::Refuse } else { Answer::Take }
    });
    let retry = Retry { first: Duration::from_millis(5), factor: 1.0, max_attempts: 100, ..Retry::default() };
    let sinks = vec![SinkSettings { retry, ..sink("probe", probe.target()) }];
    let mut settings = settings(&database, sinks);
    settings.database = database.url_as(&role).parse().unwrap();
    let relay = Relay::start(settings).unwrap();
    let mut load = Load::start(&database.url(), 2);
    probe.wait_for(100).await;
    let sessions = "select array_agg(pid order by pid) from pg_stat_activity
        where datname = current_database() and application_name = 'postrider'";
    let before: Vec<i32> = sqlx::query_scalar(sessions).fetch_one(&mut admin).await.unwrap();
    load.more(1000).await;
    let done = load.mark(&mut admin, &probe).await;
    assert!(done < Duration::from_secs(30), "{done:?}");
    // Idle for longer than the role may be.
    until(&mut admin, "select pg_sleep(0.7) is not null").await;
    load.mark(&mut admin, &probe).await;
    let after: Vec<i32> = sqlx::query_scalar(sessions).fetch_one(&mut admin).await.unwrap();
    assert_eq!(before, after, "the same sessions all the while");
    let ledger = load.stop().await;
    let report = all_delivered(&ledger, &probe).await;
    assert!(report.duplicated.is_empty(), "{report}");
    relay.stop().await;
    run(&mut admin, &format!("drop role {role}")).await;
}

/// A round that takes too long, here because the line is slow, must not be tried in the same way for ever.
#[tokio::test(flavor = "multi_thread")]
async fn fault_29_a_round_that_takes_too_long_is_read_with_smaller_pages() {
    const EVENTS: usize = 1500;
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    run(
        &mut writer,
        "select count(postrider.emit(n::text, json_build_object('x', repeat('x', 500)), key => 'k' || n % 50))
         from generate_series(1, 1500) n",
    )
    .await;
    let proxy = proxy_of(&database).await;
    // About four seconds for all of it; a round may take one.
    proxy.throttle(250_000);
    let probe = Probe::new();
    let mut settings = settings(&database, vec![sink("probe", probe.target())]);
    settings.database = database.url_via(proxy.port()).parse().unwrap();
    settings.log.patience = Duration::from_secs(1);
    settings.log.lease = Duration::from_secs(3);
    let relay = Relay::start(settings).unwrap();
    let begun = std::time::Instant::now();
    let mut said = String::new();
    while probe.count() < EVENTS {
        said = reason(&relay).unwrap_or(said);
        assert!(
            begun.elapsed() < crate::support::PATIENCE,
            "{} have come, {:?}",
            probe.count(),
            state(&relay)
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    crate::support::assert_in_order(&probe.taken());
    assert_eq!(probe.count(), EVENTS, "each once");
    assert!(said.contains("the database did not answer within"), "it says why: {said:?}");
    proxy.heal();
    runs(&relay).await;
    relay.stop().await;
}
