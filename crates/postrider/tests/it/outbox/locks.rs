//! Somebody has locked what it takes to move a row or to tidy up behind it: he is never ended for it, and the others go on.

use std::time::Duration;

use postrider::outbox::{self, Mode, Outbox, Preset};
use postrider_testkit::Database;
use sqlx::PgConnection;

use super::safety::until_blocked;
use super::tables::insert;
use super::{count, declared, execute, keeper, with_table};

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
    let (database, mut connection) = with_table(Preset::OutboxTopic).await;
    let declared = Outbox { batch: 100, ..declared(Preset::OutboxTopic, Mode::Poll) };
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    let many = "insert into outbox (topic, key, payload) select 't', 'key ' || n, '{}' from generate_series(1, 5000) n";
    execute(&mut connection, many).await;
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
