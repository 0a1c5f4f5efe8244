//! Passwords and privileges that are taken away under load.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use postrider_relay::{Relay, Retry, SinkSettings, State};
use postrider_testkit::{PostgresServer, Settings, Version};
use uuid::Uuid;

use super::load::Load;
use super::{all_delivered, eventually, run, runs, says, state, stays};
use crate::support::{Answer, PATIENCE, Probe, database, database_on, emit_many, settings, sink, until};

const TERMINATE: &str = "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'carrier'";

#[tokio::test(flavor = "multi_thread")]
async fn fault_35_a_rotated_password_is_said_and_the_new_one_taken_over_by_a_reload() {
    let server = PostgresServer::private(Version::default(), Settings::for_tests()).await.unwrap();
    let database = database_on(&server).await;
    let mut admin = database.connect().await.unwrap();
    run(&mut admin, "create role carrier login password 'first' in role postrider_relay").await;
    let hba = server.data_dir().join("pg_hba.conf");
    let rules = fs::read_to_string(&hba).unwrap();
    fs::write(&hba, format!("host all carrier all scram-sha-256\n{rules}")).unwrap();
    run(&mut admin, "select pg_reload_conf()").await;

    let probe = Probe::new();
    let with = |password: &str| {
        let mut settings = settings(&database, vec![sink("probe", probe.target())]);
        settings.database = database.url_as(&format!("carrier:{password}")).parse().unwrap();
        settings
    };
    let mut relay = Relay::start(with("first")).unwrap();
    let load = Load::start(&database.url(), 1);
    probe.wait_for(20).await;
    run(&mut admin, "alter role carrier password 'second'").await;
    run(&mut admin, TERMINATE).await;
    let said = says(&relay, "password authentication failed").await;
    assert!(said.contains("check the user, the password"), "{said}");
    assert!(!said.contains("first"), "{said}");
    assert!(matches!(state(&relay), State::Failed { .. }));
    relay.reload(with("second")).await.unwrap();
    runs(&relay).await;
    let ledger = load.stop().await;
    let report = all_delivered(&ledger, &probe).await;
    assert!(report.duplicated.count <= 1000, "{report}");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_35_a_revoked_privilege_is_named_and_delivery_goes_on_after_the_grant() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    // Roles belong to the whole server.
    let role = format!("r{}", rand::random::<u32>());
    let owner = format!("{role}_rights");
    run(
        &mut admin,
        &format!("create role {owner} in role postrider_relay; create role {role} login in role {owner}"),
    )
    .await;
    let probe = Probe::new();
    let mut settings = settings(&database, vec![sink("probe", probe.target())]);
    settings.database = database.url_as(&role).parse().unwrap();
    settings.sinks[0].max_in_flight = 100;
    let relay = Relay::start(settings).unwrap();
    let load = Load::start(&database.url(), 2);
    for (taken, named) in [
        ("insert on postrider.progress", "permission denied for table progress"),
        ("select on postrider.events", "permission denied for table events"),
        ("update on postrider.readers", "permission denied for table readers"),
    ] {
        probe.wait_for(probe.count() + 50).await;
        run(&mut admin, &format!("revoke {taken} from postrider_relay")).await;
        let said = says(&relay, named).await;
        assert!(said.contains("postrider init"), "{said}");
        let before = probe.count();
        stays("at most a window more", Duration::from_millis(300), || probe.count() <= before + 100).await;
        run(&mut admin, &format!("grant {taken} to postrider_relay")).await;
        runs(&relay).await;
    }
    let ledger = load.stop().await;
    let report = all_delivered(&ledger, &probe).await;
    // The relay knows what it has delivered and could not settle, and as a rule repeats nothing; a window for each loss is what is promised.
    assert!(report.duplicated.count <= 300, "{report}");
    relay.stop().await;
    run(&mut admin, &format!("drop role {role}; drop role {owner}")).await;
}

/// Each attempt opens a reader that is well until it reads. Who asks the database must not see that one.
#[tokio::test(flavor = "multi_thread")]
async fn fault_35_who_cannot_read_has_failed_in_the_database_too_until_it_reads_again() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let role = format!("r{}", rand::random::<u32>());
    run(&mut admin, &format!("create role {role} login in role postrider_relay")).await;
    let probe = Probe::new();
    let mut settings = settings(&database, vec![sink("probe", probe.target())]);
    settings.database = database.url_as(&role).parse().unwrap();
    let relay = Relay::start(settings).unwrap();
    emit_many(&mut admin, 0, 1, 1).await;
    probe.wait_for(1).await;
    run(
        &mut admin,
        "revoke select on postrider.events from postrider_relay;
         do $$ begin execute (
             select format('grant select (%s) on postrider.events to postrider_relay', string_agg(quote_ident(attname), ', '))
             from pg_attribute where attrelid = 'postrider.events'::regclass and attnum > 0 and attname <> 'payload'
         ); end $$",
    )
    .await;
    emit_many(&mut admin, 1, 1, 1).await;
    until(&mut admin, "select exists (select from postrider.troubles)").await;
    let attempted = async {
        let mut readers: BTreeSet<Uuid> = BTreeSet::new();
        while readers.len() < 4 {
            let said: Option<String> = sqlx::query_scalar("select trouble from postrider.troubles")
                .fetch_optional(&mut admin)
                .await
                .unwrap();
            let said = said.expect("it still cannot read");
            assert!(said.contains("permission denied for table events"), "{said}");
            let opened: Vec<Uuid> =
                sqlx::query_scalar("select reader from postrider.readers where state <> 'failed'")
                    .fetch_all(&mut admin)
                    .await
                    .unwrap();
            readers.extend(opened);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, attempted).await.expect("it goes on trying");
    run(&mut admin, "grant select on postrider.events to postrider_relay").await;
    probe.wait_for(2).await;
    until(&mut admin, "select not exists (select from postrider.troubles)").await;
    relay.stop().await;
    run(&mut admin, &format!("drop role {role}")).await;
}

/// Reading goes on without it, so nobody else would say what is missing.
#[tokio::test(flavor = "multi_thread")]
async fn fault_35_without_the_privilege_to_store_a_retry_the_sink_says_so() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let role = format!("r{}", rand::random::<u32>());
    run(&mut admin, &format!("create role {role} login in role postrider_relay")).await;
    let probe = Probe::answering(|_| Answer::Refuse);
    let first = Duration::from_millis(5);
    let retry = Retry { first, factor: 1.0, max_attempts: u32::MAX, ..Retry::default() };
    let mut settings = settings(&database, vec![SinkSettings { retry, ..sink("probe", probe.target()) }]);
    settings.database = database.url_as(&role).parse().unwrap();
    let relay = Relay::start(settings).unwrap();
    emit_many(&mut admin, 0, 1, 1).await;
    until(&mut admin, "select exists (select from postrider.parked where attempts > 1)").await;
    run(&mut admin, "revoke update, delete on postrider.parked from postrider_relay").await;
    let said = says(&relay, "permission denied for table parked").await;
    assert!(said.contains("postrider init"), "{said}");
    run(&mut admin, "grant update, delete on postrider.parked to postrider_relay").await;
    probe.answer(|_| Answer::Take);
    probe.wait_for(1).await;
    until(&mut admin, "select not exists (select from postrider.parked)").await;
    relay.stop().await;
    run(&mut admin, &format!("drop role {role}")).await;
}

/// Progress could be stored, but not what has to be parked with it.
#[tokio::test(flavor = "multi_thread")]
async fn fault_35_without_the_privilege_to_park_nothing_is_delivered_over_and_over() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let role = format!("r{}", rand::random::<u32>());
    run(&mut admin, &format!("create role {role} login in role postrider_relay")).await;
    run(&mut admin, "revoke insert on postrider.parked from postrider_relay").await;
    let tries = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&tries);
    let probe = Probe::answering(move |message| {
        if message.record.r#type.ends_with("77") {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            return Answer::Refuse;
        }
        Answer::Take
    });
    let retry = Retry { first: Duration::from_mins(10), ..Retry::default() };
    let mut settings = settings(&database, vec![SinkSettings { retry, ..sink("probe", probe.target()) }]);
    settings.database = database.url_as(&role).parse().unwrap();
    let relay = Relay::start(settings).unwrap();
    emit_many(&mut admin, 0, 1000, 1000).await;
    says(&relay, "permission denied for table parked").await;
    // Several readers come and go: each has to wait for the lease of the one before.
    stays("no more than a window", Duration::from_secs(4), || probe.count() <= 990).await;
    assert!(tries.load(std::sync::atomic::Ordering::Relaxed) <= 10);
    run(&mut admin, "grant insert on postrider.parked to postrider_relay").await;
    probe.wait_for(990).await;
    until(&mut admin, "select count(*) = 10 from postrider.parked where state = 'waiting' and attempts = 1")
        .await;
    eventually("all is settled", || relay.status()[0].in_flight == 0).await;
    assert_eq!(probe.count(), 990, "each once");
    assert_eq!(tries.load(std::sync::atomic::Ordering::Relaxed), 10, "each once");
    relay.stop().await;
    run(&mut admin, &format!("drop role {role}")).await;
}
