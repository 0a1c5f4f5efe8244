//! Adopted outbox tables: rows become events, and the table's own columns go on telling the truth.

mod again;
mod bypass;
mod inspection;
mod keeping;
mod locks;
mod misfits;
mod poll;
mod safety;
pub mod tables;

use std::time::{Duration, Instant};

use postrider::capture::State;
use postrider::log::{Reader, ReaderOptions, Record};
use postrider::outbox::{self, Mode, Outbox, Preset};
use postrider_testkit::{Database, Version};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

pub use self::keeping::{Keeping, keep, keeper};
use self::tables::{insert, table};
use crate::support::{PATIENCE, database, database_of, next, open, reading};

pub async fn execute(connection: &mut PgConnection, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(connection).await.unwrap();
}

pub async fn count(connection: &mut PgConnection, question: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(question.to_owned())).fetch_one(connection).await.unwrap()
}

pub fn declared(preset: Preset, mode: Mode) -> Outbox {
    Outbox { mode, stale_after: Duration::ZERO, ..Outbox::new("public.outbox", preset) }
}

/// A database with the table of this preset in it.
pub async fn with_table(preset: Preset) -> (Database, PgConnection) {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    execute(&mut connection, table(preset)).await;
    (database, connection)
}

/// Reads and settles so many events.
pub async fn read(reader: &mut Reader, count: usize) -> Vec<Record> {
    let mut records = Vec::new();
    while records.len() < count {
        let batch = next(reader).await;
        records.extend(batch.records().cloned());
        reader.settle(&batch).await.unwrap();
    }
    assert_eq!(records.len(), count, "{records:?}");
    records
}

/// Every preset: what the row says is what the event says, its columns are true, and applying again changes nothing.
#[tokio::test]
async fn a_row_becomes_an_event_and_is_marked_when_every_sink_has_it() {
    for preset in Preset::ALL {
        for mode in [Mode::Trigger, Mode::Poll] {
            let (database, mut connection) = with_table(preset).await;
            let declared = [declared(preset, mode)];
            let mut reader = open(&database, reading("one")).await;
            insert(&mut connection, preset, 1, "k").await;
            let plan = outbox::apply(&mut connection, &declared, false).await.unwrap();
            assert_eq!(plan.tables[0].state, State::Missing, "{preset:?} {mode:?}");
            assert!(plan.tables[0].notes[0].starts_with("1 rows are not sent"), "{plan:?}");
            let complaints = outbox::inspect(&mut connection, &declared[0]).await.unwrap();
            assert!(complaints.iter().all(|complaint| !complaint.is_fatal), "{complaints:?}");
            let again = outbox::apply(&mut connection, &declared, false).await.unwrap();
            assert!(again.is_done(), "{again:?}");
            insert(&mut connection, preset, 2, "k").await;
            let mut keeper = keeper(&mut connection, &declared[0]).await;
            keep(&mut keeper, &mut connection).await;
            if let Some(sent) = tables::sent(preset) {
                let unsent =
                    count(&mut connection, &format!("select count(*) from outbox where {sent} is null"))
                        .await;
                assert_eq!(unsent, 2, "{preset:?}: nobody has them yet");
            }
            let mut records = read(&mut reader, 2).await;
            // Without a key they have no order.
            records.sort_by_key(|record| record.seq);
            tables::assert_event(preset, &records[0], 1, "k");
            tables::assert_event(preset, &records[1], 2, "k");
            keep(&mut keeper, &mut connection).await;
            if let Some(sent) = tables::sent(preset) {
                let unsent =
                    count(&mut connection, &format!("select count(*) from outbox where {sent} is null"))
                        .await;
                assert_eq!(unsent, 0, "{preset:?} {mode:?}: every sink has them");
                assert_eq!(count(&mut connection, "select count(*) from postrider.adopted").await, 0);
            }
            reader.close().await.unwrap();
        }
    }
}

/// `ON CONFLICT DO NOTHING` inserts nothing, and a transaction that rolls back neither; a row that comes as sent is no event.
#[tokio::test]
async fn what_is_not_inserted_is_no_event() {
    for version in Version::ALL {
        let database = database_of(version).await;
        let mut connection = database.connect().await.unwrap();
        execute(&mut connection, table(Preset::Plane)).await;
        outbox::apply(&mut connection, &[declared(Preset::Plane, Mode::Trigger)], false).await.unwrap();
        insert(&mut connection, Preset::Plane, 1, "k").await;
        let again = "insert into outbox (event_id, event_type, entity_id, payload, workspace_id, initiator_type, created_at, processed_at)
                     select event_id, 'again', entity_id, payload, workspace_id, 'USER', now(), {} from outbox on conflict do nothing";
        execute(&mut connection, &again.replace("{}", "null")).await;
        let mut transaction = connection.begin().await.unwrap();
        insert(&mut transaction, Preset::Plane, 2, "k").await;
        transaction.rollback().await.unwrap();
        let sent = again.replace("{}", "now()").replace("select event_id", "select gen_random_uuid()");
        execute(&mut connection, &sent).await;
        assert_eq!(count(&mut connection, "select count(*) from outbox").await, 2, "{version}");
        assert_eq!(count(&mut connection, "select count(*) from postrider.events").await, 1, "{version}");
        assert_eq!(count(&mut connection, "select count(*) from postrider.adopted").await, 1, "{version}");
    }
}

/// The claim is there before anybody can see the row.
#[tokio::test]
async fn another_poller_never_sees_a_row() {
    let (_database, mut connection) = with_table(Preset::Plane).await;
    outbox::apply(&mut connection, &[declared(Preset::Plane, Mode::Trigger)], false).await.unwrap();
    insert(&mut connection, Preset::Plane, 1, "k").await;
    let seen = count(
        &mut connection,
        "select count(*) from outbox where processed_at is null and claimed_at is null",
    )
    .await;
    assert_eq!(seen, 0);
}

/// Rows that are there come first and in order, none twice, while others write.
#[tokio::test]
async fn rows_that_are_there_are_taken_first_without_gap_or_repeat() {
    let (database, mut connection) = with_table(Preset::Plane).await;
    let mut reader = open(&database, reading("one")).await;
    for n in 0..50 {
        insert(&mut connection, Preset::Plane, n, &format!("k{}", n % 5)).await;
    }
    // What the old poller had sent, and what it had claimed when it was stopped.
    execute(&mut connection, "update outbox set claimed_at = now() - interval '1 hour' where id <= 20").await;
    execute(&mut connection, "update outbox set processed_at = now() where id <= 10").await;
    let mut writer = database.connect().await.unwrap();
    let writing = tokio::spawn(async move {
        for n in 50..150 {
            insert(&mut writer, Preset::Plane, n, &format!("k{}", n % 5)).await;
        }
    });
    outbox::apply(&mut connection, &[declared(Preset::Plane, Mode::Trigger)], false).await.unwrap();
    writing.await.unwrap();
    let records = read(&mut reader, 140).await;
    for key in 0..5 {
        let numbers: Vec<i64> = records
            .iter()
            .filter(|record| record.key.as_deref() == Some(&tables::entity(&format!("k{key}"))))
            .map(|record| tables::number(&record.payload))
            .collect();
        let expected: Vec<i64> = (10..150).filter(|n| n % 5 == key).collect();
        assert_eq!(numbers, expected);
    }
    reader.close().await.unwrap();
}

/// A claim of a moment ago is the old poller at work.
#[tokio::test]
async fn apply_does_not_take_rows_from_a_poller_at_work() {
    let (_database, mut connection) = with_table(Preset::Plane).await;
    insert(&mut connection, Preset::Plane, 1, "k").await;
    execute(&mut connection, "update outbox set claimed_at = now()").await;
    let patient = Outbox { stale_after: Duration::from_mins(1), ..declared(Preset::Plane, Mode::Trigger) };
    let refused = outbox::apply(&mut connection, std::slice::from_ref(&patient), false).await.unwrap_err();
    assert!(refused.to_string().contains("1 rows were claimed by another poller"), "{refused}");
    // Nor does whoever runs its statements by another tool.
    let plan = outbox::plan(&mut connection, std::slice::from_ref(&patient)).await.unwrap();
    let script = format!("begin; {}; commit", plan.tables[0].statements.join("; "));
    let refused = sqlx::raw_sql(AssertSqlSafe(script)).execute(&mut connection).await.unwrap_err();
    assert!(refused.to_string().contains("were claimed by another poller"), "{refused}");
    execute(&mut connection, "rollback").await;
    assert_eq!(count(&mut connection, "select count(*) from postrider.events").await, 0);
    execute(&mut connection, "update outbox set claimed_at = now() - interval '2 minutes'").await;
    outbox::apply(&mut connection, &[patient], false).await.unwrap();
    assert_eq!(count(&mut connection, "select count(*) from postrider.events").await, 1);
}

/// A trigger that was off is noticed, and what came meanwhile is taken when it is applied again.
#[tokio::test]
async fn what_came_while_the_trigger_was_off_is_taken() {
    let (_database, mut connection) = with_table(Preset::OutboxTopic).await;
    let declared = [declared(Preset::OutboxTopic, Mode::Trigger)];
    outbox::apply(&mut connection, &declared, false).await.unwrap();
    insert(&mut connection, Preset::OutboxTopic, 1, "k").await;
    execute(&mut connection, "alter table outbox disable trigger user").await;
    insert(&mut connection, Preset::OutboxTopic, 2, "k").await;
    let alarms = outbox::alarms(&mut connection, &declared).await.unwrap();
    assert_eq!((alarms.len(), alarms[0].state), (1, State::Disabled));
    outbox::apply(&mut connection, &declared, false).await.unwrap();
    let ids: Vec<String> = sqlx::query_scalar("select source_id from postrider.events order by seq")
        .fetch_all(&mut connection)
        .await
        .unwrap();
    assert_eq!(ids, ["1", "2"]);
    let orphans = outbox::plan(&mut connection, &[]).await.unwrap();
    let named: Vec<&str> = orphans.tables.iter().map(|orphan| orphan.table.as_str()).collect();
    let keep = "postrider_capture.keep_public_outbox(text,text[],bigint[],integer[],text[],double precision)";
    assert_eq!(named, ["outbox", keep, "postrider_capture.misfits_public_outbox()"]);
    assert!(orphans.tables.iter().all(|orphan| orphan.state == State::Orphaned));
    outbox::apply(&mut connection, &[], true).await.unwrap();
    assert!(outbox::plan(&mut connection, &[]).await.unwrap().tables.is_empty());
    insert(&mut connection, Preset::OutboxTopic, 3, "k").await;
    assert_eq!(count(&mut connection, "select count(*) from postrider.events").await, 2);
}

/// Two sinks: marked when the second has it; while one refuses it the row says so.
#[tokio::test]
async fn a_row_is_marked_when_the_last_sink_has_it() {
    const UNSENT: &str = "select count(*) from outbox where published_at is null";
    let (database, mut connection) = with_table(Preset::OutboxTopic).await;
    let declared = declared(Preset::OutboxTopic, Mode::Trigger);
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    let mut one = open(&database, reading("one")).await;
    // It sees all rows before it has read the last.
    let mut two = open(&database, ReaderOptions { page: 1, ..reading("two") }).await;
    let mut transaction = connection.begin().await.unwrap();
    for n in 1..=20 {
        insert(&mut transaction, Preset::OutboxTopic, n, "k").await;
    }
    transaction.commit().await.unwrap();
    let mut keeper = keeper(&mut connection, &declared).await;
    read(&mut one, 20).await;
    keep(&mut keeper, &mut connection).await;
    assert_eq!(count(&mut connection, UNSENT).await, 20);
    let mut unread = 20;
    while unread > 0 {
        let batch = next(&mut two).await;
        unread -= i64::try_from(batch.records().count()).unwrap();
        two.settle(&batch).await.unwrap();
        keep(&mut keeper, &mut connection).await;
        assert_eq!(count(&mut connection, UNSENT).await, unread);
    }
    one.close().await.unwrap();
    two.close().await.unwrap();
}

/// A row whose event is parked is not sent, and says why; when it is delivered or discarded it is.
#[tokio::test]
async fn a_refused_row_says_so_and_is_not_sent() {
    let (database, mut connection) = with_table(Preset::OutboxTopic).await;
    let declared = declared(Preset::OutboxTopic, Mode::Trigger);
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    let mut reader = open(&database, reading("one")).await;
    let mut keeper = keeper(&mut connection, &declared).await;
    keep(&mut keeper, &mut connection).await;
    insert(&mut connection, Preset::OutboxTopic, 1, "k").await;
    execute(
        &mut connection,
        "insert into postrider.parked (sink, id, lane, seq, type, payload, created_at, state, attempts, kind, reason)
         select s.sink, e.id, e.lane, e.seq, e.type, e.payload, e.created_at, 'waiting', 3, 'rejected', 'no such topic'
         from postrider.events e, postrider.sinks s",
    )
    .await;
    read(&mut reader, 1).await;
    // Not sent from the first moment; told within a second.
    let begun = Instant::now();
    loop {
        keep(&mut keeper, &mut connection).await;
        let row: (bool, i32, Option<String>) =
            sqlx::query_as("select published_at is null, attempts, last_error from outbox")
                .fetch_one(&mut connection)
                .await
                .unwrap();
        assert!(row.0, "{row:?}");
        if row == (true, 3, Some("one: no such topic".to_owned())) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{row:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    execute(&mut connection, "delete from postrider.parked").await;
    let mut keeper = self::keeper(&mut connection, &declared).await;
    execute(&mut connection, "delete from postrider.keepers").await;
    keep(&mut keeper, &mut connection).await;
    assert_eq!(count(&mut connection, "select count(*) from outbox where published_at is null").await, 0);
    reader.close().await.unwrap();
}

/// What only waited was never refused: once it is delivered it says nothing of that any more, and what was refused still says why.
#[tokio::test]
async fn a_row_that_has_waited_behind_another_does_not_say_so_when_it_is_sent() {
    let (database, mut connection) = with_table(Preset::OutboxTopic).await;
    let declared = declared(Preset::OutboxTopic, Mode::Trigger);
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    let mut reader = open(&database, reading("one")).await;
    for n in 1..=2 {
        insert(&mut connection, Preset::OutboxTopic, n, "k").await;
    }
    execute(
        &mut connection,
        "insert into postrider.parked (sink, id, lane, seq, type, payload, created_at, state, attempts, kind, reason)
         select s.sink, e.id, e.lane, e.seq, e.type, e.payload, e.created_at,
                case r when 1 then 'waiting' else 'behind' end, case r when 1 then 3 else 0 end, case r when 1 then 'rejected' end,
                case r when 1 then 'no such topic' end
         from (select *, row_number() over (order by seq) as r from postrider.events) e, postrider.sinks s",
    )
    .await;
    read(&mut reader, 2).await;
    let mut said = Vec::new();
    for parked in [true, false] {
        if !parked {
            execute(&mut connection, "delete from postrider.parked").await;
        }
        // One that has just begun tells at once.
        execute(&mut connection, "delete from postrider.keepers").await;
        let mut keeper = keeper(&mut connection, &declared).await;
        keep(&mut keeper, &mut connection).await;
        let told: Vec<(bool, Option<String>)> =
            sqlx::query_as("select published_at is not null, last_error from outbox order by id")
                .fetch_all(&mut connection)
                .await
                .unwrap();
        said.push(told);
    }
    let refused = Some("one: no such topic".to_owned());
    let waited = Some("one: waits behind an earlier event of its key".to_owned());
    assert_eq!(said, [[(false, refused.clone()), (false, waited)], [(true, refused), (true, None)]]);
    reader.close().await.unwrap();
}

/// An event that came late, behind a cursor that had moved past it, is not taken for settled.
#[tokio::test]
async fn a_row_that_commits_late_is_not_marked_before_it_is_read() {
    let (database, mut connection) = with_table(Preset::EventsOutbox).await;
    let declared = declared(Preset::EventsOutbox, Mode::Trigger);
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    let mut reader = open(&database, reading("one")).await;
    let mut slow = database.connect().await.unwrap();
    let mut transaction = slow.begin().await.unwrap();
    insert(&mut transaction, Preset::EventsOutbox, 1, "k").await;
    insert(&mut connection, Preset::EventsOutbox, 2, "k").await;
    read(&mut reader, 1).await;
    transaction.commit().await.unwrap();
    let mut keeper = keeper(&mut connection, &declared).await;
    keep(&mut keeper, &mut connection).await;
    let unsent: Vec<i64> = sqlx::query_scalar("select id from outbox where dispatched_at is null")
        .fetch_all(&mut connection)
        .await
        .unwrap();
    assert_eq!(unsent, [1]);
    read(&mut reader, 1).await;
    keep(&mut keeper, &mut connection).await;
    assert_eq!(count(&mut connection, "select count(*) from outbox where dispatched_at is null").await, 0);
    reader.close().await.unwrap();
}

/// Sent rows go in batches once they are old enough; unsent ones stay, however old.
#[tokio::test]
async fn cleanup_never_touches_an_unsent_row() {
    let (_database, mut connection) = with_table(Preset::Plane).await;
    let declared =
        Outbox { cleanup: Some(Duration::from_hours(24)), ..declared(Preset::Plane, Mode::Trigger) };
    execute(
        &mut connection,
        "insert into outbox (event_id, event_type, entity_id, payload, workspace_id, initiator_type, created_at, claimed_at, processed_at)
         select gen_random_uuid(), 't', gen_random_uuid(), '{}', gen_random_uuid(), 'USER', now() - interval '9 days', now() - interval '9 days',
                case n % 3 when 0 then null when 1 then now() - interval '2 days' else now() end
         from generate_series(0, 4499) n",
    )
    .await;
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    let mut keeper = keeper(&mut connection, &declared).await;
    keep(&mut keeper, &mut connection).await;
    assert_eq!(count(&mut connection, "select count(*) from outbox where processed_at is null").await, 1500);
    assert_eq!(
        count(&mut connection, "select count(*) from outbox where processed_at is not null").await,
        1500
    );
}
