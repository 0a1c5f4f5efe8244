//! The rules of turning the ring.

use std::time::Duration;

use postrider::log::ring::{self, Reason, Retention, Turn};
use postrider::log::{Start, sink};
use postrider_testkit::{PostgresServer, Settings, Version};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use time::OffsetDateTime;

use super::Hand;
use crate::support::{PATIENCE, database, database_on, emit, run};

/// Nothing is kept for its age.
pub const AT_ONCE: Retention = Retention { keep: Duration::ZERO, max_slot_bytes: None, max_log_bytes: None };

pub async fn count(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar("select count(*) from postrider.events").fetch_one(connection).await.unwrap()
}

/// Waits until some backend waits for a lock on this table.
pub async fn somebody_waits_for(connection: &mut PgConnection, table: &str) {
    let waiting = async {
        while !sqlx::query_scalar::<_, bool>(
            "select exists (select from pg_locks where not granted and relation = $1::regclass
                and database = (select oid from pg_database where datname = current_database()))",
        )
        .bind(table)
        .fetch_one(&mut *connection)
        .await
        .unwrap()
        {}
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("nobody waits");
}

#[tokio::test]
async fn an_undelivered_event_is_never_emptied() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let mut reader = Hand::open(&database).await;
    for slot in 0..8 {
        emit(&mut writer, "owed", "k").await;
        let turned = ring::turn(&mut writer, AT_ONCE).await.unwrap();
        if slot < 7 {
            assert_eq!(turned, Turn::To(slot + 1));
        } else {
            // All eight are full and undelivered: the current one grows.
            let Turn::Held(held) = turned else { panic!("{turned:?}") };
            assert_eq!(held.len(), 7);
            assert!(
                held.iter().all(|held| held.reason == Reason::Owed(vec!["by hand".to_owned()])),
                "{held:?}"
            );
        }
    }
    emit(&mut writer, "owed", "k").await;
    assert_eq!(reader.look_until_quiet().await.len(), 9);
    assert!(matches!(ring::turn(&mut writer, AT_ONCE).await.unwrap(), Turn::Held(_)), "read is not settled");
    reader.settle().await;
    assert_eq!(ring::turn(&mut writer, AT_ONCE).await.unwrap(), Turn::To(0));
    assert_eq!(count(&mut writer).await, 8);
}

#[tokio::test]
async fn a_delivered_event_stays_for_the_retention() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let mut reader = Hand::open(&database).await;
    emit(&mut writer, "kept", "k").await;
    reader.look().await;
    reader.settle().await;
    let day = Retention { keep: Duration::from_hours(24), max_slot_bytes: None, max_log_bytes: None };
    assert_eq!(ring::turn(&mut writer, day).await.unwrap(), Turn::NotDue);
    let small = Retention { max_slot_bytes: Some(1), ..day };
    for slot in 1..8 {
        assert_eq!(ring::turn(&mut writer, small).await.unwrap(), Turn::To(slot));
        emit(&mut writer, "kept", "k").await;
        reader.look().await;
        reader.settle().await;
    }
    let Turn::Held(held) = ring::turn(&mut writer, small).await.unwrap() else {
        panic!("something was emptied")
    };
    assert!(held.iter().all(|held| held.reason == Reason::Young), "{held:?}");
    assert_eq!(count(&mut writer).await, 8);
}

/// Times that a clock left that was ahead would be younger than the retention until it is that late.
#[tokio::test]
async fn a_clock_that_was_ahead_does_not_stop_the_ring() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let mut reader = Hand::open(&database).await;
    let second = Retention { keep: Duration::from_secs(1), max_slot_bytes: None, max_log_bytes: None };
    for _ in 0..2 {
        assert!(matches!(ring::turn(&mut writer, AT_ONCE).await.unwrap(), Turn::To(_)));
        emit(&mut writer, "kept", "k").await;
    }
    reader.look_until_quiet().await;
    reader.settle().await;
    run(
        &mut writer,
        "update postrider.ring set opened_at = opened_at + interval '1 year', closed_at = closed_at + interval '1 year'",
    )
    .await;
    let begun = std::time::Instant::now();
    while count(&mut writer).await > 0 {
        assert!(begun.elapsed() < PATIENCE, "it waits for next year");
        ring::turn(&mut writer, second).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// One of them may read which slot is current just before the other has set the next, and pass over the one that the other began.
#[tokio::test]
async fn two_rotators_at_once_keep_the_retention() {
    let small = Retention { keep: Duration::from_hours(24), max_slot_bytes: Some(1), max_log_bytes: None };
    for _ in 0..8 {
        let database = database().await;
        let mut reader = Hand::open(&database).await;
        let (mut one, mut other) = (database.connect().await.unwrap(), database.connect().await.unwrap());
        let mut writer = database.connect().await.unwrap();
        for round in 1..=8 {
            let writing = async {
                for _ in 0..20 {
                    emit(&mut writer, "kept", "k").await;
                }
            };
            let (first, second, ()) =
                tokio::join!(ring::turn(&mut one, small), ring::turn(&mut other, small), writing);
            first.unwrap();
            second.unwrap();
            reader.look_until_quiet().await;
            reader.settle().await;
            assert_eq!(count(&mut writer).await, round * 20);
        }
    }
}

/// A transaction that was open when a sink was created owes it its events, wherever they are.
async fn new_sink_beside_a_rotator(with_lock: bool) -> Vec<String> {
    let database = database().await;
    let mut slow = database.connect().await.unwrap();
    let mut rotator = database.connect().await.unwrap();
    let mut watcher = database.connect().await.unwrap();
    run(&mut watcher, "insert into postrider.ring (slot) select generate_series(0, 7)").await;
    run(&mut slow, "begin").await;
    emit(&mut slow, "owed", "a").await;
    sqlx::query("select setval('postrider.slot', 1)").execute(&mut watcher).await.unwrap();

    let mut creator = database.connect().await.unwrap();
    if with_lock {
        // Stop the creation in the middle: it has read where it begins, its cursor is not there yet.
        let mut gate = database.connect().await.unwrap();
        run(&mut gate, "begin; lock table postrider.sinks in share mode").await;
        let create =
            tokio::spawn(async move { sink::open(&mut creator, "by hand", Start::Now).await.map(|_| ()) });
        somebody_waits_for(&mut watcher, "postrider.sinks").await;
        run(&mut slow, "commit").await;
        let turn = tokio::spawn(async move { turn_all_the_way(&mut rotator).await });
        somebody_waits_for(&mut watcher, "postrider.ring").await;
        run(&mut gate, "commit").await;
        create.await.unwrap().unwrap();
        turn.await.unwrap();
    } else {
        let (position, snapshot): (i64, String) =
            sqlx::query_as("select pg_sequence_last_value('postrider.seq'), pg_current_snapshot()::text")
                .fetch_one(&mut creator)
                .await
                .unwrap();
        run(&mut slow, "commit").await;
        turn_all_the_way(&mut rotator).await;
        sink::open(&mut creator, "by hand", Start::Now).await.unwrap();
        sqlx::query("update postrider.progress set positions = array_fill($1, array[16]), snapshots = array[$2::text::pg_snapshot]")
            .bind(position)
            .bind(snapshot)
            .execute(&mut creator)
            .await
            .unwrap();
    }
    Hand::open_sink(&database, "by hand", Start::Now).await.look_until_quiet().await
}

/// The same with the creation stopped earlier, right after it has read where it begins: it waits for the log itself, which a start by
/// time looks through.
#[tokio::test]
async fn a_sink_that_looks_for_its_beginning_holds_the_ring() {
    let database = database().await;
    let (mut slow, mut rotator) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    let (mut gate, mut watcher) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    let mut creator = database.connect().await.unwrap();
    run(&mut watcher, "insert into postrider.ring (slot) select generate_series(0, 7)").await;
    run(&mut slow, "begin").await;
    emit(&mut slow, "owed", "a").await;
    run(&mut watcher, "select setval('postrider.slot', 7)").await;
    run(&mut gate, "begin; lock table postrider.events_5 in access exclusive mode").await;
    let tomorrow = OffsetDateTime::now_utc() + Duration::from_hours(24);
    let create =
        tokio::spawn(
            async move { sink::open(&mut creator, "by hand", Start::At(tomorrow)).await.map(|_| ()) },
        );
    somebody_waits_for(&mut watcher, "postrider.events_5").await;
    run(&mut slow, "commit").await;
    let turn = tokio::spawn(async move { ring::turn(&mut rotator, AT_ONCE).await.unwrap() });
    somebody_waits_for(&mut watcher, "postrider.ring").await;
    run(&mut gate, "commit").await;
    create.await.unwrap().unwrap();
    assert_ne!(turn.await.unwrap(), Turn::To(0), "emptied before the cursor was there to hold it");
    let mut reader = Hand::open_sink(&database, "by hand", Start::Now).await;
    assert_eq!(reader.look_until_quiet().await, ["owed"]);
}

/// Empties whatever can be emptied.
async fn turn_all_the_way(connection: &mut PgConnection) {
    for _ in 0..8 {
        ring::turn(connection, AT_ONCE).await.unwrap();
    }
}

#[tokio::test]
async fn creating_a_sink_and_turning_the_ring_exclude_each_other() {
    assert_eq!(new_sink_beside_a_rotator(true).await, ["owed"]);
    assert_eq!(
        new_sink_beside_a_rotator(false).await,
        [""; 0],
        "emptied before the cursor was there to hold it"
    );
}

/// A row that commits between the check and the lock. By hand, because the real one checks again.
#[tokio::test]
async fn the_slot_is_checked_again_under_its_lock() {
    async fn script(begin: &'static str, check_again: bool) -> (bool, Vec<String>) {
        let database = database().await;
        let (mut slow, mut rotator) = (database.connect().await.unwrap(), database.connect().await.unwrap());
        let mut reader = Hand::open(&database).await;
        run(&mut slow, "begin").await;
        emit(&mut slow, "owed", "a").await;
        sqlx::query("select setval('postrider.slot', 1)").execute(&mut rotator).await.unwrap();
        run(&mut rotator, begin).await;
        assert!(ring::owed(&mut rotator, 0).await.unwrap().is_empty(), "not committed, so not owed");
        run(&mut slow, "commit").await;
        run(&mut rotator, "lock table postrider.events_0 in access exclusive mode nowait").await;
        let emptied = !check_again || ring::owed(&mut rotator, 0).await.unwrap().is_empty();
        if emptied {
            run(&mut rotator, "truncate postrider.events_0").await;
        }
        run(&mut rotator, "commit").await;
        (emptied, reader.look_until_quiet().await)
    }
    let owed = || vec!["owed".to_owned()];
    assert_eq!(script("begin isolation level read committed", true).await, (false, owed()));
    assert_eq!(
        script("begin isolation level read committed", false).await,
        (true, vec![]),
        "lost without the second check"
    );
    assert_eq!(
        script("begin isolation level repeatable read", true).await,
        (true, vec![]),
        "lost with an old snapshot"
    );
}

/// The real one, stopped between its first check and its lock: the slot's last writer commits while the rotator tries again for the lock.
/// Whatever isolation the session has by default.
#[tokio::test]
async fn what_commits_while_the_rotator_waits_for_its_lock_is_seen() {
    for isolation in ["read committed", "repeatable read", "serializable"] {
        // The rotator tries for a quarter of a second. On a machine that was away for so long there is nothing to see.
        for attempt in 1.. {
            assert!(attempt < 20, "the rotator was never met in its tries");
            if committed_beside_a_rotator(isolation).await {
                break;
            }
        }
    }
}

/// Answers whether the commit came in time.
async fn committed_beside_a_rotator(isolation: &str) -> bool {
    let database = database().await;
    let (mut slow, mut rotator) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    let (mut writer, mut watcher) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    let mut reader = Hand::open(&database).await;
    run(&mut slow, "begin").await;
    emit(&mut slow, "owed", "a").await;
    for slot in 1..8 {
        assert_eq!(ring::turn(&mut rotator, AT_ONCE).await.unwrap(), Turn::To(slot));
        emit(&mut writer, "other", "b").await;
    }
    let pid: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut rotator).await.unwrap();
    let default = format!("set default_transaction_isolation = '{isolation}'");
    sqlx::raw_sql(AssertSqlSafe(default)).execute(&mut rotator).await.unwrap();
    let turn = tokio::spawn(async move { ring::turn(&mut rotator, AT_ONCE).await.unwrap() });
    // It has checked, it has not got the lock, and it pauses.
    while !turn.is_finished()
        && !sqlx::query_scalar::<_, bool>(
            "select state = 'idle in transaction' and query ilike 'rollback to savepoint%' from pg_stat_activity where pid = $1",
        )
        .bind(pid)
        .fetch_one(&mut watcher)
        .await
        .unwrap()
    {}
    run(&mut slow, "commit").await;
    let turned = turn.await.unwrap();
    let Turn::Held(held) = turned else { panic!("a slot with an owed event was emptied: {turned:?}") };
    let first = held.iter().find(|held| held.slot == 0).unwrap();
    let mut found = reader.look_until_quiet().await;
    found.retain(|kind| kind == "owed");
    assert_eq!(found, ["owed"]);
    first.reason == Reason::Owed(vec!["by hand".to_owned()])
}

/// The youngest writer of all is in no snapshot's list: only its xid, between the snapshot's end and the bound, tells that it is owed.
#[tokio::test]
async fn a_slot_is_held_for_a_writer_that_no_snapshot_knew() {
    // A server of our own: somebody else's transaction that ends in between would make the writer known.
    let server = PostgresServer::private(Version::default(), Settings::for_tests()).await.unwrap();
    let database = database_on(&server).await;
    let (mut writer, mut rotator) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    let mut reader = Hand::open(&database).await;
    run(&mut writer, "begin").await;
    emit(&mut writer, "newest", "a").await;
    assert_eq!(reader.look().await, [""; 0]);
    reader.settle().await;
    run(&mut writer, "commit").await;
    turn_all_the_way(&mut rotator).await;
    reader.resume().await;
    assert_eq!(reader.look_until_quiet().await, ["newest"]);
}

/// A rotator has read which slot is current, and another one turns the ring before the first has locked the slot it chose. By hand up to
/// there, because the real one holds the table of slots.
#[tokio::test]
async fn two_rotators_exclude_each_other() {
    async fn script(with_lock: bool) -> Result<i16, String> {
        let database = database().await;
        let (mut first, mut second) = (database.connect().await.unwrap(), database.connect().await.unwrap());
        let (mut writer, mut watcher) =
            (database.connect().await.unwrap(), database.connect().await.unwrap());
        run(&mut watcher, "insert into postrider.ring (slot) select generate_series(0, 7)").await;
        run(&mut first, "begin isolation level read committed").await;
        if with_lock {
            run(&mut first, "lock table postrider.ring in exclusive mode").await;
        }
        assert_eq!(ring::current(&mut first).await.unwrap(), 0);
        let turn = tokio::spawn(async move { ring::turn(&mut second, AT_ONCE).await.unwrap() });
        let turned = if with_lock {
            somebody_waits_for(&mut watcher, "postrider.ring").await;
            None
        } else {
            Some(turn.await.unwrap())
        };
        run(&mut first, "lock table postrider.events_1 in access exclusive mode nowait").await;
        let written: Result<i16, sqlx::Error> = async {
            sqlx::raw_sql("set lock_timeout = '100ms'").execute(&mut writer).await?;
            sqlx::raw_sql("select postrider.emit('n', '{}'::json)").execute(&mut writer).await?;
            sqlx::query_scalar("select slot from postrider.events_0").fetch_one(&mut writer).await
        }
        .await;
        run(&mut first, "rollback").await;
        assert_eq!(turned, (!with_lock).then_some(Turn::To(1)));
        written.map_err(|error| error.as_database_error().unwrap().code().unwrap().into_owned())
    }
    assert_eq!(script(true).await, Ok(0), "the chosen slot is not the current one");
    assert_eq!(
        script(false).await,
        Err("55P03".to_owned()),
        "producers wait behind the second rotator's lock"
    );
}

/// The real one, with a writer in the way: while the writer is open the slot is in use, afterwards it is owed.
#[tokio::test]
async fn a_slot_with_an_open_writer_is_passed_over() {
    let database = database().await;
    let (mut slow, mut rotator) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    let mut reader = Hand::open(&database).await;
    run(&mut slow, "begin").await;
    emit(&mut slow, "owed", "a").await;
    for slot in 1..8 {
        assert_eq!(ring::turn(&mut rotator, AT_ONCE).await.unwrap(), Turn::To(slot));
    }
    assert_eq!(
        ring::turn(&mut rotator, AT_ONCE).await.unwrap(),
        Turn::To(1),
        "slot 0 is in use and passed over"
    );
    run(&mut slow, "commit").await;
    for _ in 0..8 {
        ring::turn(&mut rotator, AT_ONCE).await.unwrap();
    }
    assert_eq!(reader.look_until_quiet().await, ["owed"]);
}

#[tokio::test]
async fn readers_do_not_queue_behind_the_rotator() {
    let database = database().await;
    let mut long_reader = database.connect().await.unwrap();
    let mut watcher = database.connect().await.unwrap();
    run(&mut watcher, "insert into postrider.ring (slot) select generate_series(0, 7)").await;
    run(&mut long_reader, "begin; select count(*) from postrider.events_1").await;
    // The real one asks without queueing and goes on to another slot.
    let mut rotator = database.connect().await.unwrap();
    let turn = tokio::spawn(async move { (ring::turn(&mut rotator, AT_ONCE).await.unwrap(), rotator) });
    while !turn.is_finished() {
        let queued: i64 = sqlx::query_scalar(
            "select count(*) from pg_locks where not granted and relation = 'postrider.events_1'::regclass
                and database = (select oid from pg_database where datname = current_database())",
        )
        .fetch_one(&mut watcher)
        .await
        .unwrap();
        assert_eq!(queued, 0, "the rotator queues");
    }
    let (turned, mut rotator) = turn.await.unwrap();
    assert_eq!(turned, Turn::To(2));
    // A queued request makes everybody wait behind it.
    let queued = tokio::spawn(async move {
        let _ = sqlx::raw_sql(
            "begin; set local lock_timeout = '2min'; lock table postrider.events_1 in access exclusive mode",
        )
        .execute(&mut rotator)
        .await;
        rotator
    });
    somebody_waits_for(&mut watcher, "postrider.events_1").await;
    let mut reader = database.connect().await.unwrap();
    let blocked = sqlx::raw_sql("set lock_timeout = '100ms'; select count(*) from postrider.events")
        .execute(&mut reader)
        .await;
    let code = blocked.unwrap_err().as_database_error().unwrap().code().unwrap().into_owned();
    assert_eq!(code, "55P03", "a reader waits behind the queued lock");
    run(&mut long_reader, "commit").await;
    queued.await.unwrap().close().await.unwrap();
}

#[tokio::test]
async fn the_slot_is_set_and_not_drawn() {
    async fn after_crash(how: &'static str) -> i64 {
        let server = PostgresServer::private(Version::default(), Settings::for_tests()).await.unwrap();
        let database = database_on(&server).await;
        let mut connection = database.connect().await.unwrap();
        run(&mut connection, "select setval('postrider.slot', 4)").await;
        run(&mut connection, how).await;
        server.crash().await.unwrap();
        server.start().await.unwrap();
        let mut connection = database.connect().await.unwrap();
        let row = sqlx::query("select pg_sequence_last_value('postrider.slot')")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        row.get(0)
    }
    assert_eq!(after_crash("select setval('postrider.slot', 5)").await, 5);
    assert_ne!(after_crash("select nextval('postrider.slot')").await, 5, "nextval is logged 32 ahead");
}

#[tokio::test]
async fn the_progress_ring_keeps_what_counts() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let mut reader = Hand::open(&database).await;
    let idle = Hand::open_sink(&database, "idle", Start::Now).await;
    emit(&mut writer, "one", "k").await;
    reader.look().await;
    reader.settle().await;
    let mut turns = 0;
    while turns < 9 {
        reader.settle().await;
        turns += usize::from(ring::turn_progress_beyond(&mut writer, 3).await.unwrap().is_some());
    }
    reader.resume().await;
    assert_eq!(reader.look_until_quiet().await, [""; 0]);
    let mut again = idle;
    again.resume().await;
    assert_eq!(again.cursors.len(), 16, "an idle sink's cursors are carried along");
    let rows: i64 =
        sqlx::query_scalar("select count(*) from postrider.progress").fetch_one(&mut writer).await.unwrap();
    assert!(rows < 40, "{rows} rows after nine turns");
}
