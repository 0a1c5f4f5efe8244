//! A standby takes over.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postrider_relay::settings::Retry;
use postrider_relay::{Relay, RelaySettings, SinkSettings, State};
use postrider_testkit::{Database, PostgresServer, Proxy, Settings, Version};
use sqlx::{Connection as _, PgConnection};
use uuid::Uuid;

use super::{eventually, proxy_of, run, runs, says, state, stays};
use crate::support::{Answer, Probe, database, database_on, emit, emit_many, settings, sink, start, until};

/// A primary with a standby, and a relay that reaches whichever the proxy points to.
struct Pair {
    primary: PostgresServer,
    standby: PostgresServer,
    database: Database,
    proxy: Proxy,
    probe: Probe,
}

impl Pair {
    async fn new() -> Self {
        let primary = PostgresServer::private(Version::default(), Settings::for_tests()).await.unwrap();
        let database = database_on(&primary).await;
        let standby = primary.standby(Settings::for_tests()).await.unwrap();
        let proxy = proxy_of(&database).await;
        Self { primary, standby, database, proxy, probe: Probe::new() }
    }

    fn settings(&self) -> RelaySettings {
        let mut settings = settings(&self.database, vec![sink("probe", self.probe.target())]);
        settings.database = self.database.url_via(self.proxy.port()).parse().unwrap();
        settings
    }

    fn point_at(&self, server: &PostgresServer) {
        self.proxy.set_upstream(format!("127.0.0.1:{}", server.port()));
        self.proxy.cut();
    }

    /// The standby gets nothing any more.
    async fn cut_off(&self, primary: &mut PgConnection) {
        until(
            primary,
            "select coalesce(bool_and(replay_lsn >= pg_current_wal_lsn()), false) from pg_stat_replication",
        )
        .await;
        let mut standby = self.standby.connect().await.unwrap();
        run(&mut standby, "alter system set primary_conninfo = ''").await;
        run(&mut standby, "select pg_reload_conf()").await;
        until(primary, "select not exists (select from pg_stat_replication)").await;
    }

    async fn fail_over(&self) -> PgConnection {
        self.primary.crash().await.unwrap();
        let mut standby = self.standby.connect().await.unwrap();
        run(&mut standby, "select pg_promote()").await;
        self.point_at(&self.standby);
        PgConnection::connect(&self.standby.url(self.database.name())).await.unwrap()
    }

    fn taken(&self) -> BTreeSet<String> {
        self.probe.taken().into_iter().map(|taken| taken.id).collect()
    }
}

async fn ids(connection: &mut PgConnection) -> BTreeSet<String> {
    let ids: Vec<Uuid> =
        sqlx::query_scalar("select id from postrider.events").fetch_all(connection).await.unwrap();
    ids.iter().map(Uuid::to_string).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_11_what_a_failover_takes_back_is_counted_and_named() {
    let pair = Pair::new().await;
    let mut primary = pair.database.connect().await.unwrap();
    let relay = Relay::start(pair.settings()).unwrap();
    emit_many(&mut primary, 0, 100, 10).await;
    pair.probe.wait_for(100).await;
    pair.cut_off(&mut primary).await;
    emit_many(&mut primary, 100, 50, 10).await;
    pair.probe.wait_for(150).await;
    let before = ids(&mut primary).await;

    let mut promoted = pair.fail_over().await;
    // Written before the relay is back: they get numbers that were given out before.
    emit_many(&mut promoted, 200, 20, 10).await;
    let after = ids(&mut promoted).await;
    eventually("what is there has come", || after.is_subset(&pair.taken())).await;
    runs(&relay).await;
    eventually("what is gone is named", || relay.taken_back()["probe"].len() == 50).await;
    let named: BTreeSet<String> = relay.taken_back()["probe"].iter().map(Uuid::to_string).collect();
    assert_eq!(named, before.difference(&after).cloned().collect());
    assert_eq!(pair.taken().len(), 170, "no id was given twice");
    until(&mut promoted, "select taken_back = 50 and taken_back_at is not null from postrider.delivery")
        .await;
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_11_with_the_gate_nothing_is_delivered_that_a_failover_takes_back() {
    let pair = Pair::new().await;
    let mut primary = pair.database.connect().await.unwrap();
    let mut gated = pair.settings();
    gated.log.standbys = 1;
    let mut relay = Relay::start(gated).unwrap();
    emit_many(&mut primary, 0, 100, 10).await;
    pair.probe.wait_for(100).await;
    pair.cut_off(&mut primary).await;
    emit_many(&mut primary, 100, 50, 10).await;
    says(&relay, "events wait until 1 standbys have them").await;
    stays("nothing is delivered", Duration::from_millis(500), || pair.probe.count() == 100).await;

    let mut promoted = pair.fail_over().await;
    emit_many(&mut promoted, 200, 20, 10).await;
    says(&relay, "events wait until 1 standbys have them").await;
    assert_eq!(pair.probe.count(), 100, "the new primary has no standby yet");
    relay.reload(pair.settings()).await.unwrap();
    let after = ids(&mut promoted).await;
    eventually("what is there has come", || after.is_subset(&pair.taken())).await;
    assert_eq!(after, pair.taken(), "and nothing else ever");
    assert!(relay.taken_back()["probe"].is_empty());
    relay.stop().await;
}

/// A restore that set the sequence back would hide new events below the cursors.
#[tokio::test(flavor = "multi_thread")]
async fn fault_11_a_log_that_went_back_stops_the_sink_with_a_remedy() {
    let database = database().await;
    let proxy = proxy_of(&database).await;
    let mut writer = database.connect().await.unwrap();
    let probe = Probe::new();
    let mut settings = settings(&database, vec![sink("probe", probe.target())]);
    settings.database = database.url_via(proxy.port()).parse().unwrap();
    let relay = Relay::start(settings).unwrap();
    emit_many(&mut writer, 0, 100, 10).await;
    probe.wait_for(100).await;
    run(&mut writer, "alter sequence postrider.seq restart").await;
    emit(&mut writer, "hidden", Some("k")).await;
    let said = says(&relay, "postrider rebase").await;
    assert!(matches!(state(&relay), State::Failed { .. }), "{said}");
    let before = proxy.accepted();
    stays("it says so", Duration::from_secs(2), || matches!(state(&relay), State::Failed { .. })).await;
    let attempts = proxy.accepted() - before;
    assert!(attempts < 40, "{attempts} attempts in two seconds");
    assert_eq!(probe.count(), 100);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_13_a_standby_is_refused_in_words_until_the_address_is_the_primary_s() {
    let pair = Pair::new().await;
    let mut primary = pair.database.connect().await.unwrap();
    pair.point_at(&pair.standby);
    let relay = Relay::start(pair.settings()).unwrap();
    let said = says(&relay, "this server is a standby").await;
    assert!(said.contains("give the primary's own address"), "{said}");
    emit_many(&mut primary, 0, 100, 10).await;
    pair.point_at(&pair.primary);
    pair.probe.wait_for(100).await;

    // Under a running relay.
    pair.point_at(&pair.standby);
    says(&relay, "this server is a standby").await;
    emit_many(&mut primary, 100, 100, 10).await;
    pair.point_at(&pair.primary);
    pair.probe.wait_for(200).await;
    runs(&relay).await;
    assert_eq!(pair.taken().len(), pair.probe.count(), "none twice");
    relay.stop().await;
}

/// The list of libpq: whoever is the primary is found, by the reader and by the pool that parked events are tried again through.
#[tokio::test(flavor = "multi_thread")]
async fn fault_13_of_several_hosts_the_primary_is_taken_also_after_a_failover() {
    let pair = Pair::new().await;
    let mut primary = pair.database.connect().await.unwrap();
    let (standby, first) = (pair.standby.port(), pair.primary.port());
    let name = pair.database.name();
    let list = format!(
        "postgres://postgres@127.0.0.1:{standby},127.0.0.1:{first}/{name}?target_session_attrs=read-write"
    );
    let retry = Retry { first: Duration::from_millis(10), ..Retry::default() };
    let mut settings =
        settings(&pair.database, vec![SinkSettings { retry, ..sink("probe", pair.probe.target()) }]);
    settings.database = list.parse().unwrap();
    let relay = Relay::start(settings).unwrap();
    emit_many(&mut primary, 0, 100, 10).await;
    pair.probe.wait_for(100).await;
    // What is not settled when the server dies comes twice, and may.
    until(&mut primary, "select coalesce(sum(events), 0) = 0 from postrider.backlog").await;
    until(
        &mut primary,
        "select coalesce(bool_and(replay_lsn >= pg_current_wal_lsn()), false) from pg_stat_replication",
    )
    .await;

    pair.primary.crash().await.unwrap();
    let said = says(&relay, "none of the servers is a primary that answers").await;
    assert!(said.contains(&format!("127.0.0.1:{first}: ")), "{said}");
    assert!(said.contains(&format!("127.0.0.1:{standby}: a standby")), "{said}");
    let refused = AtomicBool::new(false);
    pair.probe.answer(move |message| match message.record.r#type.as_str() {
        "100" if !refused.swap(true, Ordering::Relaxed) => Answer::Refuse,
        _ => Answer::Take,
    });
    run(&mut pair.standby.connect().await.unwrap(), "select pg_promote()").await;
    let mut promoted = PgConnection::connect(&pair.standby.url(name)).await.unwrap();
    emit_many(&mut promoted, 100, 100, 10).await;
    pair.probe.wait_for(200).await;
    runs(&relay).await;
    assert_eq!(pair.taken().len(), pair.probe.count(), "none twice");
    relay.stop().await;
}

/// A primary that only takes reads for a while, by its operator's hand.
#[tokio::test(flavor = "multi_thread")]
async fn fault_13_a_default_of_read_only_is_not_ours() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let name = database.name();
    run(&mut writer, &format!("alter database \"{name}\" set default_transaction_read_only = on")).await;
    let probe = Probe::new();
    let relay = start(&database, vec![sink("probe", probe.target())]);
    emit_many(&mut writer, 0, 10, 10).await;
    probe.wait_for(10).await;
    relay.stop().await;
}
