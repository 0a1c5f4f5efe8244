//! The same log in another database: refused, and readable again after a rebase that loses nothing.

mod interrupted;

use std::collections::{BTreeMap, HashMap};

use postrider::log::cursor::Cursor;
use postrider::log::progress::{self, Stored};
use postrider::log::rebase::{self, Alive};
use postrider::log::{Error, Reader, ReaderOptions, round};
use postrider_testkit::{Database, PostgresServer, Settings, Version};
use sqlx::PgConnection;

use crate::dump::{dump, restored};
use crate::support::{database, emit, next, open, options, read_types, reading, run};

/// Delivered, undelivered, and in the middle of a late set; what `delivered` names was settled.
struct Past {
    emitted: Vec<String>,
    delivered: Vec<String>,
}

/// Events of two sinks: `test` has settled some of them, `idle` none.
async fn past(database: &Database) -> Past {
    let mut writer = database.connect().await.unwrap();
    let mut slow = database.connect().await.unwrap();
    open(database, reading("idle")).await.close().await.unwrap();
    let mut reader = open(database, ReaderOptions { page: 1, ..reading("test") }).await;
    let mut emitted = Vec::new();
    // Written early and committed late: 40 rows in one lane, of which some will be delivered.
    run(&mut slow, "begin").await;
    for number in 0..40 {
        emitted.push(format!("late.{number}"));
        emit(&mut slow, &format!("late.{number}"), "slow").await;
    }
    for number in 0..60 {
        emitted.push(format!("early.{number}"));
        emit(&mut writer, &format!("early.{number}"), &format!("key {}", number % 10)).await;
    }
    let mut delivered = read_types(&mut reader, 60).await;
    run(&mut slow, "commit").await;
    // Pages of one row for each of 16 lanes: a late set is read 16 rows at a time.
    delivered.extend(read_types(&mut reader, 1).await);
    assert_eq!(delivered.len(), 76);
    let in_the_middle: bool =
        sqlx::query_scalar("select bool_or(target is not null) from postrider.cursors where sink = 'test'")
            .fetch_one(&mut writer)
            .await
            .unwrap();
    assert!(in_the_middle, "the dump should find a cursor inside a late set");
    reader.close().await.unwrap();
    for number in 0..30 {
        emitted.push(format!("owed.{number}"));
        emit(&mut writer, &format!("owed.{number}"), &format!("key {}", number % 10)).await;
    }
    Past { emitted, delivered }
}

/// As if everything had been delivered, and settled again, two minutes ago.
async fn two_minutes_pass(connection: &mut PgConnection) {
    run(connection, "update postrider.progress set settled_at = settled_at + interval '2 minutes'").await;
}

/// A log, and a restored copy of it in another cluster whose transactions have lower numbers. (It has the same system identifier:
/// clusters of a test run are copies of what initdb made once.)
async fn restored_into_a_younger_cluster(time_passed: bool) -> (PostgresServer, Database, Past) {
    let source = database().await;
    let mut connection = source.connect().await.unwrap();
    burn_xids(&mut connection, 3000).await;
    let past = past(&source).await;
    if time_passed {
        two_minutes_pass(&mut connection).await;
    }
    let server = PostgresServer::private(Version::default(), Settings::for_tests()).await.unwrap();
    let copy = restored(&server, dump(&source, &[]).await).await;
    (server, copy, past)
}

async fn burn_xids(connection: &mut PgConnection, count: i64) {
    run(
        connection,
        "create procedure pg_temp.burn(count bigint) language plpgsql as
         $$ begin for i in 1..count loop perform pg_current_xact_id(); commit; end loop; end $$",
    )
    .await;
    sqlx::query("call pg_temp.burn($1)").bind(count).execute(&mut *connection).await.unwrap();
    run(connection, "drop procedure pg_temp.burn").await;
}

/// Goes on until the cluster is past every transaction with this number or a lower one.
async fn reach(connection: &mut PgConnection, xid: i64) {
    let here: i64 = sqlx::query_scalar("select pg_current_xact_id()::text::bigint")
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    burn_xids(connection, xid - here + 1).await;
}

async fn highest_xid(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar("select xid::text::bigint from postrider.events order by xid desc limit 1")
        .fetch_one(connection)
        .await
        .unwrap()
}

/// Refused, with these words in the message.
async fn assert_refused(database: &Database, words: &str) {
    let error = Reader::open(options(database).into(), reading("test")).await.err().expect("opened");
    assert!(matches!(error, Error::Rebase { .. }), "{error}");
    assert!(error.to_string().contains(words), "{error}");
    assert!(error.to_string().contains("postrider rebase"), "{error}");
}

/// Everything that is there to be read, how often, up to an event that is emitted now.
async fn read_all(database: &Database, sink: &str) -> HashMap<String, usize> {
    emit(&mut database.connect().await.unwrap(), "end", "end").await;
    let mut reader = open(database, reading(sink)).await;
    let mut found = HashMap::new();
    while !found.contains_key("end") {
        let batch = next(&mut reader).await;
        for record in batch.records() {
            *found.entry(record.r#type.clone()).or_default() += 1;
        }
        reader.settle(&batch).await.unwrap();
    }
    reader.close().await.unwrap();
    found.remove("end");
    found
}

/// The cursors of the sink `test` as stored, in groups that one statement reads.
async fn stored(connection: &mut PgConnection) -> Vec<BTreeMap<i16, Cursor>> {
    let sink = sqlx::query_scalar("select sink from postrider.sinks where name = 'test'")
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    let stored: BTreeMap<i16, Stored> = progress::load(connection, sink, "test").await.unwrap();
    let mut groups: Vec<BTreeMap<i16, Cursor>> = Vec::new();
    for (lane, Stored { cursor, .. }) in stored {
        match groups.iter_mut().find(|group| group.values().next().unwrap().reads_with(&cursor)) {
            Some(group) => drop(group.insert(lane, cursor)),
            None => groups.push(BTreeMap::from([(lane, cursor)])),
        }
    }
    groups
}

/// One round without asking whether this is the same database: the types it finds and the cursors after it.
async fn unchecked_round(
    connection: &mut PgConnection,
    groups: Vec<BTreeMap<i16, Cursor>>,
) -> (Vec<String>, Vec<BTreeMap<i16, Cursor>>) {
    let mut found = Vec::new();
    let mut ends = Vec::new();
    for group in groups {
        let round = round::read(connection, round::READ, 16, &group, 1000).await.unwrap();
        found.extend(round.pages.values().flat_map(|page| &page.records).map(|record| record.r#type.clone()));
        ends.push(round.pages.into_iter().map(|(lane, page)| (lane, page.end)).collect());
    }
    (found, ends)
}

#[tokio::test]
async fn a_dump_restored_into_a_younger_cluster_loses_nothing() {
    for time_passed in [false, true] {
        let (_server, copy, past) = restored_into_a_younger_cluster(time_passed).await;
        let mut connection = copy.connect().await.unwrap();
        let old_xid = highest_xid(&mut connection).await;
        assert_refused(&copy, "this cluster is only at").await;

        let plan = rebase::plan(&mut connection).await.unwrap();
        assert!(plan.reason.unwrap().contains("younger cluster"));
        let again: HashMap<_, _> = plan.sinks.iter().map(|again| (again.sink.as_str(), again)).collect();
        assert_eq!(again["idle"].events, 0, "it has passed nothing");
        // 60 delivered and 40 late, of which 16 were delivered: the latter are known once a minute has passed.
        assert_eq!(again["test"].events, if time_passed { 24 } else { 100 });

        let applied = rebase::apply(&mut connection, Alive::Refuse).await.unwrap();
        assert_eq!(applied.sinks, plan.sinks);
        assert_eq!(applied.moved, 0, "the sequence was carried over");
        assert!(rebase::plan(&mut connection).await.unwrap().reason.is_none());

        let found = read_all(&copy, "test").await;
        let twice = past.delivered.iter().filter(|event| found.contains_key(*event)).count();
        for event in past.emitted.iter().filter(|event| !past.delivered.contains(event)) {
            assert_eq!(found.get(event), Some(&1), "{event}");
        }
        assert_eq!(twice, if time_passed { 0 } else { 76 }, "sent twice");
        assert!(twice as u64 <= again["test"].events);
        let found = read_all(&copy, "idle").await;
        assert_eq!(found.len(), past.emitted.len());
        assert!(found.values().all(|times| *times == 1));

        // From here on it is an ordinary log, also when the cluster reaches the transactions of the old one.
        emit(&mut connection, "new", "key 1").await;
        reach(&mut connection, old_xid).await;
        assert_eq!(read_all(&copy, "test").await, HashMap::from([("new".to_owned(), 1)]));
        assert_eq!(read_all(&copy, "test").await, HashMap::new());
    }
}

/// Why a restored log is refused: as soon as the younger cluster reaches the transactions of the old one, its rows come again.
#[tokio::test]
async fn without_the_check_a_restored_log_is_sent_again() {
    let (_server, copy, past) = restored_into_a_younger_cluster(true).await;
    let mut connection = copy.connect().await.unwrap();
    let cursors = stored(&mut connection).await;
    let (_, cursors) = unchecked_round(&mut connection, cursors).await;
    let (_, cursors) = unchecked_round(&mut connection, cursors).await;
    let (nothing, cursors) = unchecked_round(&mut connection, cursors).await;
    assert_eq!(nothing, Vec::<String>::new());
    let old_xid = highest_xid(&mut connection).await;
    reach(&mut connection, old_xid).await;
    let (again, _) = unchecked_round(&mut connection, cursors).await;
    assert_eq!(past.delivered.iter().filter(|event| again.contains(event)).count(), 76);
}

#[tokio::test]
async fn fault_19_a_sequence_that_was_reset_is_refused_and_mended() {
    let database = database().await;
    let past = past(&database).await;
    let mut connection = database.connect().await.unwrap();
    two_minutes_pass(&mut connection).await;
    run(&mut connection, "alter sequence postrider.seq restart").await;
    assert_refused(&database, "the sequence postrider.seq is only at 0").await;
    emit(&mut connection, "after.reset", "key 1").await;
    assert_refused(&database, "the sequence postrider.seq is only at 1").await;

    let applied = rebase::apply(&mut connection, Alive::Refuse).await.unwrap();
    assert_eq!(applied.moved, 0, "emitted before the last settling, as far as its clock says");
    emit(&mut connection, "after.rebase", "key 1").await;
    let found = read_all(&database, "test").await;
    assert_eq!(found["after.reset"], 1);
    assert_eq!(found["after.rebase"], 1);
    assert_eq!(found.len(), past.emitted.len() - past.delivered.len() + 2, "{found:?}");
}

#[tokio::test]
async fn a_log_in_another_cluster_is_refused_whatever_its_numbers() {
    let database = database().await;
    let past = past(&database).await;
    let mut connection = database.connect().await.unwrap();
    two_minutes_pass(&mut connection).await;
    run(&mut connection, "update postrider.identity set system_identifier = 7").await;
    assert_refused(&database, "the log belongs to cluster 7").await;
    rebase::apply(&mut connection, Alive::Refuse).await.unwrap();
    let found = read_all(&database, "test").await;
    assert_eq!(found.len(), past.emitted.len() - past.delivered.len());
    assert!(past.delivered.iter().all(|event| !found.contains_key(event)), "sent twice: {found:?}");
}

/// A log that went to another cluster by logical replication: rows and cursors arrived, the sequence did not, and 50 events
/// have been written since.
async fn switched_over() -> (PostgresServer, Database, Past) {
    let source = database().await;
    let past = past(&source).await;
    let server = PostgresServer::private(Version::default(), Settings::for_tests()).await.unwrap();
    let copy = restored(&server, dump(&source, &[]).await).await;
    let mut connection = copy.connect().await.unwrap();
    run(&mut connection, "alter sequence postrider.seq restart").await;
    let old_xid = highest_xid(&mut connection).await;
    reach(&mut connection, old_xid).await;
    for number in 0..50 {
        emit(&mut connection, &format!("switched.{number}"), &format!("key {}", number % 10)).await;
    }
    (server, copy, past)
}

#[tokio::test]
async fn a_switchover_without_the_sequence_loses_nothing_and_keeps_the_order() {
    let (_server, copy, past) = switched_over().await;
    let mut connection = copy.connect().await.unwrap();
    assert_refused(&copy, "the sequence postrider.seq is only at 50").await;
    let plan = rebase::plan(&mut connection).await.unwrap();
    let applied = rebase::apply(&mut connection, Alive::Refuse).await.unwrap();
    assert_eq!(applied.sinks, plan.sinks);
    assert_eq!(applied.moved, 50);

    let mut reader = open(&copy, reading("idle")).await;
    let all = read_types(&mut reader, past.emitted.len() + 50).await;
    reader.close().await.unwrap();
    let place = |event: &str| all.iter().position(|found| found == event).unwrap();
    for number in 0..30 {
        let (before, after) = (format!("owed.{number}"), format!("switched.{number}"));
        assert!(place(&before) < place(&after), "{after} overtook {before}, which has the same key");
    }
    let found = read_all(&copy, "test").await;
    for number in 0..50 {
        assert_eq!(found.get(&format!("switched.{number}")), Some(&1), "{number}");
    }
}

/// Why it is refused: the new events have lower numbers than the cursors.
#[tokio::test]
async fn without_the_check_a_switchover_loses_events() {
    let (_server, copy, _) = switched_over().await;
    let mut connection = copy.connect().await.unwrap();
    let mut cursors = stored(&mut connection).await;
    let mut found = Vec::new();
    for _ in 0..5 {
        let (types, after) = unchecked_round(&mut connection, cursors).await;
        found.extend(types);
        cursors = after;
    }
    // The same 30 in every round, because no position can move, and none of the others.
    assert!(found.iter().filter(|event| event.starts_with("owed")).count() > 30);
    assert_eq!(found.iter().filter(|event| event.starts_with("switched")).count(), 0);
}

#[tokio::test]
async fn is_refused_while_a_reader_is_alive() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let options = ReaderOptions { name: "the relay in rack 4".to_owned(), ..ReaderOptions::new("test") };
    let reader = open(&database, options).await;
    let last = "select last_value from postrider.seq";
    let before: i64 = sqlx::query_scalar(last).fetch_one(&mut connection).await.unwrap();
    assert_eq!(rebase::plan(&mut connection).await.unwrap().alive, ["the relay in rack 4"]);
    let error = rebase::apply(&mut connection, Alive::Refuse).await.unwrap_err();
    assert!(matches!(error, Error::ReadersAlive { .. }), "{error}");
    assert!(error.to_string().contains("the relay in rack 4"), "{error}");
    // Nothing was touched.
    assert_eq!(sqlx::query_scalar::<_, i64>(last).fetch_one(&mut connection).await.unwrap(), before);
    assert!(rebase::plan(&mut connection).await.unwrap().reason.is_none());
    reader.close().await.unwrap();
    rebase::apply(&mut connection, Alive::Refuse).await.unwrap();
    open(&database, reading("test")).await;
}
