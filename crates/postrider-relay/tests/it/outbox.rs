//! Adopted outbox tables under a relay: a consumer of the old poller cannot tell the difference.

mod mailbox;
mod poller;
#[allow(dead_code, reason = "shared with the tests of the library")]
#[path = "../../../postrider/tests/it/outbox/tables.rs"]
pub mod tables;

use std::collections::BTreeMap;
use std::time::Duration;

use postrider::outbox::{self, Mode, Outbox, Preset};
use postrider_relay::{EnvelopeKind, Ordering, Relay, RelaySettings, SinkSettings};
use postrider_testkit::Database;
use sqlx::{AssertSqlSafe, PgConnection};

use self::mailbox::{Letter, Mailbox};
use self::tables::{insert, table};
use crate::support::{Answer, PATIENCE, Probe, database, settings, sink};

pub async fn execute(connection: &mut PgConnection, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(connection).await.unwrap();
}

async fn count(connection: &mut PgConnection, question: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(question.to_owned())).fetch_one(connection).await.unwrap()
}

/// Waits until a question with a number for an answer is answered so.
pub async fn until(connection: &mut PgConnection, question: &str, answer: i64) {
    let mut found = None;
    let asked = async {
        while found != Some(answer) {
            found = Some(count(connection, question).await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, asked).await.is_ok(), "{found:?} and not {answer}: {question}");
}

pub fn declared(preset: Preset, mode: Mode) -> Outbox {
    Outbox {
        mode,
        stale_after: Duration::ZERO,
        interval: (Duration::from_millis(10), Duration::from_millis(100)),
        ..Outbox::new("public.outbox", preset)
    }
}

/// How a sink is set up so that consumers of the old poller go on.
fn moved(preset: Preset, mailbox: &Mailbox) -> SinkSettings {
    let (envelope, route) = match preset {
        Preset::Plane => (EnvelopeKind::Plane, None),
        Preset::OutboxEvents | Preset::OutboxTopic | Preset::OutboxUuid => {
            (EnvelopeKind::Plain, Some("{type}"))
        }
        Preset::EventsOutbox => (EnvelopeKind::Plain, Some("{type.0}")),
        Preset::Debezium => (EnvelopeKind::Debezium, Some("outbox.event.{entity}")),
    };
    SinkSettings { envelope, route: route.map(str::to_owned), ..sink("letters", mailbox.target()) }
}

fn relay(database: &Database, sinks: Vec<SinkSettings>, outbox: &Outbox) -> Relay {
    Relay::start(RelaySettings { outboxes: vec![outbox.clone()], ..settings(database, sinks) }).unwrap()
}

/// As it is in production: neither the relay nor the table's owner is a superuser. A relay asks with row security off.
#[tokio::test]
async fn a_relay_with_the_rights_of_its_role_keeps_a_table_of_another() {
    for mode in [Mode::Trigger, Mode::Poll] {
        let database = database().await;
        let mut connection = database.connect().await.unwrap();
        let [owner, relays] = ["owner", "relay"].map(|what| format!("{what}{}", rand::random::<u32>()));
        execute(&mut connection, table(Preset::Plane)).await;
        execute(
            &mut connection,
            &format!(
                "create role {owner} login; grant all on schema public to {owner}; alter table outbox owner to {owner};
                 create role {relays} login in role postrider_relay"
            ),
        )
        .await;
        insert(&mut connection, Preset::Plane, 1, "k").await;
        let outbox = declared(Preset::Plane, mode);
        outbox::apply(&mut connection, std::slice::from_ref(&outbox), false).await.unwrap();
        let mailbox = Mailbox::default();
        let mut settings = RelaySettings {
            outboxes: vec![outbox.clone()],
            ..settings(&database, vec![moved(Preset::Plane, &mailbox)])
        };
        settings.database = database.url_as(&relays).parse().unwrap();
        settings.log.sweep = Duration::from_millis(100);
        let relay = Relay::start(settings).unwrap();
        for n in 2..=20 {
            insert(&mut connection, Preset::Plane, n, "k").await;
        }
        mailbox.wait_for(20).await;
        until(&mut connection, "select count(*) from outbox where processed_at is null", 0).await;
        until(&mut connection, "select count(*) from postrider.adopted", 0).await;
        relay.stop().await;
        assert_eq!(mailbox.letters().len(), 20, "{mode:?}: none twice");
        drop(connection);
        let mut connection = database.connect().await.unwrap();
        execute(&mut connection, &format!("drop owned by {owner}, {relays}; drop role {owner}, {relays}"))
            .await;
    }
}

/// The old poller is stopped in the middle of its second batch, ours is started: whoever reads the letters gets every one, each as
/// the old one would have written it, those of one key in order, and twice only what was sent and not marked.
#[tokio::test]
async fn a_consumer_of_the_old_poller_cannot_tell_the_difference() {
    for preset in Preset::ALL {
        tokio::join!(taken_over(preset, Mode::Trigger), taken_over(preset, Mode::Poll));
    }
}

async fn taken_over(preset: Preset, mode: Mode) {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    execute(&mut connection, table(preset)).await;
    for n in 1..=40 {
        insert(&mut connection, preset, n, &format!("k{}", n % 4)).await;
    }
    let expected = poller::letters(&mut connection, preset).await;
    let old = poller::run_and_stop(&mut connection, preset).await;
    assert_eq!(old.len(), 15, "a batch, and half of one that is not marked");

    let outbox = declared(preset, mode);
    outbox::apply(&mut connection, std::slice::from_ref(&outbox), false).await.unwrap();
    let mailbox = Mailbox::default();
    let relay = relay(&database, vec![moved(preset, &mailbox)], &outbox);
    for n in 41..=50 {
        insert(&mut connection, preset, n, &format!("k{}", n % 4)).await;
    }
    let later = poller::later(&mut connection, preset).await;
    let ours = mailbox.wait_for(40).await;
    if let Some(sent) = tables::sent(preset) {
        until(&mut connection, &format!("select count(*) from outbox where {sent} is null"), 0).await;
    }
    relay.stop().await;
    assert_eq!(mailbox.letters().len(), 40, "{preset:?} {mode:?}: none twice");

    let all: BTreeMap<&str, &Letter> =
        expected.iter().chain(&later).map(|letter| (letter.id.as_str(), letter)).collect();
    for letter in &ours {
        let expected = all.get(letter.id.as_str()).unwrap_or_else(|| panic!("{preset:?}: {letter:?}"));
        letter.assert_like(expected, &format!("{preset:?} {mode:?}"));
    }
    let mut ids: Vec<&str> = old[..10].iter().chain(&ours).map(|letter| letter.id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 50, "{preset:?} {mode:?}: nothing is missing");
    assert_ordered(&ours, preset);
}

fn assert_ordered(letters: &[Letter], preset: Preset) {
    let mut last: BTreeMap<Option<&str>, i64> = BTreeMap::new();
    for letter in letters.iter().filter(|letter| letter.record_key.is_some()) {
        if let Some(before) = last.insert(letter.record_key.as_deref(), letter.number) {
            assert!(before < letter.number, "{preset:?}: {} after {before}", letter.number);
        }
    }
}

/// While a sink refuses a row the table says so, and what is behind it in its key waits; then it is sent.
#[tokio::test]
async fn a_refused_row_says_why_until_it_is_taken() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    execute(&mut connection, table(Preset::OutboxTopic)).await;
    let outbox = declared(Preset::OutboxTopic, Mode::Trigger);
    outbox::apply(&mut connection, std::slice::from_ref(&outbox), false).await.unwrap();
    let probe =
        Probe::answering(|message| if message.id.to_string() == "1" { Answer::Refuse } else { Answer::Take });
    let mut strict = sink("probe", probe.target());
    strict.retry.first = Duration::from_millis(50);
    strict.retry.max = Duration::from_millis(50);
    strict.retry.max_attempts = u32::MAX;
    let relay = relay(&database, vec![strict], &outbox);
    for (n, key) in [(1, "a"), (2, "a"), (3, "b")] {
        insert(&mut connection, Preset::OutboxTopic, n, key).await;
    }
    until(&mut connection, "select count(*) from outbox where published_at is null", 2).await;
    until(
        &mut connection,
        "select count(*) from outbox where id = 1 and attempts > 1 and last_error = 'probe: the probe says no' and published_at is null",
        1,
    )
    .await;
    probe.answer(|_| Answer::Take);
    until(&mut connection, "select count(*) from outbox where published_at is null", 0).await;
    relay.stop().await;
    let ids: Vec<String> = probe.taken().into_iter().map(|taken| taken.id).collect();
    assert_eq!(ids, ["3", "1", "2"]);
}

/// Whoever has a row locked when it is to be marked keeps the marks of its lane waiting. Other rows are taken, delivered and marked, and he gets every
/// other row of the table too: nobody waits for him who holds one.
#[tokio::test]
async fn a_row_that_is_locked_when_it_is_to_be_marked_holds_up_no_other() {
    const WAITS: &str =
        "select (count(*) > 0)::integer::bigint from pg_stat_activity where datname = current_database()
        and application_name = 'postrider (outbox)' and wait_event_type = 'Lock'";
    for mode in [Mode::Poll, Mode::Trigger] {
        let database = database().await;
        let mut connection = database.connect().await.unwrap();
        execute(&mut connection, table(Preset::Plane)).await;
        let outbox = declared(Preset::Plane, mode);
        outbox::apply(&mut connection, std::slice::from_ref(&outbox), false).await.unwrap();
        let probe = Probe::answering(|_| Answer::Unavailable);
        let relay = relay(&database, vec![sink("probe", probe.target())], &outbox);
        for n in 1..=5 {
            insert(&mut connection, Preset::Plane, n, "a").await;
        }
        until(&mut connection, "select count(*) from outbox where claimed_at is not null", 5).await;
        let mut holder = database.connect().await.unwrap();
        execute(&mut holder, "begin; update outbox set initiator_type = 'APP' where id = 5").await;
        probe.answer(|_| Answer::Take);
        probe.wait_for(5).await;
        // It has met the lock, with the rows before it in its hands.
        until(&mut connection, WAITS, 1).await;
        execute(&mut holder, "update outbox set initiator_type = 'APP' where id = 1").await;
        for n in 6..=20 {
            insert(&mut connection, Preset::Plane, n, &format!("key {n}")).await;
        }
        probe.wait_for(20).await;
        // Those that share its lane are not meant.
        let others =
            "select (count(*) > 5)::integer::bigint from outbox where id > 5 and processed_at is not null";
        until(&mut connection, others, 1).await;
        assert_eq!(
            count(&mut connection, "select count(*) from outbox where id in (1, 5) and processed_at is null")
                .await,
            2
        );
        execute(&mut holder, "commit").await;
        until(&mut connection, "select count(*) from outbox where processed_at is null", 0).await;
        relay.stop().await;
    }
}

/// Whoever has a refused row locked keeps the refusals of its lane from being told, and nothing else: those of other lanes are, and behind more of them than
/// a set has, a row that was taken is marked.
#[tokio::test]
async fn a_refused_row_that_is_locked_holds_up_no_other() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    execute(&mut connection, table(Preset::OutboxTopic)).await;
    let outbox = declared(Preset::OutboxTopic, Mode::Trigger);
    outbox::apply(&mut connection, std::slice::from_ref(&outbox), false).await.unwrap();
    execute(
        &mut connection,
        "insert into outbox (topic, key, payload) select 't', case when n <= 600 or n = 621 then 'one' else 'key ' || n end, '{}'
         from generate_series(1, 621) n",
    )
    .await;
    let mut holder = database.connect().await.unwrap();
    execute(&mut holder, "begin; select from outbox where id = 1 for update").await;
    let probe = Probe::answering(
        |message| {
            if message.id.to_string() == "621" { Answer::Take } else { Answer::Refuse }
        },
    );
    // One of a key holds up no other of it, which is so in the same lane.
    let mut relaxed = SinkSettings { ordering: Ordering::Relaxed, ..sink("probe", probe.target()) };
    relaxed.retry.max_attempts = 1;
    let relay = relay(&database, vec![relaxed], &outbox);
    until(&mut connection, "select count(*) from postrider.parked", 620).await;
    let others = "select (count(*) > 5)::integer::bigint from outbox where id between 601 and 620 and last_error is not null";
    until(&mut connection, others, 1).await;
    until(&mut connection, "select count(*) from outbox where id = 621 and published_at is not null", 1)
        .await;
    assert_eq!(
        count(&mut connection, "select count(*) from outbox where id = 1 and last_error is null").await,
        1
    );
    execute(&mut holder, "commit").await;
    until(&mut connection, "select count(*) from outbox where last_error is null", 1).await;
    relay.stop().await;
}

/// A row whose claim somebody else takes back, because it seems stale to him, is not taken once more while it waits for a sink.
#[tokio::test]
async fn a_claim_that_is_taken_back_by_somebody_repeats_nothing() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    execute(&mut connection, table(Preset::Plane)).await;
    let outbox = declared(Preset::Plane, Mode::Poll);
    outbox::apply(&mut connection, std::slice::from_ref(&outbox), false).await.unwrap();
    let probe = Probe::answering(|_| Answer::Unavailable);
    let relay = relay(&database, vec![sink("probe", probe.target())], &outbox);
    insert(&mut connection, Preset::Plane, 1, "a").await;
    until(&mut connection, "select count(*) from outbox where claimed_at is not null", 1).await;
    execute(&mut connection, "update outbox set claimed_at = null").await;
    // Behind it, so that the mover has seen both.
    insert(&mut connection, Preset::Plane, 2, "b").await;
    until(&mut connection, "select count(*) from outbox where id = 2 and claimed_at is not null", 1).await;
    probe.answer(|_| Answer::Take);
    until(&mut connection, "select count(*) from outbox where processed_at is null", 0).await;
    relay.stop().await;
    assert_eq!(probe.count(), 2);
}

/// A row is moved as soon as the table's own channel tells of it, however long the pauses are.
#[tokio::test]
async fn the_tables_own_channel_wakes_the_mover() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    execute(&mut connection, table(Preset::OutboxEvents)).await;
    execute(
        &mut connection,
        "create function notify_outbox() returns trigger language plpgsql as $$ begin perform pg_notify('outbox', ''); return new; end $$;
         create trigger outbox_notify after insert on outbox for each row execute function notify_outbox()",
    )
    .await;
    let pause = Duration::from_hours(1);
    let outbox = Outbox { interval: (pause, pause), ..declared(Preset::OutboxEvents, Mode::Poll) };
    outbox::apply(&mut connection, std::slice::from_ref(&outbox), false).await.unwrap();
    let mailbox = Mailbox::default();
    let relay = relay(&database, vec![moved(Preset::OutboxEvents, &mailbox)], &outbox);
    // It has looked once, and sleeps.
    until(&mut connection, "select count(*) from postrider.keepers", 1).await;
    until(
        &mut connection,
        "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'postrider (outbox)'
            and state = 'idle' and query ilike '%misfits_public_outbox%'",
        1,
    )
    .await;
    insert(&mut connection, Preset::OutboxEvents, 1, "k").await;
    mailbox.wait_for(1).await;
    relay.stop().await;
}

/// A statement that marks rows may have waited for a lock since before one of them was written.
#[tokio::test]
async fn no_row_was_sent_before_it_was_claimed() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let mut locker = database.connect().await.unwrap();
    execute(&mut connection, table(Preset::Plane)).await;
    let outbox = declared(Preset::Plane, Mode::Trigger);
    outbox::apply(&mut connection, std::slice::from_ref(&outbox), false).await.unwrap();
    let mailbox = Mailbox::default();
    let relay = relay(&database, vec![moved(Preset::Plane, &mailbox)], &outbox);
    insert(&mut connection, Preset::Plane, 1, "k").await;
    until(&mut connection, "select count(*) from outbox where processed_at is not null", 1).await;

    // Now and then it tells of refusals first, and waits there.
    // Of the two that mark, one is enough.
    let waits = "select (count(*) > 0)::integer::bigint from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock' and query like '-- Rows of an adopted table that";
    loop {
        execute(&mut locker, "begin; lock table postrider.parked in access exclusive mode").await;
        until(&mut connection, &format!("{waits} %'"), 1).await;
        if count(&mut connection, &format!("{waits} every sink has settled%'")).await == 1 {
            break;
        }
        execute(&mut locker, "rollback").await;
    }
    insert(&mut connection, Preset::Plane, 2, "k").await;
    mailbox.wait_for(2).await;
    let settled = "select count(*) from postrider.events e join postrider.cursors c using (lane)
        where e.seq = (select max(seq) from postrider.events) and c.position >= e.seq";
    until(&mut connection, settled, 1).await;
    execute(&mut locker, "rollback").await;

    until(&mut connection, "select count(*) from outbox where processed_at is not null", 2).await;
    until(&mut connection, "select count(*) from outbox where claimed_at > processed_at", 0).await;
    relay.stop().await;
}
