//! Progress cannot be stored: what was delivered must not be delivered over and over.

use std::time::Duration;

use postrider_relay::{Retry, SinkSettings};
use postrider_testkit::{PostgresServer, Settings, Version};

use super::load::Load;
use super::{all_delivered, compare, eventually, run, runs, says, state, stays};
use crate::support::{
    Answer, PATIENCE, Probe, assert_in_order, database, database_on, emit, emit_many, sink, start, until,
};

#[tokio::test(flavor = "multi_thread")]
async fn fault_30_a_deadlock_while_settling_is_tried_again() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    // One of a hundred is refused, so that settling also parks.
    let probe =
        Probe::answering(
            |message| {
                if message.record.r#type.ends_with("77") { Answer::Refuse } else { Answer::Take }
            },
        );
    let retry = Retry { first: Duration::from_mins(10), ..Retry::default() };
    let relay = start(&database, vec![SinkSettings { retry, ..sink("probe", probe.target()) }]);
    probe.wait_for(0).await;
    let mut other = database.connect().await.unwrap();
    // The relay is the one that gives up.
    run(&mut other, "set deadlock_timeout = '1min'").await;
    for round in 0..2 {
        run(&mut other, "begin; lock table postrider.parked in share row exclusive mode").await;
        // Of one key of a hundred all are refused.
        emit_many(&mut writer, round * 1000, 1000, 100).await;
        until(
            &mut writer,
            "select exists (select from pg_locks where relation = 'postrider.parked'::regclass and not granted
            and database = (select oid from pg_database where datname = current_database()))",
        )
        .await;
        run(&mut other, "update postrider.sinks set name = name; commit").await;
        until_parked(&mut writer, 10 * (round + 1)).await;
    }
    assert_in_order(&probe.wait_for(1980).await);
    let parked: Vec<(i64, String)> =
        sqlx::query_as("select type::bigint, state from postrider.parked order by place")
            .fetch_all(&mut writer)
            .await
            .unwrap();
    let wanted: Vec<(i64, String)> =
        (0..20).map(|n| (n * 100 + 77, if n == 0 { "waiting" } else { "behind" }.to_owned())).collect();
    assert_eq!(parked, wanted, "the others behind the first, in order");
    eventually("all is settled", || relay.status()[0].in_flight == 0).await;
    assert_eq!(probe.count(), 1980, "each once");
    let said = deadlocks(&mut writer).await;
    assert!(said >= 1, "no deadlock happened");
    relay.stop().await;
}

/// Read committed cannot meet one; a trigger of somebody's, or a proxy, may bring it about all the same.
#[tokio::test(flavor = "multi_thread")]
async fn fault_30_a_serialization_failure_while_settling_is_tried_again() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    run(
        &mut writer,
        "create sequence failures;
         create function fail() returns trigger language plpgsql as $$
         begin
             if new.number > 1 and nextval('public.failures') <= 5 then
                 raise serialization_failure using message = 'could not serialize access';
             end if;
             return new;
         end $$;
         create trigger fail before insert on postrider.progress for each row execute function fail()",
    )
    .await;
    let probe = Probe::new();
    let relay = start(&database, vec![sink("probe", probe.target())]);
    emit_many(&mut writer, 0, 500, 50).await;
    assert_in_order(&probe.wait_for(500).await);
    until(&mut writer, "select sum(events) = 0 from postrider.backlog").await;
    until(&mut writer, "select last_value > 5 from failures").await;
    eventually("all is settled", || relay.status()[0].in_flight == 0).await;
    assert_eq!(probe.count(), 500, "each once");
    relay.stop().await;
}

async fn until_parked(connection: &mut sqlx::PgConnection, events: i64) {
    let begun = std::time::Instant::now();
    loop {
        let parked: i64 = sqlx::query_scalar("select count(*) from postrider.parked")
            .fetch_one(&mut *connection)
            .await
            .unwrap();
        if parked == events {
            return;
        }
        assert!(parked < events && begun.elapsed() < PATIENCE, "{parked} of {events} are parked");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn deadlocks(connection: &mut sqlx::PgConnection) -> i64 {
    // Statistics come late.
    let begun = std::time::Instant::now();
    while begun.elapsed() < PATIENCE {
        let seen: i64 =
            sqlx::query_scalar("select deadlocks from pg_stat_database where datname = current_database()")
                .fetch_one(&mut *connection)
                .await
                .unwrap();
        if seen > 0 {
            return seen;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    0
}

/// What came of an event that was tried again cannot be stored: that is said, and concerns no other key, also where nothing is known yet
/// of a key's lane.
#[tokio::test(flavor = "multi_thread")]
async fn fault_30_a_lock_on_a_parked_event_holds_up_its_own_key_alone() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let probe =
        Probe::answering(
            |message| {
                if message.record.r#type == "refused" { Answer::Refuse } else { Answer::Take }
            },
        );
    let first = Duration::from_millis(5);
    let retry = Retry { first, factor: 1.0, max_attempts: u32::MAX, ..Retry::default() };
    let relay = start(&database, vec![SinkSettings { retry, ..sink("probe", probe.target()) }]);
    emit(&mut writer, "refused", Some("refused")).await;
    until(&mut writer, "select exists (select from postrider.parked where attempts > 1)").await;
    let mut other = database.connect().await.unwrap();
    run(&mut other, "begin; select from postrider.parked for update").await;
    let said = says(&relay, "what came of parked events cannot be stored").await;
    assert!(said.contains("lock timeout"), "{said}");
    emit_many(&mut writer, 0, 500, 100).await;
    assert_in_order(&probe.wait_for(500).await);
    assert!(!state(&relay).is_well());
    run(&mut other, "rollback").await;
    runs(&relay).await;
    until(&mut writer, "select sum(events) = 0 from postrider.backlog").await;
    assert_eq!(probe.count(), 500, "each once");
    relay.stop().await;
}

/// Somebody else's isolation level is not ours.
#[tokio::test(flavor = "multi_thread")]
async fn fault_30_a_default_of_serializable_fails_nobody() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let name = database.name();
    run(&mut admin, &format!("alter database \"{name}\" set default_transaction_isolation = serializable"))
        .await;
    let probe = Probe::answering(|message| {
        if message.record.r#type.ends_with('7') && rand::random() { Answer::Refuse } else { Answer::Take }
    });
    let retry = Retry { first: Duration::from_millis(5), factor: 1.0, max_attempts: 100, ..Retry::default() };
    let relay = start(&database, vec![SinkSettings { retry, ..sink("probe", probe.target()) }]);
    let load = Load::start(&database.url(), 3);
    load.more(1000).await;
    let ledger = load.stop().await;
    let report = all_delivered(&ledger, &probe).await;
    assert!(report.duplicated.is_empty(), "{report}");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_32_with_a_full_disk_a_window_is_delivered_and_no_event_twice() {
    let disk = 8 << 20;
    let server = PostgresServer::private_with_small_disk(Version::default(), Settings::for_tests(), disk);
    let server = server.await.unwrap();
    let database = database_on(&server).await;
    let mut admin = database.connect().await.unwrap();
    let place = server.small_disk();
    run(&mut admin, &format!("create tablespace small location '{}'", place.display())).await;
    run(
        &mut admin,
        "do $$ declare t regclass; begin
            for t in select c.oid from pg_class c where c.relnamespace = 'postrider'::regnamespace and c.relkind = 'r'
                and (c.relname like 'progress%' or c.relname = 'parked') loop
                execute format('alter table %s set tablespace small', t);
            end loop;
         end $$",
    )
    .await;
    let probe = Probe::new();
    let settings = SinkSettings { max_in_flight: 200, max_batch: 50, ..sink("probe", probe.target()) };
    let relay = start(&database, vec![settings]);
    let load = Load::start(&database.url(), 2);
    probe.wait_for(100).await;

    run(&mut admin, "create table filler (t text) tablespace small").await;
    let full = loop {
        let more = "insert into filler select repeat('x', 1000) from generate_series(1, 100)";
        if let Err(error) = sqlx::raw_sql(more).execute(&mut admin).await {
            break error;
        }
    };
    assert!(full.to_string().contains("No space left on device"), "{full}");
    for size in [500, 100, 1] {
        let more = format!("insert into filler select repeat('x', {size})");
        while sqlx::raw_sql(sqlx::AssertSqlSafe(more.as_str())).execute(&mut admin).await.is_ok() {}
    }
    let said = says(&relay, "No space left on device").await;
    assert!(said.contains("make room on the server's disk"), "{said}");
    // Where operators look who cannot reach the relay, too.
    until(
        &mut admin,
        "select exists (select from postrider.troubles where sink = 'probe' and trouble like '%No space left on device%make room%')",
    )
    .await;
    let delivered = probe.count();
    load.more(500).await;
    stays("at most a window more", Duration::from_millis(500), || probe.count() <= delivered + 200).await;
    assert!(compare(load.ledger(), &probe).duplicated.is_empty());

    run(&mut admin, "drop table filler").await;
    runs(&relay).await;
    let ledger = load.stop().await;
    let report = all_delivered(&ledger, &probe).await;
    assert!(report.duplicated.is_empty(), "{report}");
    relay.stop().await;
}
