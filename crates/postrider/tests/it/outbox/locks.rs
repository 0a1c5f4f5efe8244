//! Somebody has locked what it takes to move a row or to tidy up behind it: he is never ended for it, and the others go on.

use std::time::Duration;

use postrider::outbox::{self, Marker, Mode, Outbox, Part, Preset};
use postrider_testkit::Database;
use sqlx::PgConnection;

use super::safety::until_blocked;
use super::tables::insert;
use super::{count, declared, execute, keep, keeper, read, with_table};
use crate::support::{PATIENCE, open, reading};

const EVENTS: &str = "select count(*) from postrider.events";

/// What the table's triggers and foreign keys want is locked by somebody who wants a row of the table next. The server ends whoever has waited for
/// longer than his `deadlock_timeout`, and that must not be he.
#[tokio::test]
async fn who_holds_what_a_trigger_wants_is_in_no_deadlock() {
    let totals = "create table totals (n bigint not null); insert into totals values (0);
        create function count_up() returns trigger language plpgsql as 'begin update public.totals set n = n + 1; return null; end';
        create trigger count_up after update on outbox for each row execute function count_up()";
    let (database, mut connection) = with_table(Preset::Plane).await;
    execute(&mut connection, totals).await;
    for n in 1..=3 {
        insert(&mut connection, Preset::Plane, n, "k").await;
    }
    not_ended(&database, connection, Preset::Plane, "update totals set n = 100").await;

    let notes = "create table notes (about uuid references outbox on delete cascade, n bigint)";
    let (database, mut connection) = with_table(Preset::Debezium).await;
    execute(&mut connection, notes).await;
    for n in 1..=3 {
        insert(&mut connection, Preset::Debezium, n, "k").await;
    }
    execute(&mut connection, "insert into notes select id, 0 from outbox").await;
    not_ended(&database, connection, Preset::Debezium, "update notes set n = 1").await;
}

async fn not_ended(database: &Database, mut connection: PgConnection, preset: Preset, locks: &str) {
    let declared = declared(preset, Mode::Poll);
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    let mut holder = database.connect().await.unwrap();
    // Half of what the mover's session has: it would be the first to look for a deadlock.
    execute(&mut holder, &format!("set deadlock_timeout = '500ms'; begin; {locks}")).await;
    let moving = tokio::spawn(async move {
        let mut keeper = keeper(&mut connection, &declared).await;
        let mut moved = 0;
        while moved < 3 {
            moved += keeper.work(&mut connection).await.unwrap().moved;
        }
        connection
    });
    until_blocked(database, &moving).await;
    let wanted = sqlx::raw_sql("select from outbox for update").execute(&mut holder).await;
    assert!(wanted.is_ok(), "{preset:?}: {wanted:?}");
    execute(&mut holder, "commit").await;
    let moved = tokio::time::timeout(Duration::from_mins(1), moving).await;
    let mut connection = moved.expect("all is moved").unwrap();
    assert_eq!(count(&mut connection, EVENTS).await, 3, "{preset:?}: each once");
}

/// A table of which nothing can be moved says so, and is no failure.
#[tokio::test]
async fn a_lock_that_holds_up_everything_is_told() {
    let (database, mut connection) = with_table(Preset::Plane).await;
    let declared = declared(Preset::Plane, Mode::Poll);
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    for n in 1..=3 {
        insert(&mut connection, Preset::Plane, n, "k").await;
    }
    let mut keeper = keeper(&mut connection, &declared).await;
    let mut holder = database.connect().await.unwrap();
    // Of another poller, which has it still: what comes after it in its key would overtake it.
    execute(&mut holder, "update outbox set claimed_at = now() - interval '1 hour' where id = 1").await;
    execute(&mut holder, "begin; select from outbox where id = 1 for update").await;
    let worked = keeper.work(&mut connection).await.unwrap();
    assert!(worked.is_locked && worked.moved == 0, "{worked:?}");
    execute(&mut holder, "commit").await;
    let worked = keeper.work(&mut connection).await.unwrap();
    assert!(!worked.is_locked && worked.moved == 3, "{worked:?}");

    insert(&mut connection, Preset::Plane, 4, "k").await;
    execute(&mut holder, "begin; lock table outbox in exclusive mode").await;
    while !keeper.work(&mut connection).await.unwrap().is_locked {}
    execute(&mut holder, "commit").await;
    while keeper.work(&mut connection).await.unwrap().moved == 0 {}
    assert_eq!(count(&mut connection, EVENTS).await, 4);
}

/// However many rows with keys of their own somebody has locked, the one behind them goes.
#[tokio::test]
async fn many_rows_that_are_locked_hold_up_no_other_key() {
    many_that_are_locked("'key ' || n").await;
}

/// Nor do rows without a key, which are no key that could be passed over.
#[tokio::test]
async fn many_rows_without_a_key_that_are_locked_hold_up_nothing() {
    many_that_are_locked("null").await;
}

async fn many_that_are_locked(key: &str) {
    let (database, mut connection) = with_table(Preset::OutboxTopic).await;
    let declared = Outbox { batch: 100, ..declared(Preset::OutboxTopic, Mode::Poll) };
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    let many = format!(
        "insert into outbox (topic, key, payload) select 't', {key}, '{{}}' from generate_series(1, 5000) n"
    );
    execute(&mut connection, &many).await;
    insert(&mut connection, Preset::OutboxTopic, 1, "other").await;
    let mut holder = database.connect().await.unwrap();
    execute(&mut holder, "begin; select from outbox where id <= 5000 for update").await;
    let mut keeper = keeper(&mut connection, &declared).await;
    assert_eq!(keeper.work(&mut connection).await.unwrap().moved, 1);
    execute(&mut holder, "commit").await;
    while count(&mut connection, EVENTS).await < 5001 {
        keeper.work(&mut connection).await.unwrap();
    }
}

/// Who tells rows why they cannot become events does not wait for anybody while he holds them.
#[tokio::test]
async fn who_holds_what_a_row_that_is_told_wants_is_in_no_deadlock() {
    let (database, mut connection) = with_table(Preset::OutboxTopic).await;
    execute(
        &mut connection,
        "alter table outbox alter payload drop not null; insert into outbox (topic, key, payload) values ('t', 'k', null);
         create table totals (n bigint not null); insert into totals values (0);
         create function count_up() returns trigger language plpgsql as 'begin update public.totals set n = n + 1; return null; end';
         create trigger count_up after update on outbox for each row execute function count_up()",
    )
    .await;
    let declared = declared(Preset::OutboxTopic, Mode::Poll);
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    let mut holder = database.connect().await.unwrap();
    execute(&mut holder, "set deadlock_timeout = '500ms'; begin; update totals set n = 100").await;
    let told = "select count(*) from outbox where last_error is not null";
    let telling = tokio::spawn(async move {
        while count(&mut connection, told).await == 0 {
            // One that has just come looks at once.
            let mut keeper = keeper(&mut connection, &declared).await;
            keep(&mut keeper, &mut connection).await;
            keeper.close(&mut connection).await.unwrap();
        }
    });
    until_blocked(&database, &telling).await;
    let wanted = sqlx::raw_sql("select from outbox for update").execute(&mut holder).await;
    assert!(wanted.is_ok(), "{wanted:?}");
    execute(&mut holder, "commit").await;
    tokio::time::timeout(PATIENCE, telling).await.expect("it is told").unwrap();
}

/// Rows that cannot be marked are told of: nothing else would say that they are delivered all the same.
#[tokio::test]
async fn a_lock_that_holds_up_marks_is_told() {
    let (database, mut connection) = with_table(Preset::Plane).await;
    let declared = declared(Preset::Plane, Mode::Trigger);
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    let mut reader = open(&database, reading("one")).await;
    insert(&mut connection, Preset::Plane, 1, "k").await;
    read(&mut reader, 1).await;
    let mut holder = database.connect().await.unwrap();
    execute(&mut holder, "begin; select from outbox for update").await;
    let mut marker = Marker::open(&mut connection, &declared, Part::WHOLE).await.unwrap().unwrap();
    let round = marker.work(&mut connection).await.unwrap();
    assert!(round.is_locked && round.settled == 0, "{round:?}");
    execute(&mut holder, "commit").await;
    let round = marker.work(&mut connection).await.unwrap();
    assert!(!round.is_locked && round.settled == 1, "{round:?}");
    reader.close().await.unwrap();
}

/// Each of those who mark a table tells of the lanes that are his: of two, one would write down a refusal behind the other's mark.
#[tokio::test]
async fn a_refusal_is_told_by_who_marks_the_lane() {
    let (database, mut connection) = with_table(Preset::OutboxTopic).await;
    let declared = declared(Preset::OutboxTopic, Mode::Trigger);
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    let reader = open(&database, reading("one")).await;
    for n in 1..=20 {
        insert(&mut connection, Preset::OutboxTopic, n, &format!("key {n}")).await;
    }
    execute(
        &mut connection,
        "insert into postrider.parked (sink, id, lane, seq, type, payload, created_at, state, attempts, kind, reason)
         select s.sink, e.id, e.lane, e.seq, e.type, e.payload, e.created_at, 'waiting', 3, 'rejected', 'no such topic'
         from postrider.events e, postrider.sinks s",
    )
    .await;
    let of_others = "select count(*) from outbox o join postrider.events e on e.source_id = o.id::text where o.last_error is not null and e.lane % 2 = 0";
    let told = "select count(*) from outbox where last_error is not null";
    let mut marker =
        Marker::open(&mut connection, &declared, Part { number: 1, of: 2 }).await.unwrap().unwrap();
    marker.work(&mut connection).await.unwrap();
    let own = count(&mut connection, told).await;
    assert!(0 < own && own < 20 && count(&mut connection, of_others).await == 0, "{own} of 20");
    let mut other =
        Marker::open(&mut connection, &declared, Part { number: 0, of: 2 }).await.unwrap().unwrap();
    other.work(&mut connection).await.unwrap();
    assert_eq!(count(&mut connection, told).await, 20);
    reader.close().await.unwrap();
}

/// A row that the table itself does not let be marked stays as it is, and is told of; all others are marked.
#[tokio::test]
async fn a_row_that_cannot_be_marked_holds_up_no_other() {
    let (database, mut connection) = with_table(Preset::OutboxTopic).await;
    let stubborn = "create function stubborn() returns trigger language plpgsql as $$
            begin if new.id in (2, 7) then raise exception 'not this one'; end if; return new; end $$;
        create trigger stubborn before update on outbox for each row execute function stubborn()";
    execute(&mut connection, stubborn).await;
    let declared = declared(Preset::OutboxTopic, Mode::Trigger);
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    let mut reader = open(&database, reading("one")).await;
    for n in 1..=40 {
        insert(&mut connection, Preset::OutboxTopic, n, &format!("key {}", n % 4)).await;
    }
    read(&mut reader, 40).await;
    let mut marker = Marker::open(&mut connection, &declared, Part::WHOLE).await.unwrap().unwrap();
    while marker.work(&mut connection).await.unwrap().has_more {}
    let unsent: Vec<i64> = sqlx::query_scalar("select id from outbox where published_at is null order by id")
        .fetch_all(&mut connection)
        .await
        .unwrap();
    assert_eq!(unsent, [2, 7]);
    assert!(
        marker.trouble().is_some_and(|trouble| trouble.contains("not this one")),
        "{:?}",
        marker.trouble()
    );
    execute(&mut connection, "drop trigger stubborn on outbox").await;
    let mut marker = Marker::open(&mut connection, &declared, Part::WHOLE).await.unwrap().unwrap();
    assert_eq!(marker.work(&mut connection).await.unwrap().settled, 2);
    reader.close().await.unwrap();
}

/// A row that something refers to cannot be deleted: it stays, the others go, and operators are told.
#[tokio::test]
async fn a_row_that_cannot_be_cleaned_up_holds_up_no_other() {
    let (_database, mut connection) = with_table(Preset::OutboxTopic).await;
    let declared =
        Outbox { cleanup: Some(Duration::from_hours(1)), ..declared(Preset::OutboxTopic, Mode::Trigger) };
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    execute(
        &mut connection,
        "alter table outbox disable trigger all;
         insert into outbox (topic, payload, published_at) select 't', '{}', now() - interval '1 day' from generate_series(1, 2000);
         alter table outbox enable trigger all;
         create table child (about bigint references outbox (id));
         insert into child values (1), (700), (701), (2000)",
    )
    .await;
    let mut keeper = keeper(&mut connection, &declared).await;
    keep(&mut keeper, &mut connection).await;
    let left: Vec<i64> =
        sqlx::query_scalar("select id from outbox order by id").fetch_all(&mut connection).await.unwrap();
    assert_eq!(left, [1, 700, 701, 2000]);
    keeper.tell();
    keep(&mut keeper, &mut connection).await;
    let told = outbox::troubles(&mut connection).await.unwrap();
    assert!(told.len() == 1 && told[0].trouble.contains("cannot be deleted"), "{told:?}");
}
