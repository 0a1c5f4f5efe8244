//! The rules of reading.

use postrider::log::round::READ;
use postrider_testkit::{PostgresServer, Settings, Version};
use sqlx::Connection;

use super::{Hand, without};
use crate::faults::until;
use crate::support::{
    database, database_on, database_with_one_lane, emit, lazy_server, open, read_types, reading, run,
    undisturbed_server,
};

const XIP_HALF: &str = "where pg_visible_in_snapshot(writer.xid, r.upto)";
const XMAX_HALF: &str = "where e.xid >= pg_snapshot_xmax(r.old)";

fn without_late() -> String {
    without(&without(READ, XIP_HALF, "where false"), XMAX_HALF, "where false")
}

/// A slow transaction holds a lower seq and commits after a faster one.
async fn slow_then_fast(statement: &str) -> Vec<String> {
    let database = database().await;
    let (mut slow, mut fast) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    let mut reader = Hand::open(&database).await;
    statement.clone_into(&mut reader.statement);
    run(&mut slow, "begin").await;
    emit(&mut slow, "slow", "a").await;
    emit(&mut fast, "fast", "b").await;
    let mut seen = reader.look().await;
    run(&mut slow, "commit").await;
    seen.extend(reader.look().await);
    seen.extend(reader.look().await);
    seen
}

#[tokio::test]
async fn fault_17_a_slow_transaction_is_found_after_a_faster_one() {
    assert_eq!(slow_then_fast(READ).await, ["fast", "slow"]);
    assert_eq!(slow_then_fast(&without_late()).await, ["fast"], "a position alone loses the slow one");
}

/// The writer was running when we looked and is in the snapshot's xip: a later transaction had completed.
#[tokio::test]
async fn the_xip_half_finds_writers_that_were_known() {
    assert_eq!(slow_then_fast(&without(READ, XMAX_HALF, "where false")).await, ["fast", "slow"]);
    assert_eq!(slow_then_fast(&without(READ, XIP_HALF, "where false")).await, ["fast"]);
}

/// The writer had the highest xid and none above had completed: the snapshot's xmax is its xid, its xip does not have it.
#[tokio::test]
async fn the_xmax_half_finds_writers_that_were_not_known() {
    async fn script(statement: &str) -> Vec<String> {
        let server = undisturbed_server().await;
        let database = database_on(&server).await;
        let mut writer = database.connect().await.unwrap();
        let mut reader = Hand::open(&database).await;
        statement.clone_into(&mut reader.statement);
        run(&mut writer, "begin").await;
        emit(&mut writer, "newest", "a").await;
        let mut seen = reader.look().await;
        run(&mut writer, "commit").await;
        seen.extend(reader.look().await);
        seen
    }
    assert_eq!(script(READ).await, ["newest"]);
    assert_eq!(
        script(&without(READ, XMAX_HALF, "where false")).await,
        [""; 0],
        "lost without the second half"
    );
}

#[tokio::test]
async fn fault_14_an_open_transaction_delays_only_its_own_events() {
    async fn script(statement: &str, elsewhere: bool) -> (Vec<String>, Vec<String>) {
        let database = database().await;
        let other = crate::support::database().await;
        let mut writer = database.connect().await.unwrap();
        let mut long =
            if elsewhere { other.connect().await.unwrap() } else { database.connect().await.unwrap() };
        let mut reader = Hand::open(&database).await;
        statement.clone_into(&mut reader.statement);
        run(&mut long, "begin").await;
        emit(&mut long, "long", "a").await;
        emit(&mut writer, "short", "b").await;
        let during = reader.look().await;
        run(&mut long, "commit").await;
        (during, reader.look_until_quiet().await)
    }
    let waiting_for_xmin = without(
        READ,
        "where e.lane = (c.place - 1)::smallint and e.seq > c.position",
        "where e.lane = (c.place - 1)::smallint and e.seq > c.position and e.xid < pg_snapshot_xmin(r.seen)",
    );
    assert_eq!(script(READ, false).await, (vec!["short".to_owned()], vec!["long".to_owned()]));
    assert_eq!(script(READ, true).await, (vec!["short".to_owned()], vec![]));
    assert_eq!(script(&waiting_for_xmin, false).await.0, [""; 0], "waiting for xmin stalls everybody");
    assert_eq!(script(&waiting_for_xmin, true).await.0, [""; 0], "even behind another database");
}

#[tokio::test]
async fn fault_18_an_early_xid_with_a_late_write_keeps_the_order_of_its_key() {
    let database = database().await;
    let (mut early, mut other) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    let mut reader = Hand::open(&database).await;
    run(&mut early, "begin; select pg_current_xact_id()").await;
    emit(&mut other, "first", "k").await;
    emit(&mut early, "second", "k").await;
    run(&mut early, "commit").await;
    assert_eq!(reader.look().await, ["first", "second"]);
    let by_xid: Vec<String> = sqlx::query_scalar("select type from postrider.events order by xid, seq")
        .fetch_all(&mut other)
        .await
        .unwrap();
    assert_eq!(by_xid, ["second", "first"], "ordering by xid breaks the order of the key");
}

/// A late set larger than a page, while an even older transaction commits in the middle of it.
async fn large_late_set(fresh_snapshots: bool) -> Vec<String> {
    let database = database_with_one_lane().await;
    let (mut oldest, mut late, mut quick) = (
        database.connect().await.unwrap(),
        database.connect().await.unwrap(),
        database.connect().await.unwrap(),
    );
    let mut reader = Hand::open(&database).await;
    reader.page = 2;
    run(&mut oldest, "begin").await;
    emit(&mut oldest, "oldest", "z").await;
    run(&mut late, "begin").await;
    for event_type in ["late 1", "late 2", "late 3", "late 4", "late 5"] {
        emit(&mut late, event_type, "a").await;
    }
    emit(&mut quick, "quick", "b").await;
    let mut seen = reader.look().await;
    run(&mut late, "commit").await;
    emit(&mut quick, "after", "a").await;
    seen.extend(reader.look().await);
    run(&mut oldest, "commit").await;
    if fresh_snapshots {
        let upto = "coalesce($2::text::pg_snapshot, pg_current_snapshot()) as upto";
        reader.statement = without(READ, upto, "pg_current_snapshot() as upto");
        while reader.cursors.values().any(|cursor| cursor.late.is_some()) {
            let round = reader.peek().await;
            seen.extend(reader.move_past(&round));
            if reader.cursors.values().all(|cursor| cursor.late.is_none()) {
                reader.set_snapshot(&round.facts.snapshot);
            }
        }
    }
    seen.extend(reader.look_until_quiet().await);
    seen
}

#[tokio::test]
async fn a_large_late_set_is_worked_off_against_one_target() {
    let right = ["quick", "late 1", "late 2", "late 3", "late 4", "late 5", "oldest", "after"];
    assert_eq!(large_late_set(false).await, right);
    assert!(
        !large_late_set(true).await.contains(&"oldest".to_owned()),
        "lost with a fresh snapshot in place of the target"
    );
}

#[tokio::test]
async fn progress_can_stop_inside_a_late_transaction() {
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
    // Whatever number of records was delivered when the reader died, the next one goes on exactly there.
    let all = ["late 1", "late 2", "late 3", "after"];
    let before = reader.cursors.clone();
    for delivered in 0..=all.len() {
        reader.cursors = before.clone();
        let round = reader.peek().await;
        reader.cursors =
            round.pages.iter().map(|(lane, page)| (*lane, page.cursor_after(delivered))).collect();
        reader.settle().await;
        reader.resume().await;
        assert_eq!(reader.look_until_quiet().await, all[delivered..], "after {delivered}");
    }
}

#[tokio::test]
async fn a_cursor_in_memory_does_not_outlive_a_crash() {
    async fn script(keep_memory: bool) -> usize {
        let (server, database) = lazy_server().await;
        let mut writer = database.connect().await.unwrap();
        let mut reader = Hand::open(&database).await;
        // Visible, but its commit is not on disk.
        run(&mut writer, "set synchronous_commit = off").await;
        run(
            &mut writer,
            "select postrider.emit('unflushed', '{}', key => n::text) from generate_series(1, 60) n",
        )
        .await;
        assert_eq!(reader.look().await.len(), 60);
        server.crash().await.unwrap();
        server.start().await.unwrap();
        let mut writer = database.connect().await.unwrap();
        run(
            &mut writer,
            "select postrider.emit('later', '{}', key => n::text) from generate_series(1, 60) n",
        )
        .await;
        reader.connection =
            postrider::log::session::connect(&crate::support::options(&database)).await.unwrap();
        if !keep_memory {
            reader.resume().await;
        }
        reader.look_until_quiet().await.len()
    }
    assert_eq!(script(false).await, 60);
    assert!(script(true).await < 60, "the same xids and seqs again: invisible to a cursor that was kept");
}

/// The same with the reader that is really used. It has looked past numbers that a crash takes back, and had no reason to store it.
#[tokio::test]
async fn a_reader_starts_from_what_is_stored_after_a_crash() {
    const LATER: u32 = 60;
    let (server, database) = lazy_server().await;
    let mut writer = database.connect().await.unwrap();
    let mut reader = open(&database, reading("crash")).await;
    run(
        &mut writer,
        "begin; select postrider.emit('never', '{}', key => n::text) from generate_series(1, 60) n; rollback",
    )
    .await;
    // It has looked since. (A table for the time would be written, and flush what is to be lost.)
    run(&mut writer, "select set_config('test.rolled_back', clock_timestamp()::text, false)").await;
    until(
        &mut writer,
        "select exists (select from pg_stat_activity where datname = current_database() and query like '-- One round%'
            and query_start > current_setting('test.rolled_back')::timestamptz and state = 'idle')",
    )
    .await;
    server.crash().await.unwrap();
    server.start().await.unwrap();
    let mut writer = database.connect().await.unwrap();
    run(&mut writer, "select postrider.emit('later', '{}', key => n::text) from generate_series(1, 60) n")
        .await;
    assert_eq!(read_types(&mut reader, LATER as usize).await.len(), LATER as usize);
}

#[tokio::test]
async fn a_standby_is_never_read() {
    let primary = PostgresServer::private(Version::default(), Settings::for_tests()).await.unwrap();
    let database = database_on(&primary).await;
    let (mut slow, mut fast) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    let mut reader = Hand::open(&database).await;
    reader.settle().await;
    let standby = primary.standby(Settings::for_tests()).await.unwrap();
    let mut on_standby = sqlx::PgConnection::connect(&standby.url(database.name())).await.unwrap();

    run(&mut slow, "begin").await;
    emit(&mut slow, "slow", "a").await;
    emit(&mut fast, "fast", "b").await;
    caught_up(&mut fast, &mut on_standby).await;
    // As it is, the statement reads nothing there and the round is refused.
    let refused = postrider::log::round::read(&mut on_standby, READ, 16, &reader.cursors, 1000).await;
    assert!(matches!(refused, Err(postrider::log::Error::NotPrimary)), "{refused:?}");
    let options = standby.url(database.name()).parse().unwrap();
    assert!(matches!(
        postrider::log::session::connect(&options).await,
        Err(postrider::log::Error::NotPrimary)
    ));

    // With the check taken out: a standby's snapshots have no running transactions, the slow one counts as seen.
    let careless = without(READ, "where not pg_is_in_recovery()", "");
    let careless = without(&careless, "pg_current_wal_insert_lsn() - '0/0'::pg_lsn", "0");
    reader.statement = without(&careless, "pg_current_wal_flush_lsn() - '0/0'::pg_lsn", "0");
    reader.connection = on_standby;
    assert_eq!(reader.look().await, ["fast"]);
    run(&mut slow, "commit").await;
    caught_up(&mut fast, &mut reader.connection).await;
    assert_eq!(reader.look_until_quiet().await, [""; 0], "lost on a standby");
}

async fn caught_up(primary: &mut sqlx::PgConnection, standby: &mut sqlx::PgConnection) {
    let lsn: String =
        sqlx::query_scalar("select pg_current_wal_lsn()::text").fetch_one(primary).await.unwrap();
    while !sqlx::query_scalar::<_, bool>("select pg_last_wal_replay_lsn() >= $1::text::pg_lsn")
        .bind(&lsn)
        .fetch_one(&mut *standby)
        .await
        .unwrap()
    {}
}

/// The read-only transaction anomaly: a serializable reader makes the user's transaction the one that must fail.
#[tokio::test]
async fn a_default_of_serializable_does_not_make_the_users_transaction_fail() {
    async fn script(reader_serializable: bool) -> Result<(), sqlx::Error> {
        let database = database().await;
        let mut admin = database.connect().await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
            "alter database {} set default_transaction_isolation = 'serializable'; create table batch (n int); insert into batch values (1)",
            database.name()
        )))
        .execute(&mut admin)
        .await
        .unwrap();
        let (mut user, mut closer) = (database.connect().await.unwrap(), database.connect().await.unwrap());
        let mut reader = Hand::open(&database).await;
        if reader_serializable {
            run(&mut reader.connection, "set default_transaction_isolation = 'serializable'").await;
        }
        run(&mut user, "begin; select * from batch").await;
        run(&mut closer, "begin; update batch set n = 2").await;
        emit(&mut closer, "closed", "k").await;
        run(&mut closer, "commit").await;
        reader.look().await;
        sqlx::query("select postrider.emit('receipt', '{}', key => 'k')").execute(&mut user).await?;
        sqlx::query("commit").execute(&mut user).await?;
        Ok(())
    }
    script(false).await.unwrap();
    let error = script(true).await.unwrap_err();
    assert_eq!(
        error.as_database_error().and_then(sqlx::error::DatabaseError::code).as_deref(),
        Some("40001")
    );
}

#[tokio::test]
async fn lanes_settled_at_different_moments_come_together_again() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let mut hand = Hand::open(&database).await;
    emit(&mut writer, "one", "a").await;
    let round = hand.peek().await;
    let (lane, page) = round.pages.iter().find(|(_, page)| page.records.is_empty()).unwrap();
    hand.cursors.insert(*lane, page.end.clone());
    hand.settle().await;
    assert_eq!(stored_snapshots(&mut writer).await, 2);
    run(&mut writer, "delete from postrider.readers").await;

    let mut reader = open(&database, reading("by hand")).await;
    assert_eq!(read_types(&mut reader, 1).await, ["one"]);
    assert_eq!(stored_snapshots(&mut writer).await, 1, "one statement per round again");
}

async fn stored_snapshots(connection: &mut sqlx::PgConnection) -> i64 {
    sqlx::query_scalar("select count(distinct snapshot::text) from postrider.cursors")
        .fetch_one(connection)
        .await
        .unwrap()
}
