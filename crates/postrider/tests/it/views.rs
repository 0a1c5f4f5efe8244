//! The views for people with only psql: right without a relay, and cheap whatever the history is.

use std::time::Duration;

use postrider::log::{Mood, Reader, ReaderOptions, Report, Start};
use postrider::schema::{self, Install};
use postrider_testkit::{Database, PostgresServer, Settings, Template, Version, postgres};
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::faults::until;
use crate::rules::Hand;
use crate::support::{database, database_on, database_with_one_lane, emit, run};

/// What the backlog says over all lanes.
async fn backlog(connection: &mut PgConnection) -> (i64, bool) {
    sqlx::query_as("select sum(events)::bigint, bool_and(is_exact) from postrider.backlog")
        .fetch_one(connection)
        .await
        .unwrap()
}

async fn count(connection: &mut PgConnection, relation: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(format!("select count(*) from {relation}")))
        .fetch_one(connection)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_slow_transaction_that_was_passed_is_owed_once_it_commits() {
    let database = database().await;
    let (mut slow, mut fast) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    let mut reader = Hand::open(&database).await;
    run(&mut slow, "begin").await;
    emit(&mut slow, "slow", "a").await;
    emit(&mut fast, "fast", "b").await;
    assert_eq!(backlog(&mut fast).await, (1, true));
    assert_eq!(reader.look().await, ["fast"]);
    reader.settle().await;
    assert_eq!(backlog(&mut fast).await, (0, true), "what is not committed is not owed");
    assert_eq!(count(&mut fast, "postrider.lag where oldest is null and lag = '0'").await, 1);
    run(&mut slow, "commit").await;
    assert_eq!(backlog(&mut fast).await, (1, true), "late, and owed");
    assert_eq!(count(&mut fast, "postrider.lag where oldest is not null and lag > '0'").await, 1);
    let held: Vec<String> =
        sqlx::query_scalar("select unnest(held_by) from postrider.slots where is_current")
            .fetch_all(&mut fast)
            .await
            .unwrap();
    assert_eq!(held, ["by hand"]);
    assert_eq!(reader.look_until_quiet().await, ["slow"]);
    reader.settle().await;
    assert_eq!(backlog(&mut fast).await, (0, true));
}

/// The writer had the highest xid and none above had completed: it is in no snapshot's list.
#[tokio::test]
async fn a_writer_that_no_snapshot_knew_is_owed_too() {
    let server = PostgresServer::private(Version::default(), Settings::for_tests()).await.unwrap();
    let database = database_on(&server).await;
    let (mut writer, mut other) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    let mut reader = Hand::open(&database).await;
    run(&mut writer, "begin").await;
    emit(&mut writer, "newest", "a").await;
    assert_eq!(reader.look().await, [""; 0]);
    reader.settle().await;
    run(&mut writer, "commit").await;
    assert_eq!(backlog(&mut other).await, (1, true));
    assert_eq!(reader.look_until_quiet().await, ["newest"]);
    reader.settle().await;
    assert_eq!(backlog(&mut other).await, (0, true));
}

/// Wherever progress stops inside a late transaction, the backlog is what a reader would still be given.
#[tokio::test]
async fn the_middle_of_a_late_set_is_counted_exactly() {
    let database = database_with_one_lane().await;
    let (mut late, mut quick) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    let mut reader = Hand::open(&database).await;
    run(&mut late, "begin").await;
    for event_type in ["late 1", "late 2", "late 3"] {
        emit(&mut late, event_type, "a").await;
    }
    emit(&mut quick, "quick", "b").await;
    reader.look().await;
    reader.settle().await;
    run(&mut late, "commit").await;
    emit(&mut quick, "after", "a").await;
    let before = reader.cursors.clone();
    for delivered in 0..=4_usize {
        reader.cursors = before.clone();
        let round = reader.peek().await;
        reader.cursors =
            round.pages.iter().map(|(lane, page)| (*lane, page.cursor_after(delivered))).collect();
        reader.settle().await;
        let owed = i64::try_from(4 - delivered).unwrap();
        assert_eq!(backlog(&mut quick).await, (owed, true), "after {delivered}");
        reader.resume().await;
        assert_eq!(i64::try_from(reader.look_until_quiet().await.len()).unwrap(), owed);
    }
}

#[tokio::test]
async fn the_backlog_is_exact_to_ten_thousand_a_lane() {
    let database = database_with_one_lane().await;
    let mut connection = database.connect().await.unwrap();
    Hand::open_sink(&database, "web", Start::Now).await;
    run(
        &mut connection,
        "select count(postrider.emit('e', '{}'::json, key => n::text)) from generate_series(1, 9999) n",
    )
    .await;
    assert_eq!(backlog(&mut connection).await, (9_999, true));
    emit(&mut connection, "e", "k").await;
    assert_eq!(backlog(&mut connection).await, (10_000, true));
    emit(&mut connection, "e", "k").await;
    assert_eq!(backlog(&mut connection).await, (10_000, false), "at least");
}

/// Whoever removes progress by hand takes cursors away. The ring keeps everything for such a lane, and the views count it.
#[tokio::test]
async fn a_lane_without_a_cursor_is_owed_everything() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let mut reader = Hand::open(&database).await;
    for key in 0..40 {
        emit(&mut connection, "old", &key.to_string()).await;
    }
    reader.look().await;
    reader.settle().await;
    assert_eq!(backlog(&mut connection).await, (0, true));
    let lanes = count(&mut connection, "postrider.backlog").await;
    run(
        &mut connection,
        "update postrider.progress set lanes = lanes[2:], positions = positions[2:], late_positions = late_positions[2:],
             snapshot_of = snapshot_of[2:], target_of = target_of[2:], bounds = bounds[2:]",
    )
    .await;
    let owed = count(&mut connection, "postrider.events where lane = 0").await;
    assert!(owed > 0);
    assert_eq!(count(&mut connection, "postrider.backlog").await, lanes, "it is not left out");
    assert_eq!(backlog(&mut connection).await, (owed, false), "and what it is owed is there");
    assert_eq!(count(&mut connection, "postrider.backlog where not is_exact").await, 1);
    assert_eq!(count(&mut connection, "postrider.lag where oldest is not null").await, 1);
}

#[tokio::test]
async fn events_that_wait_for_more_than_five_minutes_are_stuck() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let mut reader = Hand::open(&database).await;
    emit(&mut connection, "young", "a").await;
    run(
        &mut connection,
        "insert into postrider.events (slot, lane, id, type, key, payload, created_at)
         values (0, 3, postrider.uuid7(), 'old', 'k', '{}', now() - interval '6 minutes')",
    )
    .await;
    let stuck: Vec<(String, String, Option<String>, bool)> =
        sqlx::query_as("select sink, type, key, waiting > '6 minutes' from postrider.stuck")
            .fetch_all(&mut connection)
            .await
            .unwrap();
    assert_eq!(stuck, [("by hand".to_owned(), "old".to_owned(), Some("k".to_owned()), true)]);
    reader.look_until_quiet().await;
    reader.settle().await;
    assert_eq!(count(&mut connection, "postrider.stuck").await, 0);
}

#[tokio::test]
async fn trouble_and_pace_are_shown_for_each_sink() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let _reader = Hand::open_sink(&database, "web", Start::Now).await;
    run(
        &mut connection,
        "insert into postrider.parked (sink, id, lane, seq, type, key, payload, created_at, state, attempts, kind, reason)
         select s.sink, postrider.uuid7(), 0, n, 'e', 'k', '{\"secret\": true}', now(),
                case n when 1 then 'dead' else 'behind' end, 10, 'rejected', 'no'
         from postrider.sinks s, generate_series(1, 3) n;
         update postrider.progress set events = 60, settled_at = now() - interval '10 seconds';
         insert into postrider.readers (reader, name, sinks, expires_at)
         select gen_random_uuid(), 'second', array[sink], clock_timestamp() + interval '1 hour' from postrider.sinks",
    )
    .await;
    let dead: Vec<(String, String, i64)> =
        sqlx::query_as("select sink, reason, behind from postrider.dead_letters")
            .fetch_all(&mut connection)
            .await
            .unwrap();
    assert_eq!(dead, [("web".to_owned(), "no".to_owned(), 2)]);
    let (readers, standby, free, rate, waiting, behind, dead): (
        Vec<String>,
        Vec<String>,
        i64,
        i64,
        i64,
        i64,
        i64,
    ) = sqlx::query_as(
        "select readers, standby, free_lanes, events_last_minute, waiting, behind, dead from postrider.delivery",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert_eq!((readers, standby), (vec!["web".to_owned()], vec!["second".to_owned()]));
    assert_eq!((free, waiting, behind, dead), (0, 0, 2, 1));
    let rows = count(&mut connection, "postrider.progress").await;
    assert_eq!(rate, 60 * rows);
    let per_minute: i64 =
        sqlx::query_scalar("select sum(events)::bigint from postrider.throughput where sink = 'web'")
            .fetch_one(&mut connection)
            .await
            .unwrap();
    assert_eq!(per_minute, rate);
    // Without a relay nothing of this goes away.
    run(&mut connection, "delete from postrider.readers").await;
    let free: i64 = sqlx::query_scalar("select free_lanes from postrider.delivery")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(free, 16);
}

/// A lease of minutes: what is news does not wait for the next heartbeat, and what is not, does.
#[tokio::test]
async fn what_a_reader_says_of_itself_is_seen_while_it_lives() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let options = ReaderOptions { lease: Duration::from_mins(10), ..ReaderOptions::new("web") };
    let reader = Reader::open(database.url().parse().unwrap(), options).await.unwrap();
    assert_eq!(
        count(&mut connection, "postrider.relays where state = 'running' and trouble is null").await,
        1
    );
    let trouble = |reason: &str| Report {
        mood: Mood::Waiting,
        trouble: Some(reason.to_owned()),
        sending: vec![7, 8],
        ..Report::default()
    };
    reader.report(trouble("it is away"));
    // What is in flight is told right after the heartbeat.
    until(
        &mut connection,
        "select exists (select from postrider.relays where state = 'waiting' and in_flight = 2)",
    )
    .await;
    let (lanes, in_flight): (i32, i32) =
        sqlx::query_as("select cardinality(lanes), in_flight from postrider.relays")
            .fetch_one(&mut connection)
            .await
            .unwrap();
    assert_eq!((lanes, in_flight), (16, 2));
    for view in ["lag", "delivery", "troubles"] {
        let said = format!("postrider.{view} where trouble like '%: it is away'");
        assert_eq!(count(&mut connection, &said).await, 1, "{view}");
    }
    reader.report(trouble("it is still away"));
    reader.report(Report::default());
    until(&mut connection, "select not exists (select from postrider.troubles)").await;

    reader.report(trouble("it is away again"));
    until(&mut connection, "select exists (select from postrider.troubles)").await;
    run(&mut connection, "update postrider.readers set expires_at = '-infinity'").await;
    for view in ["relays", "troubles", "lag where trouble is not null"] {
        assert_eq!(count(&mut connection, &format!("postrider.{view}")).await, 0, "{view}");
    }
}

/// Events straight into the tables, nineteen of twenty in one lane, half of them by one transaction.
async fn fill(connection: &mut PgConnection, from: i64, to: i64) {
    let statement = format!(
        "insert into postrider.events (xid, seq, slot, lane, id, type, key, payload)
         select (case when n % 2 = 0 then 500 else 1000 + n / 10 end)::text::xid8, n, (n / 62501) % 8,
                case when n % 20 = 0 then n / 20 % 16 else 3 end, '018f0000-0000-7000-8000-000000000000', 'filled', n % 1000, '{{}}'
         from generate_series({from}, {to}) n;
         select setval('postrider.seq', {to});
         vacuum analyze postrider.events"
    );
    for part in statement.split(';') {
        sqlx::raw_sql(AssertSqlSafe(part.to_owned())).execute(&mut *connection).await.unwrap();
    }
}

/// A sink whose lanes all stand at this position and knew of this snapshot.
async fn stand(connection: &mut PgConnection, position: i64, snapshot: &str) {
    let statement = format!(
        "update postrider.progress set positions = array_fill({position}::bigint, array[16]), snapshots = array['{snapshot}'::pg_snapshot],
             snapshot_of = array_fill(1, array[16]), bounds = array_fill(pg_snapshot_xmax('{snapshot}'), array[16]);
         analyze postrider.progress"
    );
    for part in statement.split(';') {
        sqlx::raw_sql(AssertSqlSafe(part.to_owned())).execute(&mut *connection).await.unwrap();
    }
}

async fn explain(connection: &mut PgConnection, view: &str) -> Value {
    explain_columns(connection, "*", view).await
}

async fn explain_columns(connection: &mut PgConnection, columns: &str, view: &str) -> Value {
    let statement = format!(
        "explain (analyze, buffers, costs off, timing off, format json) select {columns} from postrider.{view}"
    );
    let rows = sqlx::raw_sql(AssertSqlSafe(statement)).fetch_all(connection).await.unwrap();
    let text: String = rows[0].try_get_unchecked(0).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()[0]["Plan"].take()
}

fn nodes(plan: &Value) -> Vec<&Value> {
    let children = plan["Plans"].as_array().into_iter().flatten().flat_map(nodes);
    std::iter::once(plan).chain(children).collect()
}

fn buffers(plan: &Value) -> i64 {
    ["Shared Hit Blocks", "Shared Read Blocks"].iter().map(|key| plan[key].as_i64().unwrap()).sum()
}

/// With the planner's own settings, as in psql.
async fn touched(database: &Database, view: &str) -> i64 {
    let mut connection = database.connect().await.unwrap();
    let plan = explain(&mut connection, view).await;
    for scan in nodes(&plan) {
        let table = scan["Relation Name"].as_str().unwrap_or_default();
        let kind = scan["Node Type"].as_str().unwrap();
        // An empty slot has no index worth using, and whether one is empty is a single row of it.
        if table.starts_with("events_") && !["Index Scan", "Index Only Scan"].contains(&kind) {
            assert!(buffers(scan) <= 16, "{view}: {scan}");
        }
    }
    buffers(&plan)
}

#[tokio::test]
async fn no_view_walks_the_log() {
    const ROWS: i64 = 500_000;
    const VIEWS: [&str; 5] = ["backlog", "lag", "stuck", "slots", "delivery"];
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    Hand::open(&database).await;
    fill(&mut connection, 1, ROWS / 10).await;
    let mut small = Vec::new();
    for view in VIEWS {
        stand(&mut connection, ROWS, "999999:999999:").await;
        let idle = touched(&database, view).await;
        stand(&mut connection, 0, "999999:999999:").await;
        small.push((idle, touched(&database, view).await));
    }
    fill(&mut connection, ROWS / 10 + 1, ROWS).await;
    for (view, (idle, behind)) in VIEWS.into_iter().zip(small) {
        stand(&mut connection, ROWS, "999999:999999:").await;
        let now = touched(&database, view).await;
        assert!(now <= 2 * idle, "{view}: {idle} buffers at a tenth of the rows, {now} at all of them");
        // At a tenth the small lanes hold few hundred rows, now thousands: what is counted is counted.
        stand(&mut connection, 0, "999999:999999:").await;
        let now = touched(&database, view).await;
        assert!(now <= 4 * behind, "{view}: far behind {behind} buffers, now {now}");
    }
    // A large transaction that committed late: walked once for all lanes, and not again when it is delivered.
    stand(&mut connection, ROWS, "500:999999:500").await;
    let (events, exact) = backlog(&mut connection).await;
    assert!(!exact && events >= 10_000, "{events}");
    for view in VIEWS {
        touched(&database, view).await;
    }
}

/// A progress row has all lanes of its epoch: it is taken apart once, however many there are.
#[tokio::test]
async fn the_cursors_of_many_lanes_cost_no_more_than_their_number() {
    let database = database().await;
    let reader = Hand::open(&database).await;
    let mut connection = database.connect().await.unwrap();
    let plan = explain(&mut connection, "cursors").await;
    let mut loops = nodes(&plan)
        .into_iter()
        .filter(|node| node["Node Type"] == "Function Scan")
        .map(|node| node["Actual Loops"].as_f64().unwrap());
    assert!(loops.all(|loops| loops < 2.0), "{plan}");
    assert_eq!(count(&mut connection, "postrider.cursors").await, 16);
    drop(reader);
}

/// As many lanes as there may be, three sinks, each with a relay that has settled and something to settle.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_lanes_and_three_sinks_are_looked_at_cheaply() {
    const LANES: i64 = 1024;
    const SINKS: i64 = 3;
    let server = postgres(Version::default()).await.unwrap();
    let database = server.database(&Template::empty()).await.unwrap();
    let mut connection = database.connect().await.unwrap();
    let lanes = Some(i32::try_from(LANES).unwrap());
    schema::install(&mut connection, &Install { lanes, ..Install::default() }).await.unwrap();
    let fill = "select count(postrider.emit('t', '1', key => n::text)) from generate_series(1, 5000) n";
    run(&mut connection, fill).await;
    let mut readers = Vec::new();
    for sink in ["a", "b", "c"] {
        let options = ReaderOptions {
            start: Start::Earliest,
            lease: Duration::from_mins(5),
            ..ReaderOptions::new(sink)
        };
        let mut reader = Reader::open(database.url().parse().unwrap(), options).await.unwrap();
        let mut left = 5000;
        while left > 0 {
            let batch = reader.next().await.unwrap();
            left -= batch.len();
            reader.settle(&batch).await.unwrap();
        }
        readers.push(reader);
    }
    run(&mut connection, fill).await;
    // As `postrider status` does.
    run(&mut connection, "set jit = off").await;
    // Fewer than one for each cursor; the other views look into each lane of the log.
    assert!(buffers(&explain(&mut connection, "cursors").await) < SINKS * LANES / 4);
    for view in ["cursors", "backlog", "lag", "stuck", "delivery", "slots"] {
        for columns in ["*", "count(*)"] {
            let plan = explain_columns(&mut connection, columns, view).await;
            let taken_apart = nodes(&plan)
                .into_iter()
                .filter(|node| node["Alias"] == "c" && node["Node Type"] == "Function Scan");
            for node in taken_apart {
                assert!(node["Actual Loops"].as_f64().unwrap() <= 3.0, "{columns} of {view}: {node}");
            }
        }
    }
    assert_eq!(count(&mut connection, "postrider.cursors where reader is not null").await, SINKS * LANES);
    let owed: i64 = sqlx::query_scalar("select sum(events)::bigint from postrider.backlog")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(owed, SINKS * 5000);
}
