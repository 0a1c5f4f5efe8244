//! The engine: reading, delivering and settling together.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use postrider_relay::sinks::Target;
use postrider_relay::sinks::file::FileConfig;
use postrider_relay::{Ordering, Retry, SinkSettings, State};
use sqlx::Row as _;

use crate::scratch::Scratch;
use crate::support::{Answer, Probe, assert_in_order, database, emit, emit_many, sink, start, until};

#[tokio::test(flavor = "multi_thread")]
async fn every_event_reaches_every_sink_once_and_in_order() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    emit_many(&mut writer, 0, 20_000, 50).await;
    let (one, two) = (Probe::new(), Probe::new());
    let relay = start(&database, vec![sink("one", one.target()), sink("two", two.target())]);
    emit_many(&mut writer, 20_000, 5_000, 50).await;
    for probe in [&one, &two] {
        let taken = probe.wait_for(25_000).await;
        assert_in_order(&taken);
    }
    relay.stop().await;
    assert_eq!(one.taken().len(), 25_000);
    let backlog: i64 = sqlx::query_scalar("select coalesce(sum(events), 0)::bigint from postrider.backlog")
        .fetch_one(&mut writer)
        .await
        .unwrap();
    assert_eq!(backlog, 0, "everything is settled");
}

/// What comes in while the relay waits is delivered when the sink is back, in order.
#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_sink_loses_nothing() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let probe = Probe::answering(|_| Answer::Unavailable);
    let relay = start(&database, vec![sink("probe", probe.target())]);
    emit_many(&mut writer, 0, 1_000, 20).await;
    loop {
        if matches!(relay.status()[0].state, State::Waiting { attempt: 2.., .. }) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // It comes and goes.
    probe.answer(|message| {
        if message.id.to_string().ends_with("77") && rand::random() {
            Answer::Unavailable
        } else {
            Answer::Take
        }
    });
    assert_in_order(&probe.wait_for(1_000).await);
    relay.stop().await;
    assert_eq!(probe.taken().len(), 1_000, "each once");
}

/// Refused for good: the event is dead with its history, later ones of its key wait behind it, the others flow.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_event_holds_its_key_and_nothing_else() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let probe = Probe::answering(
        |message| {
            if message.record.r#type == "bad" { Answer::Refuse } else { Answer::Take }
        },
    );
    let retry = Retry { max_attempts: 3, first: Duration::from_millis(10), ..Retry::default() };
    let settings = SinkSettings { retry, ..sink("probe", probe.target()) };
    let relay = start(&database, vec![settings]);
    for (event, key) in [("a1", "a"), ("bad", "a"), ("a3", "a"), ("b1", "b"), ("a4", "a"), ("b2", "b")] {
        emit(&mut writer, event, Some(key)).await;
    }
    until(&mut writer, "select exists (select from postrider.parked where state = 'dead')").await;
    until(&mut writer, "select count(*) = 2 from postrider.parked where state = 'behind'").await;
    let row = sqlx::query("select type, attempts, kind, reason, jsonb_array_length(history) from postrider.parked where state = 'dead'")
        .fetch_one(&mut writer)
        .await
        .unwrap();
    assert_eq!(row.get::<String, _>(0), "bad");
    assert_eq!(row.get::<i32, _>(1), 3);
    assert_eq!(row.get::<String, _>(2), "rejected");
    assert_eq!(row.get::<String, _>(3), "the probe says no");
    assert_eq!(row.get::<i32, _>(4), 3);
    let mut types: Vec<String> = probe.wait_for(3).await.into_iter().map(|taken| taken.r#type).collect();
    types.sort_unstable();
    assert_eq!(types, ["a1", "b1", "b2"]);

    // Somebody mends the sink and says: again.
    probe.answer(|_| Answer::Take);
    sqlx::query("update postrider.parked set state = 'waiting', attempts = 0, next_attempt_at = clock_timestamp() where state = 'dead'")
        .execute(&mut writer)
        .await
        .unwrap();
    let types: Vec<String> = probe.wait_for(6).await.into_iter().skip(3).map(|taken| taken.r#type).collect();
    assert_eq!(types, ["bad", "a3", "a4"]);
    until(&mut writer, "select not exists (select from postrider.parked)").await;
    emit(&mut writer, "a5", Some("a")).await;
    probe.wait_for(7).await;
    relay.stop().await;
    assert_eq!(probe.taken().len(), 7);
}

/// Events that wait behind a dead one are sent to nobody: nothing is learnt from them about a sink that is away.
#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_is_away_is_not_back_because_nothing_was_sent_to_it() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let probe = Probe::answering(|_| Answer::Refuse);
    let retry = Retry { max_attempts: 1, ..Retry::default() };
    let relay = start(&database, vec![SinkSettings { retry, ..sink("events", probe.target()) }]);
    emit(&mut writer, "bad", Some("a")).await;
    until(&mut writer, "select exists (select from postrider.parked where state = 'dead')").await;
    relay.stop().await;

    // A file below a file cannot be opened.
    let scratch = Scratch::new();
    std::fs::write(scratch.join("file"), "").unwrap();
    let target = Target::File(FileConfig::new(scratch.join("file/events.ndjson")));
    let relay = start(&database, vec![sink("events", target)]);
    let mut attempts = 0;
    while attempts < 4 {
        emit(&mut writer, "behind", Some("a")).await;
        until(&mut writer, "select count(*) = (select count(*) from postrider.events) from postrider.parked")
            .await;
        if let State::Waiting { attempt, .. } = relay.status()[0].state {
            assert!(attempt >= attempts, "it was there in between: {attempt} after {attempts}");
            attempts = attempt;
        }
    }
    relay.stop().await;
}

/// The database is asked for news once a second; a schedule in milliseconds must not wait for that.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_parked_is_tried_again_when_its_time_comes() {
    const REFUSALS: u32 = 40;
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let tries = AtomicU32::new(0);
    let probe =
        Probe::answering(
            move |_| {
                if tries.fetch_add(1, Relaxed) < REFUSALS { Answer::Refuse } else { Answer::Take }
            },
        );
    let retry = Retry { first: Duration::from_millis(5), factor: 1.0, max_attempts: 100, ..Retry::default() };
    let relay = start(&database, vec![SinkSettings { retry, ..sink("probe", probe.target()) }]);
    let begun = Instant::now();
    emit_many(&mut writer, 0, 1, 1).await;
    probe.wait_for(1).await;
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(1) * REFUSALS / 2, "{took:?} for {REFUSALS} refusals");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn relaxed_ordering_lets_later_events_pass() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let probe = Probe::answering(
        |message| {
            if message.record.r#type == "bad" { Answer::Refuse } else { Answer::Take }
        },
    );
    let settings = SinkSettings { ordering: Ordering::Relaxed, ..sink("probe", probe.target()) };
    let relay = start(&database, vec![settings]);
    for event in ["a1", "bad", "a3"] {
        emit(&mut writer, event, Some("a")).await;
    }
    let types: Vec<String> = probe.wait_for(2).await.into_iter().map(|taken| taken.r#type).collect();
    assert_eq!(types, ["a1", "a3"]);
    until(&mut writer, "select count(*) = 1 from postrider.parked").await;
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_sink_waits_and_goes_on() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let probe = Probe::new();
    let relay = start(&database, vec![sink("probe", probe.target())]);
    emit(&mut writer, "1", Some("a")).await;
    probe.wait_for(1).await;
    sqlx::query("update postrider.sinks set paused_at = now()").execute(&mut writer).await.unwrap();
    while relay.status()[0].state != State::Paused {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    emit(&mut writer, "2", Some("a")).await;
    sqlx::query("update postrider.sinks set paused_at = null").execute(&mut writer).await.unwrap();
    probe.wait_for(2).await;
    relay.stop().await;
}

/// What waited behind something when the ordering was strict does not wait any longer.
#[tokio::test(flavor = "multi_thread")]
async fn relaxed_ordering_releases_what_strict_ordering_held() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let probe = Probe::answering(
        |message| {
            if message.record.r#type == "bad" { Answer::Refuse } else { Answer::Take }
        },
    );
    let retry = Retry { max_attempts: 1, ..Retry::default() };
    let strict = SinkSettings { retry, ..sink("probe", probe.target()) };
    let relaxed = SinkSettings { ordering: Ordering::Relaxed, ..strict.clone() };
    let relay = start(&database, vec![strict]);
    for event in ["bad", "a2", "a3"] {
        emit(&mut writer, event, Some("a")).await;
    }
    until(&mut writer, "select count(*) = 2 from postrider.parked where state = 'behind'").await;
    relay.stop().await;
    assert_eq!(probe.count(), 0);

    let relay = start(&database, vec![relaxed]);
    let types: Vec<String> = probe.wait_for(2).await.into_iter().map(|taken| taken.r#type).collect();
    assert_eq!(types, ["a2", "a3"], "in the order in which they were parked");
    until(&mut writer, "select array_agg(state) = '{dead}' from postrider.parked").await;
    relay.stop().await;
    assert_eq!(probe.count(), 2);
}
