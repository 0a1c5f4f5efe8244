//! The rules of settling.

use std::time::Duration;

use postrider::log::progress;
use postrider::log::{Error, Reader, ReaderOptions, Settlement, lease};
use sqlx::PgConnection;
use uuid::Uuid;

use super::Hand;
use crate::faults::until;
use crate::plans::{buffers, plan_of};
use crate::support::{
    PATIENCE, database, database_on, emit, next, open, read_types, reading, run, undisturbed_server,
};

/// A late row's position is passed already: only the snapshot tells that it was delivered.
#[tokio::test]
async fn the_snapshot_is_stored_even_when_only_late_rows_moved() {
    async fn script(store_snapshot: bool) -> Vec<String> {
        let database = database().await;
        let (mut slow, mut fast) = (database.connect().await.unwrap(), database.connect().await.unwrap());
        let mut reader = Hand::open(&database).await;
        run(&mut slow, "begin").await;
        emit(&mut slow, "slow", "a").await;
        emit(&mut fast, "fast", "a").await;
        reader.look().await;
        reader.settle().await;
        run(&mut slow, "commit").await;
        let before = reader.cursors.clone();
        assert_eq!(reader.look().await, ["slow"]);
        if !store_snapshot {
            for (lane, cursor) in &mut reader.cursors {
                cursor.snapshot.clone_from(&before[lane].snapshot);
            }
        }
        reader.settle().await;
        reader.resume().await;
        reader.look_until_quiet().await
    }
    assert_eq!(script(true).await, [""; 0]);
    assert_eq!(script(false).await, ["slow"], "delivered once more after every restart");
}

/// The bound is the xid of the settling transaction. If that xid is older than the read, a writer in between has a higher one.
#[tokio::test]
async fn the_bound_is_taken_after_the_read_returned() {
    async fn script(xid_before_read: bool) -> Vec<String> {
        // Somebody else's younger transaction that ends in between would make the writer known to the snapshot, and then it is found whatever
        // the bound is.
        let server = undisturbed_server().await;
        let database = database_on(&server).await;
        let mut writer = database.connect().await.unwrap();
        let mut reader = Hand::open(&database).await;
        if xid_before_read {
            run(
                &mut reader.connection,
                "begin; set local idle_in_transaction_session_timeout = 0; select pg_current_xact_id()",
            )
            .await;
        }
        run(&mut writer, "begin").await;
        emit(&mut writer, "in between", "a").await;
        assert_eq!(reader.look().await, [""; 0]);
        reader.settle().await;
        if xid_before_read {
            run(&mut reader.connection, "commit").await;
        }
        run(&mut writer, "commit").await;
        reader.resume().await;
        reader.look_until_quiet().await
    }
    assert_eq!(script(false).await, ["in between"]);
    assert_eq!(script(true).await, [""; 0], "lost when reading and storing share a transaction");
}

/// The same with the reader that is really used, which reads on while a settling is on its way: that settling's xid bounds what was read
/// before it began, and nothing that was read since.
#[tokio::test]
async fn a_settling_bounds_only_what_was_read_before_it() {
    let server = undisturbed_server().await;
    let database = database_on(&server).await;
    let (mut writer, mut gate) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    let mut reader = open(&database, reading("overlapped")).await;
    emit(&mut gate, "first", "a").await;
    let batch = next(&mut reader).await;
    // The settling has its xid and waits for us.
    run(
        &mut gate,
        "create function held_up() returns trigger language plpgsql as 'begin perform pg_advisory_xact_lock_shared(1); return new; end';
         create trigger held_up before insert on postrider.progress_0 for each row execute function held_up();
         select pg_advisory_lock(1)",
    )
    .await;
    let (settler, mut all) = (reader.settler(), Settlement::default());
    all.add(&batch, |_, records| Some(records.len()));
    let settling = tokio::spawn(async move { settler.settle(all).await.unwrap() });
    until(&mut gate, "select exists (select from pg_locks where locktype = 'advisory' and not granted)")
        .await;
    run(&mut writer, "begin").await;
    emit(&mut writer, "in between", "a").await;
    run(&mut gate, "select set_config('test.written', clock_timestamp()::text, false)").await;
    until(
        &mut gate,
        "select exists (select from pg_stat_activity where datname = current_database() and query like '-- One round%'
            and query_start > current_setting('test.written')::timestamptz and state = 'idle')",
    )
    .await;
    run(&mut gate, "select pg_advisory_unlock(1)").await;
    settling.await.unwrap();
    reader.settle(&batch).await.unwrap();
    reader.close().await.unwrap();
    run(&mut writer, "commit").await;
    let mut reader = open(&database, reading("overlapped")).await;
    assert_eq!(read_types(&mut reader, 1).await, ["in between"]);
}

/// A reader that was frozen past its lease wakes up and settles what it had in hand.
#[tokio::test]
async fn a_frozen_readers_progress_counts_for_nothing() {
    let database = database().await;
    let mut writer = database.connect().await.unwrap();
    let mut frozen = Hand::open(&database).await;
    emit(&mut writer, "one", "a").await;
    frozen.look().await;
    let stale = frozen.cursors.clone();

    run(&mut writer, "update postrider.readers set expires_at = '-infinity'").await;
    let mut second = Hand::open(&database).await;
    assert!(second.tenure.epoch > frozen.tenure.epoch);
    assert_eq!(second.look().await, ["one"]);
    emit(&mut writer, "two", "a").await;
    assert_eq!(second.look().await, ["two"]);
    second.settle().await;

    let refused = progress::append(&mut frozen.connection, &mut frozen.tenure, &stale).await;
    assert!(matches!(refused, Err(Error::LeaseLost { .. })), "{refused:?}");
    // Even if the row were there (its statement may have begun before the takeover), it has the older epoch.
    run(
        &mut writer,
        "insert into postrider.progress select slot, sink, epoch, 1000000, lanes, positions, late_positions, snapshots, snapshot_of, target_of, bounds
         from postrider.progress where epoch = (select min(epoch) from postrider.progress) limit 1",
    )
    .await;
    second.resume().await;
    assert_eq!(second.look_until_quiet().await, [""; 0]);
    let by_number_alone: bool = sqlx::query_scalar(
        "select (select positions[1] from postrider.progress order by number desc limit 1)
              < (select min(position) from postrider.cursors)",
    )
    .fetch_one(&mut writer)
    .await
    .unwrap();
    assert!(by_number_alone, "without the epoch the stale row would count: everything again");
}

/// Somebody's old snapshot keeps every version of an updated row, and whoever wants the newest walks over them.
#[tokio::test]
async fn a_cursor_is_appended_and_not_updated() {
    const APPENDED: &str = include_str!("../../../src/log/sql/cursors.sql");
    const UPDATED: &str = "select * from public.in_place where sink = 'by hand'";
    async fn script(appended: bool) -> (i64, i64) {
        let database = database().await;
        let mut holder = database.connect().await.unwrap();
        let mut reader = Hand::open(&database).await;
        run(
            &mut reader.connection,
            "create table public.in_place as select * from postrider.cursors; alter table public.in_place add primary key (sink, lane)",
        )
        .await;
        run(&mut holder, "begin isolation level repeatable read; select pg_current_xact_id()").await;
        let load = if appended { APPENDED } else { UPDATED };
        let load = load.replace("$1", &reader.tenure.sink.to_string());
        reader.settle().await;
        let first = buffers(&plan_of(&mut reader.connection, &load).await);
        for _ in 0..1_000 {
            if appended {
                reader.settle().await;
            } else {
                run(&mut reader.connection, "update public.in_place set position = position + 1").await;
            }
        }
        (first, buffers(&plan_of(&mut reader.connection, &load).await))
    }
    let (first, last) = script(true).await;
    assert!(last <= 2 * first, "the cursors took {first} buffers to load, then {last}");
    let (first, last) = script(false).await;
    assert!(last > 20 * first, "updated in place: {first} buffers, then {last}");
}

/// It was silent, somebody took its lanes, and it comes back: it must not read on as if nothing had happened.
#[tokio::test]
async fn a_reader_that_lost_its_lanes_lets_go_of_them() {
    let database = database().await;
    let mut options = reading("by hand");
    // Its next heartbeat, after a third of that, must not come before the other one has them.
    options.lease = Duration::from_secs(15);
    let reader = open(&database, options).await;
    assert_eq!(reader.lanes().len(), 16);
    let mut admin = database.connect().await.unwrap();
    run(&mut admin, "update postrider.readers set expires_at = '-infinity'").await;
    let taken = Hand::open(&database).await;
    assert_eq!(taken.cursors.len(), 16);
    let lets_go = async {
        while !reader.lanes().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, lets_go).await.expect("it holds on to lanes of another");
}

/// Whoever stands by hears of it, and does not wait for its next heartbeat, which is more than a minute away.
#[tokio::test]
async fn lanes_that_are_handed_back_are_taken_at_once() {
    let database = database().await;
    let options = || ReaderOptions { lease: Duration::from_mins(5), alone: true, ..reading("handed over") };
    let first = open(&database, options()).await;
    let mut second = open(&database, options()).await;
    assert_eq!((first.lanes().len(), second.lanes().len()), (16, 0));
    first.close().await.unwrap();
    let takes = async {
        while second.lanes().is_empty() {
            second.changed().await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), takes).await.expect("it waits for its heartbeat");
    assert_eq!(second.lanes().len(), 16);
}

/// A settling that is on its way speaks of the lanes it knew: with those that came meanwhile forgotten, the next one would store cursors
/// without them, and nobody could read those lanes any more.
#[tokio::test(flavor = "multi_thread")]
async fn lanes_that_are_handed_back_during_a_settling_are_not_forgotten_by_it() {
    let database = database().await;
    let mut admin = database.connect().await.unwrap();
    let mut other = Hand::open(&database).await;
    let other_id: Uuid =
        sqlx::query_scalar("select reader from postrider.readers").fetch_one(&mut admin).await.unwrap();
    let lease = Duration::from_mins(1);
    let mut reader = open(&database, ReaderOptions { lease, ..reading("by hand") }).await;
    let connection = reader.connection();
    let all: Vec<i16> = (0..16).collect();
    lease::balance(&mut other.connection, other_id, &other.tenure, &all, &[]).await.unwrap();
    run(&mut admin, "select pg_notify('postrider', 'lanes')").await;
    holds(&mut reader, 8).await;

    run(&mut admin, "select postrider.emit('1', '{}', key => n::text) from generate_series(1, 100) n").await;
    let batch = next(&mut reader).await;
    run(&mut admin, "begin; lock table postrider.progress in share mode").await;
    let mut settlement = Settlement::default();
    settlement.add(&batch, |_, records| Some(records.len()));
    let settler = reader.settler();
    let settling = tokio::spawn(async move { settler.settle(settlement).await });
    let waiting =
        "select count(*) from pg_locks where relation = 'postrider.progress'::regclass and not granted
            and database = (select oid from pg_database where datname = current_database())";
    let waits = async |connection: &mut PgConnection, wanted: i64| {
        while sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut *connection).await.unwrap() < wanted {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, waits(&mut admin, 1)).await.expect("nothing is settled");
    lease::release(&mut other.connection, other_id).await.unwrap();
    // Time to do the wrong thing.
    let _ = tokio::time::timeout(Duration::from_millis(300), waits(&mut admin, 2)).await;
    run(&mut admin, "commit").await;
    settling.await.unwrap().unwrap();
    holds(&mut reader, 16).await;

    let mut settled = batch.len();
    while settled < 100 {
        let batch = next(&mut reader).await;
        reader.settle(&batch).await.unwrap();
        settled += batch.len();
    }
    let cursors: i64 =
        sqlx::query_scalar("select count(*) from postrider.cursors").fetch_one(&mut admin).await.unwrap();
    assert_eq!(cursors, 16);
    assert_eq!(reader.connection(), connection, "nothing had to be begun anew");
}

/// Whatever a reader believes: a cursor that is missing could not be found again by anybody.
#[tokio::test]
async fn cursors_are_stored_for_all_lanes_of_an_epoch_or_not_at_all() {
    let database = database().await;
    let mut reader = Hand::open(&database).await;
    let missing = reader.cursors.remove(&3).unwrap();
    let refused = progress::append(&mut reader.connection, &mut reader.tenure, &reader.cursors).await;
    assert!(matches!(refused, Err(Error::LeaseLost { .. })), "{refused:?}");
    reader.cursors.insert(3, missing);
    reader.settle().await;
    reader.resume().await;
    assert_eq!(reader.cursors.len(), 16);
}

async fn holds(reader: &mut Reader, lanes: usize) {
    let waiting = async {
        while reader.lanes().len() != lanes {
            reader.changed().await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "it holds {:?}", reader.lanes());
}

#[tokio::test]
async fn lanes_are_shared_handed_back_and_taken_over() {
    let database = database().await;
    let mut first = Hand::open(&database).await;
    assert_eq!(first.cursors.len(), 16);
    let second = Uuid::now_v7();
    let first_id: Uuid = sqlx::query_scalar("select reader from postrider.readers")
        .fetch_one(&mut first.connection)
        .await
        .unwrap();

    // A second one stands by until the first has given up what is beyond its share.
    let mut connection = database.connect().await.unwrap();
    let minute = Duration::from_mins(1);
    lease::heartbeat(&mut connection, second, "second", first.tenure.sink, minute).await.unwrap();
    assert!(lease::balance(&mut connection, second, &first.tenure, &[], &[]).await.unwrap().0.is_none());
    let all: Vec<i16> = (0..16).collect();
    let busy: Vec<i16> = (0..16).filter(|lane| lane % 2 == 0).collect();
    let (tenure, kept) =
        lease::balance(&mut first.connection, first_id, &first.tenure, &all, &busy).await.unwrap().0.unwrap();
    assert!(busy.iter().all(|lane| kept.contains_key(lane)), "lanes in flight are kept");
    assert_eq!(kept.len(), 12, "four of the eight lanes beyond the share had nothing in flight: {kept:?}");
    let (_, taken) = lease::balance(&mut connection, second, &tenure, &[], &[]).await.unwrap().0.unwrap();
    assert_eq!(taken.len(), 4);
    let (tenure, kept) =
        lease::balance(&mut first.connection, first_id, &tenure, &[], &[]).await.unwrap().0.unwrap();
    let (_, taken) = lease::balance(&mut connection, second, &tenure, &[], &[]).await.unwrap().0.unwrap();
    assert_eq!((kept.len(), taken.len()), (8, 8));

    // Handed back at once at the end, without waiting for the lease.
    lease::release(&mut connection, second).await.unwrap();
    let (_, all) =
        lease::balance(&mut first.connection, first_id, &tenure, &[], &[]).await.unwrap().0.unwrap();
    assert_eq!(all.len(), 16);
}
