//! Lanes that go to another reader and come back, step by step: what was read, fetched or known before must not count after it.

mod got_over;
mod handed_over;

use std::time::{Duration, Instant};

use postrider::log::{Reader, ReaderOptions, Start};
use postrider_relay::sink::BoxFuture;
use postrider_relay::sinks::file::FileConfig;
use postrider_relay::sinks::{Custom, Target};
use postrider_relay::{
    Message, Relay, Report, Retry, Sink, SinkSettings, State, Unavailable, UnavailableKind,
};
use postrider_testkit::Database;
use sqlx::{AssertSqlSafe, PgConnection};
use tokio::sync::watch;

use crate::support::{Answer, PATIENCE, Probe, database, emit, emit_many, settings, sink, until};

/// In the eyes of the database the relay is dead, although its heart beats: others take its lanes at once.
const DEAD: &str = "create function dead() returns trigger language plpgsql as $$
    begin
        if new.name = 'first' then new.expires_at := clock_timestamp() - interval '1 second'; end if;
        return new;
    end $$;
    create trigger dead before insert or update on postrider.readers for each row execute function dead();
    update postrider.readers set heard_at = heard_at";
const ALIVE: &str = "drop trigger dead on postrider.readers; drop function dead()";

async fn run(connection: &mut PgConnection, statements: &'static str) {
    sqlx::raw_sql(AssertSqlSafe(statements)).execute(connection).await.unwrap();
}

fn first(database: &Database, sink: SinkSettings) -> Relay {
    let mut settings = settings(database, vec![sink]);
    "first".clone_into(&mut settings.name);
    Relay::start(settings).unwrap()
}

/// Another reader takes all lanes, and settles so many events.
async fn second(database: &Database, events: usize) -> Reader {
    let options = ReaderOptions {
        start: Start::Earliest,
        name: "second".to_owned(),
        lease: Duration::from_secs(30),
        ..ReaderOptions::new("probe")
    };
    let mut reader = Reader::open(database.url().parse().unwrap(), options).await.unwrap();
    assert_eq!(reader.lanes().len(), 16, "all at once");
    let mut settled = 0;
    while settled < events {
        let batch = tokio::time::timeout(PATIENCE, reader.next()).await.unwrap().unwrap();
        settled += batch.len();
        reader.settle(&batch).await.unwrap();
    }
    reader
}

async fn lanes(relay: &Relay, wanted: usize) {
    let begun = Instant::now();
    while relay.status()[0].lanes.len() != wanted {
        assert!(begun.elapsed() < PATIENCE, "{:?}", relay.status());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn waits(relay: &Relay) {
    let begun = Instant::now();
    while !matches!(relay.status()[0].state, State::Waiting { .. }) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", relay.status());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// What was read and not sent belongs to whoever holds the lane now.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_in_lanes_that_others_had_meanwhile_is_not_sent() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let (open, gate) = watch::channel(false);
    let probe = Probe::new();
    emit_many(&mut admin, 0, 100, 50).await;
    let relay = first(&database, sink("probe", Away(Gated { gate, probe: probe.clone() }).target()));
    waits(&relay).await;

    run(&mut admin, DEAD).await;
    let reader = second(&database, 100).await;
    lanes(&relay, 0).await;
    run(&mut admin, ALIVE).await;
    reader.close().await.unwrap();
    lanes(&relay, 16).await;
    open.send(true).unwrap();
    // Before anything else is read.
    stays_at(&probe, 0, "sent although others have settled it").await;
    emit(&mut admin, "after", Some("k1")).await;
    let taken = probe.wait_for(1).await;
    assert_eq!(taken[0].r#type, "after", "{} are sent again", taken.len());
    relay.stop().await;
    assert_eq!(probe.count(), 1);
}

/// What was read through a connection that is gone is read again, also where nothing was on its way to be settled.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_through_a_lost_connection_and_not_sent_is_read_again() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let probe = Probe::answering(|_| Answer::Unavailable);
    emit_many(&mut admin, 0, 100, 50).await;
    let relay = first(&database, sink("probe", probe.target()));
    waits(&relay).await;
    run(
        &mut admin,
        "select pg_terminate_backend(pid) from pg_stat_activity
         where datname = current_database() and application_name like 'postrider%'",
    )
    .await;
    probe.answer(|_| Answer::Take);
    probe.wait_for(100).await;
    until(&mut admin, "select sum(events) = 0 from postrider.backlog").await;
    relay.stop().await;
    assert_eq!(probe.count(), 100, "each once");
}

/// Takes everything, but for an event of type `wait` only when the gate is open.
#[derive(Clone)]
struct Gated {
    gate: watch::Receiver<bool>,
    probe: Probe,
}

impl Gated {
    fn target(&self) -> Target {
        let gated = self.clone();
        Target::Custom(Custom::new("gated", move || {
            let gated = gated.clone();
            Box::pin(async move { Ok(Box::new(gated) as Box<dyn Sink>) })
        }))
    }
}

impl Sink for Gated {
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report> {
        Box::pin(async move {
            if batch.iter().any(|message| message.record.r#type == "wait") {
                self.gate.wait_for(|open| *open).await.unwrap();
            }
            self.probe.deliver(batch).await
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        Box::pin(async { Ok(()) })
    }
}

/// A relay whose sink is busy with one event while another one that was parked has become due and is fetched: it has to wait for its turn.
async fn with_one_fetched(
    database: &Database,
    admin: &mut PgConnection,
) -> (Relay, Probe, watch::Sender<bool>) {
    let (open, gate) = watch::channel(false);
    let probe = Probe::answering(
        |message| {
            if message.record.r#type == "bad" { Answer::Refuse } else { Answer::Take }
        },
    );
    let gated = Gated { gate, probe: probe.clone() };
    let retry = Retry { first: Duration::from_mins(10), max: Duration::from_mins(10), ..Retry::default() };
    let relay = first(database, SinkSettings { retry, ..sink("probe", gated.target()) });
    emit(admin, "bad", Some("p")).await;
    until(admin, "select count(*) = 1 from postrider.parked").await;
    probe.answer(|_| Answer::Take);
    emit(admin, "wait", Some("w")).await;
    until(admin, "select exists (select from postrider.in_flight where cardinality(sending) = 1)").await;
    run(admin, "update postrider.parked set next_attempt_at = clock_timestamp()").await;
    until(
        admin,
        "select exists (select from pg_stat_activity where datname = current_database() and state = 'idle'
            and application_name = 'postrider (parking)' and query like '%whose time has come%')",
    )
    .await;
    (relay, probe, open)
}

/// Fetched because it was due, and then others had its lane: they may have delivered it.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_parked_in_lanes_that_others_had_meanwhile_is_not_tried() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let (relay, probe, open) = with_one_fetched(&database, &mut admin).await;
    run(&mut admin, DEAD).await;
    let reader = second(&database, 1).await;
    lanes(&relay, 0).await;
    run(&mut admin, "delete from postrider.parked").await;
    run(&mut admin, ALIVE).await;
    reader.close().await.unwrap();
    lanes(&relay, 16).await;
    open.send(true).unwrap();
    emit(&mut admin, "after", Some("p")).await;
    // The one that was on its way could not be stopped any more.
    let types: Vec<String> = probe.wait_for(2).await.into_iter().map(|taken| taken.r#type).collect();
    assert_eq!(types, ["wait", "after"]);
    relay.stop().await;
    assert_eq!(probe.count(), 2);
}

/// As with what was read: others may have the lane, and have tried it.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_was_parked_is_tried_while_the_lease_has_run_out() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let (relay, probe, open) = with_one_fetched(&database, &mut admin).await;
    run(&mut admin, "begin; select from postrider.readers for update").await;
    until(&mut admin, "select bool_and(expires_at < clock_timestamp()) from postrider.readers").await;
    open.send(true).unwrap();
    probe.wait_for(1).await;
    stays_at(&probe, 1, "tried although others may have the lane").await;
    run(&mut admin, "commit").await;
    let types: Vec<String> = probe.wait_for(2).await.into_iter().map(|taken| taken.r#type).collect();
    assert_eq!(types, ["wait", "bad"]);
    until(&mut admin, "select not exists (select from postrider.parked)").await;
    relay.stop().await;
    assert_eq!(probe.count(), 2);
}

/// Whoever takes lanes over asks first which keys have something parked.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_begins_asks_which_keys_wait_before_it_sends() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let probe = Probe::answering(|_| Answer::Refuse);
    let retry = Retry { max_attempts: 1, ..Retry::default() };
    let settings = || SinkSettings { retry, ..sink("probe", probe.target()) };
    let relay = first(&database, settings());
    emit(&mut admin, "1", Some("k")).await;
    until(&mut admin, "select count(*) = 1 from postrider.parked where state = 'dead'").await;
    relay.stop().await;
    probe.answer(|_| Answer::Take);
    emit(&mut admin, "2", Some("k")).await;
    emit(&mut admin, "3", Some("other")).await;
    let relay = first(&database, settings());
    let types: Vec<String> = probe.wait_for(1).await.into_iter().map(|taken| taken.r#type).collect();
    assert_eq!(types, ["3"]);
    until(&mut admin, "select count(*) = 1 from postrider.parked where state = 'behind' and type = '2'")
        .await;
    relay.stop().await;
    assert_eq!(probe.count(), 1);
}

/// A sink that is away until the gate is open, and says when to come again.
#[derive(Clone)]
struct Away(Gated);

impl Sink for Away {
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report> {
        Box::pin(async move {
            if *self.0.gate.borrow() {
                return self.0.probe.deliver(batch).await;
            }
            let why = Unavailable::new(UnavailableKind::Connection, "the gate is closed");
            Report::unavailable(batch.len(), Unavailable { retry_after: Some(SOON), ..why })
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        Box::pin(async { Ok(()) })
    }
}

impl Away {
    fn target(&self) -> Target {
        let away = self.clone();
        Target::Custom(Custom::new("away", move || {
            let away = away.clone();
            Box::pin(async move { Ok(Box::new(away) as Box<dyn Sink>) })
        }))
    }
}

const SOON: Duration = Duration::from_millis(10);

/// Watches for a while that nothing more comes.
async fn stays_at(probe: &Probe, count: usize, what: &str) {
    let end = Instant::now() + 50 * SOON;
    while Instant::now() < end {
        assert_eq!(probe.count(), count, "{what}");
        tokio::time::sleep(SOON).await;
    }
}

/// When its lease has run out others may have the lanes, whether or not it has heard of it: nothing is sent until it is renewed.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_while_the_lease_has_run_out() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let (open, gate) = watch::channel(false);
    let probe = Probe::new();
    emit_many(&mut admin, 0, 100, 50).await;
    let relay = first(&database, sink("probe", Away(Gated { gate, probe: probe.clone() }).target()));
    waits(&relay).await;
    // Its heartbeat has to wait.
    run(&mut admin, "begin; select from postrider.readers for update").await;
    until(&mut admin, "select bool_and(expires_at < clock_timestamp()) from postrider.readers").await;
    open.send(true).unwrap();
    stays_at(&probe, 0, "sent although others may have the lanes").await;
    run(&mut admin, "commit").await;
    probe.wait_for(100).await;
    until(&mut admin, "select sum(events) = 0 from postrider.backlog").await;
    relay.stop().await;
    assert_eq!(probe.count(), 100, "each once");
}

/// What is sent and not settled is all that a crash repeats: there is no more of it than was allowed.
#[tokio::test(flavor = "multi_thread")]
async fn no_more_than_a_window_is_sent_while_nothing_can_be_settled() {
    const WINDOW: usize = 10;
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let probe = Probe::new();
    let window = u32::try_from(WINDOW).unwrap();
    let settings = SinkSettings { max_in_flight: window, max_batch: window, ..sink("probe", probe.target()) };
    let relay = first(&database, settings);
    lanes(&relay, 16).await;
    run(&mut admin, "begin; lock table postrider.progress in share mode").await;
    let mut writer = database.connect().await.unwrap();
    emit_many(&mut writer, 0, 200, 50).await;
    probe.wait_for(WINDOW).await;
    until(
        &mut admin,
        "select exists (select from pg_locks where relation = 'postrider.progress'::regclass and not granted
            and database = (select oid from pg_database where datname = current_database()))",
    )
    .await;
    stays_at(&probe, WINDOW, "more than a crash may repeat").await;
    run(&mut admin, "commit").await;
    probe.wait_for(200).await;
    until(&mut admin, "select sum(events) = 0 from postrider.backlog").await;
    relay.stop().await;
    assert_eq!(probe.count(), 200, "each once");
}

/// A file has one writer: who lost its lanes and lives on must not keep it from who has them now.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_left_to_whoever_has_the_lanes_now() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let path = std::env::temp_dir().join(format!("{}.ndjson", database.name()));
    let lines = || std::fs::read_to_string(&path).unwrap_or_default().lines().count();
    let to_file = || sink("probe", Target::File(FileConfig::new(&path)));
    let until_there_are = async |wanted: usize| {
        let begun = Instant::now();
        while lines() < wanted {
            assert!(begun.elapsed() < PATIENCE, "{} lines of {wanted}", lines());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let relay = first(&database, to_file());
    emit(&mut admin, "one", Some("k")).await;
    until_there_are(1).await;

    run(&mut admin, DEAD).await;
    let heir = Relay::start(settings(&database, vec![to_file()])).unwrap();
    lanes(&heir, 16).await;
    lanes(&relay, 0).await;
    emit(&mut admin, "two", Some("k")).await;
    until_there_are(2).await;
    heir.stop().await;
    relay.stop().await;
    std::fs::remove_file(&path).unwrap();
}
