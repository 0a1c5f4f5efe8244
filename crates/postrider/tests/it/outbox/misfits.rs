//! Rows that cannot become events: they hold nobody up, everybody is told of them, and once they are mended they are taken.

use std::time::Duration;

use postrider::capture::State;
use postrider::log::session;
use postrider::outbox::{self, Columns, Mode, Outbox, Preset};
use sqlx::{Connection as _, PgConnection};

use super::{Keeping, count, declared, execute, keep, keeper, read, with_table};
use crate::support::{database, open, reading};

/// The second to the sixth of seven.
const ROWS: &str = "alter table outbox alter topic drop not null, alter payload drop not null;
    insert into outbox (topic, key, payload) values ('fit', 'k', '{}'), (null, 'k', '{}'), ('', 'k', '{}'), (repeat('t', 256), 'k', '{}'),
        ('t', 'k', null), ('t', repeat('k', 1025), '{}'), ('fit', 'k', '{}')";
const MENDED: &str = "update outbox set topic = 'mended', key = 'k', payload = '{}' where id between 2 and 6";

async fn ids(connection: &mut PgConnection) -> Vec<String> {
    sqlx::query_scalar("select source_id from postrider.events order by seq")
        .fetch_all(connection)
        .await
        .unwrap()
}

/// What is said of them: where operators look, and in the rows.
async fn assert_told(connection: &mut PgConnection) {
    let told = outbox::misfits(connection).await.unwrap();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(
        (told[0].outbox.as_str(), told[0].rows, told[0].source_id.as_str()),
        ("public.outbox", 5, "2")
    );
    assert_eq!(told[0].reason, "topic is null");
    let rows: Vec<(i64, i32, Option<String>)> = sqlx::query_as(
        "select id, attempts, last_error from outbox where last_error is not null order by id",
    )
    .fetch_all(connection)
    .await
    .unwrap();
    let row = |id: i64, reason: &str| (id, 1, Some(reason.to_owned()));
    assert_eq!(
        rows,
        [
            row(2, "topic is null"),
            row(3, "topic is empty"),
            row(4, "topic is longer than 255 bytes"),
            row(5, "payload is null"),
            row(6, "key is longer than 1024 bytes"),
        ]
    );
}

/// One that has just come looks at once.
async fn look(connection: &mut PgConnection, outbox: &Outbox) -> Keeping {
    execute(connection, "delete from postrider.keepers").await;
    let mut keeper = keeper(connection, outbox).await;
    keep(&mut keeper, connection).await;
    keeper
}

#[tokio::test]
async fn polled_they_stay_where_they_are_until_they_are_mended() {
    let (_database, mut connection) = with_table(Preset::OutboxTopic).await;
    let connection = &mut connection;
    let declared = declared(Preset::OutboxTopic, Mode::Poll);
    execute(connection, ROWS).await;
    outbox::apply(connection, std::slice::from_ref(&declared), false).await.unwrap();
    look(connection, &declared).await;
    assert_eq!(ids(connection).await, ["1", "7"], "the others are not held up");
    assert_told(connection).await;
    look(connection, &declared).await;
    assert_told(connection).await;
    let plan = outbox::plan(connection, std::slice::from_ref(&declared)).await.unwrap();
    assert!(plan.is_done() && plan.tables[0].notes[0].contains("5 rows cannot become events"), "{plan:?}");
    execute(connection, MENDED).await;
    look(connection, &declared).await;
    assert_eq!(ids(connection).await, ["1", "7", "2", "3", "4", "5", "6"]);
    assert_eq!(outbox::misfits(connection).await.unwrap(), []);
}

/// Somebody is about to mend one of them: nobody waits for him, and the row is told another time.
#[tokio::test]
async fn polled_one_that_somebody_works_on_holds_nobody_up() {
    let (database, mut connection) = with_table(Preset::OutboxTopic).await;
    let connection = &mut connection;
    let declared = declared(Preset::OutboxTopic, Mode::Poll);
    execute(connection, ROWS).await;
    outbox::apply(connection, std::slice::from_ref(&declared), false).await.unwrap();
    let mut other = database.connect().await.unwrap();
    execute(&mut other, "begin; update outbox set key = 'changed' where id = 2").await;
    let looked = tokio::time::timeout(Duration::from_mins(2), look(connection, &declared)).await;
    assert!(looked.is_ok(), "it waits for somebody else");
    assert_eq!(ids(connection).await, ["1", "7"]);
    assert_eq!(outbox::misfits(connection).await.unwrap()[0].rows, 5);
    execute(&mut other, "rollback").await;
    look(connection, &declared).await;
    assert_told(connection).await;
}

#[tokio::test]
async fn by_trigger_those_that_were_there_are_taken_by_the_next_apply_once_they_are_mended() {
    let (_database, mut connection) = with_table(Preset::OutboxTopic).await;
    let connection = &mut connection;
    let declared = declared(Preset::OutboxTopic, Mode::Trigger);
    let declared = std::slice::from_ref(&declared);
    execute(connection, ROWS).await;
    outbox::apply(connection, declared, false).await.unwrap();
    assert_eq!(ids(connection).await, ["1", "7"]);
    look(connection, &declared[0]).await;
    assert_told(connection).await;
    let refused =
        sqlx::raw_sql("insert into outbox (topic, payload) values (null, '{}')").execute(&mut *connection);
    assert!(refused.await.unwrap_err().to_string().contains("must not be null"));
    let plan = outbox::plan(connection, declared).await.unwrap();
    assert!(plan.is_done() && plan.tables[0].notes[0].contains("5 rows cannot become events"), "{plan:?}");
    execute(connection, MENDED).await;
    assert_eq!(outbox::plan(connection, declared).await.unwrap().tables[0].state, State::Outdated);
    outbox::apply(connection, declared, false).await.unwrap();
    assert_eq!(ids(connection).await, ["1", "7", "2", "3", "4", "5", "6"]);
    look(connection, &declared[0]).await;
    assert_eq!(outbox::misfits(connection).await.unwrap(), []);
    assert!(outbox::plan(connection, declared).await.unwrap().is_done());
}

/// Somebody switched the trigger off and on again by hand: nothing else would ever tell of what came meanwhile.
#[tokio::test]
async fn by_trigger_those_that_came_while_it_was_off_are_told_of() {
    let (_database, mut connection) = with_table(Preset::EventsOutbox).await;
    let connection = &mut connection;
    let declared = declared(Preset::EventsOutbox, Mode::Trigger);
    let declared = std::slice::from_ref(&declared);
    outbox::apply(connection, declared, false).await.unwrap();
    super::insert(connection, Preset::EventsOutbox, 1, "k").await;
    execute(connection, "alter table outbox disable trigger user").await;
    super::insert(connection, Preset::EventsOutbox, 2, "k").await;
    execute(connection, "alter table outbox enable always trigger \"00_postrider_outbox\"").await;
    look(connection, &declared[0]).await;
    let told = outbox::misfits(connection).await.unwrap();
    assert_eq!((told.len(), told[0].rows, told[0].source_id.as_str()), (1, 1, "2"), "{told:?}");
    assert!(told[0].reason.contains("`postrider apply` takes it"), "{told:?}");
    outbox::apply(connection, declared, false).await.unwrap();
    assert_eq!(ids(connection).await, ["1", "2"]);
}

/// Taken by `apply` a moment ago, and the server has no statistics of the notes about them yet: in a session as relays have it, which
/// goes by indexes, it would compare each row with each note.
#[tokio::test]
async fn by_trigger_many_that_are_in_the_log_are_looked_past_at_once() {
    let (database, mut connection) = with_table(Preset::Plane).await;
    let declared = declared(Preset::Plane, Mode::Trigger);
    execute(
        &mut connection,
        "alter table postrider.adopted set (autovacuum_enabled = off);
         insert into outbox (event_id, event_type, entity_id, payload, workspace_id, initiator_type, created_at)
         select gen_random_uuid(), 'many', gen_random_uuid(), '{}', gen_random_uuid(), 'USER', now() from generate_series(1, 20000);
         analyze outbox",
    )
    .await;
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    let options = session::well_mannered(database.url().parse().unwrap());
    let mut connection = PgConnection::connect_with(&options).await.unwrap();
    // It takes 0.1 s, the other way more than a minute.
    execute(&mut connection, "set statement_timeout = '30s'").await;
    look(&mut connection, &declared).await;
    assert_eq!(outbox::misfits(&mut connection).await.unwrap(), []);
}

/// Values that are legal in a table and odd in an event: one batch with all of them is moved, and can be read.
#[tokio::test]
async fn odd_values_hold_nobody_up() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    execute(
        &mut connection,
        "create table outbox (n bigserial primary key, id text unique, topic text, payload text, created_at timestamptz, published_at timestamp,
             last_error varchar(12))",
    )
    .await;
    let named = |name: &str| Some(name.to_owned());
    let columns = Columns {
        id: named("id"),
        order: Some(vec!["n".to_owned()]),
        r#type: named("topic"),
        payload: named("payload"),
        created: named("created_at"),
        sent: named("published_at"),
        last_error: named("last_error"),
        ..Columns::default()
    };
    for mode in [Mode::Poll, Mode::Trigger] {
        let declared = Outbox { mode, ..Outbox::mapped("public.outbox", columns.clone()) };
        let odd = format!(
            "truncate outbox; insert into outbox (id, topic, payload, created_at) values ('{mode:?}1', 't', '{{}}', '-infinity'),
                 ('{mode:?}2', 't', '{{}}', 'infinity'), ('{mode:?}3', 't', '{{}}', '4000-01-01 BC'), (null, 't', '{{}}', now()),
                 ('{mode:?}4', 't', repeat('[', 50000), now()), ('{mode:?}5', 't', E'\\x01', null),
                 ('{mode:?}6', 't', null, null)"
        );
        execute(&mut connection, &odd).await;
        outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
        let mut reader = open(&database, reading(&format!("{mode:?}"))).await;
        look(&mut connection, &declared).await;
        let earlier = if mode == Mode::Poll { 0 } else { 5 };
        let records = read(&mut reader, earlier + 5).await;
        assert!(records.iter().all(|record| record.created_at.year() > 2000), "{records:?}");
        // Cut to what there is room for; a row without an id cannot be found again.
        let told = "select count(*) from outbox where last_error = 'payload is n'";
        assert_eq!(count(&mut connection, told).await, 1, "{mode:?}");
        let told = outbox::misfits(&mut connection).await.unwrap();
        assert_eq!((told[0].rows, told[0].reason.as_str()), (2, "id is null"), "{mode:?}");
        reader.close().await.unwrap();
    }
}
