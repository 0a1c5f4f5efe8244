//! Connections that are lost, refused, slow, too many, or dead without a word.

use std::time::{Duration, Instant};

use postrider_relay::{LogSettings, Relay, RelaySettings, Retry};
use postrider_testkit::{PostgresServer, Proxy, Settings, Version};
use sqlx::{Connection as _, PgConnection};

use super::load::Load;
use super::{all_delivered, eventually, proxy_of, reason, rounds, run, runs, says, stays};
use crate::support::{
    Answer, PATIENCE, Probe, assert_in_order, database, database_on, emit_many, settings, sink, start, until,
};

const TERMINATE: &str = "select pg_terminate_backend(pid) from pg_stat_activity
    where datname = current_database() and application_name like 'postrider%'";

#[tokio::test(flavor = "multi_thread")]
async fn fault_7_terminated_backends_cost_no_event_and_no_second() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let probe = Probe::new();
    let relay = start(&database, vec![sink("probe", probe.target())]);
    let mut load = Load::start(&database.url(), 2);
    probe.wait_for(50).await;
    let mut back = Vec::new();
    for _ in 0..rounds(20, 500) {
        let before = load.ledger().committed();
        run(&mut admin, TERMINATE).await;
        back.push(load.mark(&mut admin, &probe).await);
        // Something has to be in flight the next time.
        eventually("events are written", || load.ledger().committed() > before + 40).await;
    }
    // Usually: once in a while the machine is busy with something else. Who waited for anything would do so each time.
    back.sort_unstable();
    assert!(back[back.len() / 2] < Duration::from_secs(1), "{back:?}");
    let ledger = load.stop().await;
    let report = all_delivered(&ledger, &probe).await;
    // The relay still knows what it has delivered: without that, up to a window comes again each time.
    assert!(report.duplicated.is_empty(), "{report}");
    relay.stop().await;
}

/// Each time while it stores how far it is: nothing is stored in between, and it does not come back later and later.
#[tokio::test(flavor = "multi_thread")]
async fn fault_7_a_relay_that_is_cut_off_in_every_settling_is_back_within_a_second_each_time() {
    const TIMES: i64 = 11;
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    // The first row of an epoch is stored by who takes lanes, the others by who settles.
    run(
        &mut admin,
        "create sequence cuts;
         create function cut() returns trigger language plpgsql as $$
         begin
             if new.number > 1 and nextval('public.cuts') <= 11 then
                 perform pg_terminate_backend(pg_backend_pid());
             end if;
             return new;
         end $$;
         create trigger cut before insert on postrider.progress for each row execute function cut()",
    )
    .await;
    let probe = Probe::new();
    let relay = start(&database, vec![sink("probe", probe.target())]);
    let mut load = Load::start(&database.url(), 0);
    load.mark(&mut admin, &probe).await;
    let mut cuts = Vec::new();
    while cuts.len() <= usize::try_from(TIMES).unwrap() {
        let count: i64 = sqlx::query_scalar("select coalesce(pg_sequence_last_value('cuts'), 0)")
            .fetch_one(&mut admin)
            .await
            .unwrap();
        cuts.resize(usize::try_from(count).unwrap().max(cuts.len()), Instant::now());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let gaps: Vec<Duration> = cuts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // Pauses that grow are 2.5 s at least by then, each of them. One of these may be long because the machine is busy.
    assert!(gaps.iter().rev().take(3).any(|gap| *gap < Duration::from_secs(1)), "{gaps:?}");
    let ledger = load.stop().await;
    let report = all_delivered(&ledger, &probe).await;
    assert!(report.duplicated.is_empty(), "{report}");
    relay.stop().await;
}

/// A stored position says nothing about an event that came late, behind it: that it is delivered must not be forgotten too soon.
#[tokio::test(flavor = "multi_thread")]
async fn fault_7_what_came_late_and_could_not_be_settled_is_not_sent_again() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let mut slow = database.connect().await.unwrap();
    let probe = Probe::new();
    let relay = start(&database, vec![sink("probe", probe.target())]);
    run(&mut slow, "begin; select postrider.emit('1', '{}', key => 'slow')").await;
    run(&mut admin, "select postrider.emit('2', '{}', key => 'fast')").await;
    probe.wait_for(1).await;
    until(&mut admin, "select sum(events) = 0 from postrider.backlog").await;

    run(&mut admin, "begin; lock table postrider.progress in share mode").await;
    run(&mut slow, "commit").await;
    probe.wait_for(2).await;
    until(
        &mut admin,
        "select exists (select from pg_locks where relation = 'postrider.progress'::regclass and not granted
            and database = (select oid from pg_database where datname = current_database()))",
    )
    .await;
    run(&mut admin, TERMINATE).await;
    run(&mut admin, "commit").await;
    until(&mut admin, "select sum(events) = 0 from postrider.backlog").await;
    relay.stop().await;
    let types: Vec<String> = probe.taken().into_iter().map(|taken| taken.r#type).collect();
    assert_eq!(types, ["2", "1"], "each once");
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_7_a_terminated_listener_is_replaced_and_nothing_else() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let probe = Probe::new();
    let relay = start(&database, vec![sink("probe", probe.target())]);
    let mut load = Load::start(&database.url(), 0);
    load.mark(&mut admin, &probe).await;
    let pids = "select array_agg(pid order by pid) from pg_stat_activity
        where datname = current_database() and application_name = 'postrider'";
    let before: Vec<i32> = sqlx::query_scalar(pids).fetch_one(&mut admin).await.unwrap();
    for _ in 0..5 {
        run(
            &mut admin,
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity
             where datname = current_database() and application_name = 'postrider (listening)'",
        )
        .await;
        let took = load.mark(&mut admin, &probe).await;
        assert!(took < Duration::from_secs(30), "{took:?}");
        until(
            &mut admin,
            "select count(*) = 1 from pg_stat_activity
             where datname = current_database() and application_name = 'postrider (listening)'",
        )
        .await;
    }
    let after: Vec<i32> = sqlx::query_scalar(pids).fetch_one(&mut admin).await.unwrap();
    assert_eq!(before, after, "reading and settling went on");
    relay.stop().await;
}

/// A relay whose database is behind a proxy.
fn behind(proxy: &Proxy, database: &postrider_testkit::Database, probe: &Probe) -> RelaySettings {
    let mut settings = settings(database, vec![sink("probe", probe.target())]);
    settings.database = database.url_via(proxy.port()).parse().unwrap();
    settings
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_9_a_server_that_refuses_or_is_slow_is_tried_with_growing_pauses() {
    let database = database().await;
    let proxy = proxy_of(&database).await;
    let probe = Probe::new();
    let relay = Relay::start(behind(&proxy, &database, &probe)).unwrap();
    let mut load = Load::start(&database.url(), 1);
    probe.wait_for(20).await;

    proxy.refuse();
    proxy.cut();
    says(&relay, "the database failed").await;
    let before = proxy.accepted();
    stays("it says so", Duration::from_secs(2), || reason(&relay).is_some()).await;
    let attempts = proxy.accepted() - before;
    assert!(attempts < 40, "{attempts} attempts in two seconds");
    eventually("it is tried again", || proxy.accepted() >= before + 2).await;
    proxy.heal();
    runs(&relay).await;

    proxy.delay(Duration::from_millis(10));
    let mut admin = database.connect().await.unwrap();
    load.mark(&mut admin, &probe).await;
    proxy.heal();
    let ledger = load.stop().await;
    all_delivered(&ledger, &probe).await;
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_9_a_server_that_is_starting_up_is_waited_for() {
    let server = PostgresServer::private(Version::default(), Settings::for_tests()).await.unwrap();
    let database = database_on(&server).await;
    let proxy = proxy_of(&database).await;
    let probe = Probe::new();
    let relay = Relay::start(behind(&proxy, &database, &probe)).unwrap();
    let load = Load::start(&database.url(), 1);
    probe.wait_for(20).await;

    // It recovers for as long as this command takes.
    server.crash().await.unwrap();
    let go = server.data_dir().join("go");
    let wait = format!("while [ ! -e {} ]; do sleep 0.02; done; exit 1", go.display());
    server.set("restore_command", wait).unwrap();
    server.set("hot_standby", "off").unwrap();
    std::fs::write(server.data_dir().join("recovery.signal"), "").unwrap();
    server.launch().await.unwrap();
    let said = says(&relay, "the database system is").await;
    assert!(said.contains("tried again until the server is ready"), "{said}");
    let before = proxy.accepted();
    stays("it says so", Duration::from_secs(1), || reason(&relay).is_some()).await;
    let attempts = proxy.accepted() - before;
    assert!(attempts < 30, "{attempts} attempts in a second");

    std::fs::write(&go, "").unwrap();
    server.wait_until_ready().await.unwrap();
    load.more(50).await;
    let ledger = load.stop().await;
    all_delivered(&ledger, &probe).await;
    runs(&relay).await;
    // It came up on another timeline, with everything it had.
    assert!(relay.taken_back()["probe"].is_empty());
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_31_a_server_without_a_free_connection_is_waited_for_and_none_is_left_behind() {
    let settings = Settings::for_tests().set("max_connections", 10).set("max_wal_senders", 0);
    let server = PostgresServer::private(Version::default(), settings).await.unwrap();
    let database = database_on(&server).await;
    let mut admin = database.connect().await.unwrap();
    run(
        &mut admin,
        "create role carrier login in role postrider_relay; create role crowd login;
         grant usage on schema postrider to crowd",
    )
    .await;
    let probe = Probe::new();
    let mut settings = crate::support::settings(&database, vec![sink("probe", probe.target())]);
    settings.database = database.url_as("carrier").parse().unwrap();
    settings.connections = 2;
    let crowd = database.url_as("crowd");

    let mut occupied = occupy(&crowd).await;
    let relay = Relay::start(settings).unwrap();
    let said = says(&relay, "reserved").await;
    assert!(said.contains("raise max_connections"), "{said}");
    let mut load = Load::start(&database.url(), 0);
    for _ in 0..rounds(5, 20) {
        drop(std::mem::take(&mut occupied));
        runs(&relay).await;
        load.mark(&mut admin, &probe).await;
        occupied = occupy(&crowd).await;
        // As often as it takes: the relay is as quick as the crowd.
        let begun = Instant::now();
        loop {
            run(&mut admin, TERMINATE).await;
            occupied.extend(occupy(&crowd).await);
            let none = "select not exists (select from pg_stat_activity where usename = 'carrier')";
            if sqlx::query_scalar(none).fetch_one(&mut admin).await.unwrap() {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "the relay keeps its connections");
        }
        says(&relay, "reserved").await;
    }
    drop(occupied);
    load.mark(&mut admin, &probe).await;
    // Two for reading and settling, one that listens, two of the pool.
    until(&mut admin, "select count(*) <= 5 from pg_stat_activity where usename = 'carrier'").await;
    relay.stop().await;
    until(&mut admin, "select count(*) = 0 from pg_stat_activity where usename = 'carrier'").await;
}

/// Takes every connection that an ordinary role can have.
async fn occupy(url: &str) -> Vec<PgConnection> {
    let mut taken = Vec::new();
    while let Ok(connection) = PgConnection::connect(url).await {
        taken.push(connection);
    }
    taken
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_33_a_connection_that_is_dead_without_a_word_is_found_in_time() {
    let LogSettings { patience, lease, .. } = LogSettings::default();
    assert!(patience + lease / 3 < Duration::from_secs(30), "by default");

    let database = database().await;
    let proxy = proxy_of(&database).await;
    let mut admin = database.connect().await.unwrap();
    let probe = Probe::new();
    let mut settings = behind(&proxy, &database, &probe);
    settings.log.patience = Duration::from_secs(1);
    settings.drain = Duration::from_millis(500);
    let relay = Relay::start(settings.clone()).unwrap();
    let mut load = Load::start(&database.url(), 1);
    probe.wait_for(20).await;
    // Those that read, settle, listen and ask about parked events, all at once and for good.
    proxy.abandon();
    let begun = Instant::now();
    load.mark(&mut admin, &probe).await;
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    proxy.half_open();
    says(&relay, "did not answer within").await;
    // Its loop turns all the while: it is not taken for stuck.
    for _ in 0..3 {
        let now = Instant::now();
        eventually("it turns", || relay.status()[0].silent_for < now.elapsed()).await;
    }
    proxy.heal();
    load.mark(&mut admin, &probe).await;
    let ledger = load.stop().await;
    let report = all_delivered(&ledger, &probe).await;
    assert!(report.duplicated.is_empty(), "{report}");

    // One that starts then says so too, and ends when it is told to.
    proxy.half_open();
    let late = Relay::start(settings).unwrap();
    says(&late, "did not answer within").await;
    let begun = Instant::now();
    late.stop().await;
    relay.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

/// The connections that ask about parked events are others, and may be the only ones that are dead.
#[tokio::test(flavor = "multi_thread")]
async fn fault_33_what_is_parked_is_tried_again_although_its_connection_died_without_a_word() {
    let database = database().await;
    let proxy = proxy_of(&database).await;
    let mut admin = database.connect().await.unwrap();
    let probe = Probe::answering(|_| Answer::Refuse);
    let mut settings = behind(&proxy, &database, &probe);
    settings.log.patience = Duration::from_secs(1);
    settings.sinks[0].retry =
        Retry { first: Duration::from_millis(50), factor: 1.0, max_attempts: 10_000, ..Retry::default() };
    let relay = Relay::start(settings).unwrap();
    emit_many(&mut admin, 0, 3, 1).await;
    until(&mut admin, "select count(*) = 3 from postrider.parked").await;
    until(&mut admin, "select max(attempts) > 3 from postrider.parked").await;
    proxy.abandon();
    probe.answer(|_| Answer::Take);
    // What was tried and could not be stored is tried again by nobody else: the relay knows.
    assert_in_order(&probe.wait_for(3).await);
    until(&mut admin, "select not exists (select from postrider.parked)").await;
    relay.stop().await;
    assert_eq!(probe.count(), 3, "each once");
}
