//! The plans of the reading statement, and what a round costs whatever the history is.

mod adopted;
mod parked;

use std::sync::atomic::{AtomicU32, Ordering};

use postrider::log::round::READ;
use postrider::log::{Start, ring, session, sink};
use serde_json::Value;
use sqlx::{AssertSqlSafe, PgConnection};

use crate::rules::without;
use crate::support::{database, options, run};

const ROWS: i64 = 1_000_000;

/// Events straight into the tables, in transactions of ten or with one that has half of them.
async fn fill(connection: &mut PgConnection, from: i64, to: i64, one_xid_has_half: bool) {
    let xid = if one_xid_has_half {
        "case when n % 2 = 0 then 500 else 1000 + n / 10 end"
    } else {
        "1000 + n / 10"
    };
    let statement = format!(
        "insert into postrider.events (xid, seq, slot, lane, id, type, key, payload)
         select ({xid})::text::xid8, n, (n / 125001) % 8, n % 16, '018f0000-0000-7000-8000-000000000000', 'filled', n % 1000, '{{}}'
         from generate_series({from}, {to}) n;
         select setval('postrider.seq', {to});
         vacuum analyze postrider.events"
    );
    for part in statement.split(';') {
        sqlx::raw_sql(AssertSqlSafe(part.to_owned())).execute(&mut *connection).await.unwrap();
    }
}

/// The plan of a round that stands at `position` and knew of `snapshot`, with the buffers it really touched.
async fn explain(
    connection: &mut PgConnection,
    statement: &str,
    mode: &str,
    snapshot: &str,
    position: i64,
) -> Value {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("round_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let prepare = format!(
        "set plan_cache_mode = {mode};
         prepare {name} (text, text, text, bigint[], bigint[], bigint, bigint, bigint) as {statement}"
    );
    sqlx::raw_sql(AssertSqlSafe(prepare)).execute(&mut *connection).await.unwrap();
    let execute = format!(
        "execute {name} ('{snapshot}', null, null, array_fill({position}::bigint, array[16]), array_fill(null::bigint, array[16]), 1000, 16000, 8388608)"
    );
    plan_of(connection, &execute).await
}

/// The plan of a statement without parameters, with the buffers it really touched.
pub async fn plan_of(connection: &mut PgConnection, statement: &str) -> Value {
    let explain = format!("explain (analyze, buffers, costs off, timing off, format json) {statement}");
    let rows = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(connection).await.unwrap();
    let text: String = sqlx::Row::try_get_unchecked(&rows[0], 0).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()[0]["Plan"].take()
}

fn nodes(plan: &Value) -> Vec<&Value> {
    let children = plan["Plans"].as_array().into_iter().flatten().flat_map(nodes);
    std::iter::once(plan).chain(children).collect()
}

pub fn buffers(plan: &Value) -> i64 {
    ["Shared Hit Blocks", "Shared Read Blocks"].iter().map(|key| plan[key].as_i64().unwrap()).sum()
}

/// Late rows come by (xid, seq), new rows by (lane, seq), and by nothing else.
fn assert_only_the_intended_indexes(plan: &Value, what: &str) {
    let scans: Vec<&Value> = nodes(plan)
        .into_iter()
        .filter(|node| node["Relation Name"].as_str().is_some_and(|name| name.starts_with("events_")))
        .collect();
    assert_eq!(scans.len(), 3 * 8, "{what}: eight slots for each of the three parts");
    for scan in scans {
        assert_eq!(scan["Node Type"], "Index Scan", "{what}: {scan}");
        let (index, condition) = (scan["Index Name"].as_str().unwrap(), scan["Index Cond"].as_str().unwrap());
        let intended = if condition.contains("xid") { "_xid_seq_idx" } else { "_lane_seq_idx" };
        assert!(index.ends_with(intended), "{what}: {index} for {condition}");
        assert!(condition.contains("xid") || condition.contains("(lane ="), "{what}: {condition}");
    }
}

/// A round that finds nothing late and nothing new: what an idle reader does all day.
async fn idle_buffers(connection: &mut PgConnection, statement: &str, position: i64) -> i64 {
    let (snapshot,): (String,) =
        sqlx::query_as("select pg_current_snapshot()::text").fetch_one(&mut *connection).await.unwrap();
    buffers(&explain(connection, statement, "force_generic_plan", &snapshot, position).await)
}

async fn plans_hold(one_xid_has_half: bool) {
    let database = database().await;
    let mut connection = session::connect(&options(&database)).await.unwrap();
    fill(&mut connection, 1, ROWS / 10, one_xid_has_half).await;
    let small = idle_buffers(&mut connection, READ, ROWS).await;
    fill(&mut connection, ROWS / 10 + 1, ROWS, one_xid_has_half).await;
    let large = idle_buffers(&mut connection, READ, ROWS).await;
    // Ten times the rows may be one more level of every index that is probed, and no more.
    assert!(
        large <= 2 * small,
        "an idle round touched {small} buffers at a tenth of the rows, {large} at all of them"
    );

    // A snapshot that knew running transactions and was taken in the middle: every part has something to do.
    let middle = format!("1900:{}:1900,1950", 1000 + ROWS / 20);
    for mode in ["force_generic_plan", "force_custom_plan"] {
        for (snapshot, position) in [("999999:999999:", ROWS), (middle.as_str(), ROWS / 2)] {
            let plan = explain(&mut connection, READ, mode, snapshot, position).await;
            assert_only_the_intended_indexes(&plan, &format!("{mode} at {position}"));
        }
    }

    // Both halves as one OR: when one xid has half of the rows it becomes a walk over everything.
    if one_xid_has_half {
        let either = "select count(*) from (select '500:999999:500'::pg_snapshot as old) r cross join lateral (
            select from postrider.events e where (e.xid in (select pg_snapshot_xip(r.old)) or e.xid >= pg_snapshot_xmax(r.old))
            and e.seq + 0 <= 0 and ($1::text is not null or $2::text is null or $3::text is null or $4::bigint[] is null
            or $5::bigint[] is null or $6::bigint is null or $7::bigint is null)) e";
        let as_one_or = buffers(&explain(&mut connection, either, "force_generic_plan", "1:1:", 0).await);
        assert!(as_one_or > 5 * large, "as one OR {as_one_or} buffers, as a union {large}");
    }
}

#[tokio::test]
async fn plans_hold_over_a_million_rows_with_uniform_xids() {
    plans_hold(false).await;
}

#[tokio::test]
async fn plans_hold_over_a_million_rows_when_one_xid_has_half() {
    plans_hold(true).await;
}

/// Events of so many old transactions in the first slot.
async fn fill_slot(connection: &mut PgConnection, rows: u32, transactions: u32) {
    let statement = format!(
        "insert into postrider.events (xid, slot, lane, id, type, key, payload)
         select (100 + n % {transactions})::text::xid8, 0, n % 16, '018f0000-0000-7000-8000-000000000000', 'filled', n % 1000, '{{}}'
         from generate_series(1, {rows}) n"
    );
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *connection).await.unwrap();
    run(connection, "vacuum analyze postrider.events_0").await;
}

/// The buffers that asking whether a slot is owed touches, and whether every row of the slot was found by a probe of an index.
async fn asking(connection: &mut PgConnection, statement: &str) -> (i64, bool) {
    let plan = plan_of(connection, &statement.replace("events_N", "events_0")).await;
    let scans: Vec<&Value> =
        nodes(&plan).into_iter().filter(|node| node["Relation Name"] == "events_0").collect();
    assert!(!scans.is_empty(), "{plan}");
    // One that walks an index and throws most of what it finds away is none.
    let probe = |scan: &&Value| {
        scan["Node Type"].as_str().is_some_and(|node| node.starts_with("Index"))
            && scan["Index Cond"].is_string()
            && scan["Rows Removed by Filter"].as_i64().unwrap_or_default() < 100
    };
    (buffers(&plan), scans.iter().all(probe))
}

/// Whether a slot may be emptied is asked under its lock, so the answer must not cost with what is in the slot.
#[tokio::test]
async fn a_slot_is_asked_by_probes_and_not_joined_with_the_cursors() {
    for transactions in [500, 1] {
        asked_by_probes(transactions).await;
    }
}

async fn asked_by_probes(transactions: u32) {
    const HELD: &str = include_str!("../../src/log/sql/held.sql");
    const JOINED: &str = "with newest as materialized (select * from postrider.cursors)
        select distinct c.sink from newest c join postrider.events_N e on e.lane = c.lane
        where e.seq > c.position or not pg_visible_in_snapshot(e.xid, c.snapshot)";
    let database = database().await;
    let mut connection = session::connect(&options(&database)).await.unwrap();
    let mut open = database.connect().await.unwrap();
    fill_slot(&mut connection, 20_000, transactions).await;
    // A writer that every snapshot knows as running.
    run(&mut open, "begin; select pg_current_xact_id()").await;
    for sink in 0..5 {
        sink::open(&mut connection, &format!("sink {sink}"), Start::Now).await.unwrap();
    }
    let (small, probed) = asking(&mut connection, HELD).await;
    assert!(probed);
    assert_eq!(ring::owed(&mut connection, 0).await.unwrap(), [""; 0]);

    // Ten times as many rows, all of them delivered.
    fill_slot(&mut connection, 180_000, transactions).await;
    run(
        &mut connection,
        "update postrider.progress set positions = array_fill(200000::bigint, array[16]),
            snapshots = array[pg_current_snapshot()], bounds = array_fill(pg_snapshot_xmax(pg_current_snapshot()), array[16])",
    )
    .await;
    let (large, probed) = asking(&mut connection, HELD).await;
    assert!(probed);
    assert_eq!(ring::owed(&mut connection, 0).await.unwrap(), [""; 0]);
    assert!(large <= 2 * small, "{small} buffers for a slot of 20,000 rows, {large} for 200,000");

    let (joined, probed) = asking(&mut connection, JOINED).await;
    assert!(!probed && joined > 10 * large, "joined {joined} buffers, by probes {large}");
}

/// A large transaction that is still open is not walked in every round.
#[tokio::test]
async fn an_open_transaction_with_many_rows_costs_nothing() {
    let database = database().await;
    let mut connection = session::connect(&options(&database)).await.unwrap();
    let (mut writer, mut other) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    run(&mut writer, "begin").await;
    run(
        &mut writer,
        "select count(postrider.emit('open', '{}'::json, key => n::text)) from generate_series(1, 60000) n",
    )
    .await;
    run(&mut other, "select pg_current_xact_id()").await;
    let all_members = without(READ, "where pg_visible_in_snapshot(writer.xid, r.upto)", "");
    let only_ended = idle_buffers(&mut connection, READ, 60_000).await;
    let walked = idle_buffers(&mut connection, &all_members, 60_000).await;
    assert!(walked > 3 * only_ended, "{only_ended} buffers, {walked} when every member of xip is probed");
}
