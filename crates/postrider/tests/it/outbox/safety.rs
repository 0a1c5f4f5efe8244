//! What keeps a row from being taken twice, or never, while somebody else works on the same table.

use std::time::{Duration, Instant};

use postrider::outbox::{self, Mode, Outbox, Preset};
use postrider_testkit::Database;
use sqlx::PgConnection;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::tables::{insert, number};
use super::{count, declared, execute, keep, keeper, with_table};

/// Waits until somebody waits for a lock; whoever does must not have come through.
pub async fn until_blocked<T>(database: &Database, waiting: &JoinHandle<T>) {
    let mut watcher = database.connect().await.unwrap();
    let waits = "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')";
    let begun = Instant::now();
    while !sqlx::query_scalar::<_, bool>(waits).fetch_one(&mut watcher).await.unwrap() {
        assert!(!waiting.is_finished(), "it did not wait");
        assert!(begun.elapsed() < Duration::from_mins(2), "nobody waits");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn payloads(connection: &mut PgConnection) -> Vec<i64> {
    let payloads: Vec<String> = sqlx::query_scalar("select payload::text from postrider.events order by seq")
        .fetch_all(connection)
        .await
        .unwrap();
    payloads.iter().map(|payload| number(payload)).collect()
}

/// The old poller has locked its batch, as such pollers do, and sends it: those rows are its own, and nobody waits for it but rows of
/// their keys.
#[tokio::test]
async fn rows_that_another_poller_has_locked_are_left_to_it() {
    for preset in [Preset::OutboxTopic, Preset::Plane] {
        let (database, mut connection) = with_table(preset).await;
        let declared = declared(preset, Mode::Poll);
        outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
        for n in 1..=6 {
            insert(&mut connection, preset, n, if n <= 3 { "k" } else { "other" }).await;
        }
        let mut poller = database.connect().await.unwrap();
        execute(&mut poller, "begin; select from outbox where id <= 2 for update skip locked").await;
        let mut keeper = keeper(&mut connection, &declared).await;
        let worked = tokio::time::timeout(Duration::from_mins(2), keep(&mut keeper, &mut connection)).await;
        assert!(worked.is_ok(), "{preset:?}: it waits for the poller");
        assert_eq!(payloads(&mut connection).await, [4, 5, 6], "{preset:?}");
        let sent = super::tables::sent(preset).unwrap();
        execute(&mut poller, &format!("update outbox set {sent} = now() where id <= 2; commit")).await;
        keep(&mut keeper, &mut connection).await;
        assert_eq!(payloads(&mut connection).await, [4, 5, 6, 3], "{preset:?}");
    }
}

/// A row that somebody works on holds up its key, and no other, however many rows of the key are behind it. What is before it goes.
#[tokio::test]
async fn no_row_overtakes_one_of_its_key_that_is_locked() {
    for preset in [Preset::OutboxTopic, Preset::Plane, Preset::Debezium] {
        let (database, mut connection) = with_table(preset).await;
        let declared = Outbox { batch: 2, ..declared(preset, Mode::Poll) };
        outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
        for n in 1..=7 {
            insert(&mut connection, preset, n, if n == 6 { "other" } else { "k" }).await;
        }
        let mut holder = database.connect().await.unwrap();
        let second = if preset == Preset::Debezium {
            format!("id = '{}'", super::tables::id(2))
        } else {
            "id = 2".to_owned()
        };
        execute(&mut holder, &format!("begin; select from outbox where {second} for update")).await;
        let mut keeper = keeper(&mut connection, &declared).await;
        // What is free is all moved at once, however small the page and whatever is locked before it.
        for moved in [2, 0] {
            assert_eq!(keeper.work(&mut connection).await.unwrap().moved, moved, "{preset:?}");
        }
        assert_eq!(payloads(&mut connection).await, [1, 6], "{preset:?}");
        if preset == Preset::Plane {
            let claimed = "select count(*) from outbox where claimed_at is not null";
            assert_eq!(count(&mut connection, claimed).await, 2, "what waits is not claimed");
        }
        execute(&mut holder, "commit").await;
        keep(&mut keeper, &mut connection).await;
        assert_eq!(payloads(&mut connection).await, [1, 6, 2, 3, 4, 5, 7], "{preset:?}");
    }
}

/// A row that refers to one of the table keeps it from going, and from nothing else.
#[tokio::test]
async fn a_foreign_key_holds_up_no_row_that_stays() {
    let (database, mut connection) = with_table(Preset::Plane).await;
    execute(&mut connection, "create table notes (about bigint references outbox)").await;
    let declared = declared(Preset::Plane, Mode::Poll);
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    for n in 1..=2 {
        insert(&mut connection, Preset::Plane, n, "k").await;
    }
    let mut holder = database.connect().await.unwrap();
    execute(&mut holder, "begin; insert into notes values (1)").await;
    let mut keeper = keeper(&mut connection, &declared).await;
    assert_eq!(keeper.work(&mut connection).await.unwrap().moved, 2);
    assert_eq!(payloads(&mut connection).await, [1, 2]);
    execute(&mut holder, "rollback").await;
}

/// A poller in the middle of its batch when the trigger is installed: what it does not send after all is taken.
#[tokio::test]
async fn apply_waits_for_a_poller_in_the_middle_of_its_batch() {
    let (database, mut connection) = with_table(Preset::OutboxTopic).await;
    for n in 1..=6 {
        insert(&mut connection, Preset::OutboxTopic, n, "k").await;
    }
    let mut poller = database.connect().await.unwrap();
    execute(&mut poller, "begin; select from outbox where id <= 2 for update skip locked").await;
    let applied = tokio::spawn(async move {
        outbox::apply(&mut connection, &[declared(Preset::OutboxTopic, Mode::Trigger)], false).await.unwrap();
        connection
    });
    until_blocked(&database, &applied).await;
    execute(&mut poller, "rollback").await;
    let mut connection = applied.await.unwrap();
    assert_eq!(payloads(&mut connection).await, [1, 2, 3, 4, 5, 6]);
}

/// A mover that stands still in the middle of its statement has moved rows that nobody sees yet: whoever takes over waits for it,
/// or rows of one key would overtake each other.
#[tokio::test]
async fn a_mover_in_the_middle_of_its_batch_is_waited_for() {
    let (database, mut connection) = with_table(Preset::Plane).await;
    let declared = declared(Preset::Plane, Mode::Poll);
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    for n in 1..=4 {
        insert(&mut connection, Preset::Plane, n, "k").await;
    }
    let mut frozen = database.connect().await.unwrap();
    let me = Uuid::now_v7();
    let moved: i64 = loop {
        sqlx::query(
            "insert into postrider.keepers (outbox, owner, name, expires_at) values ('public.outbox', $1, 'frozen', clock_timestamp() + interval '500 ms')
             on conflict (outbox) do update set expires_at = excluded.expires_at",
        )
        .bind(me)
        .execute(&mut frozen)
        .await
        .unwrap();
        execute(&mut frozen, "begin").await;
        let moved = sqlx::query_scalar("select postrider_capture.move_public_outbox($1, 2)")
            .bind(me)
            .fetch_one(&mut frozen)
            .await
            .unwrap();
        if moved >= 0 {
            break moved;
        }
        execute(&mut frozen, "rollback").await;
    };
    assert_eq!(moved, 2);
    while count(
        &mut connection,
        "select count(*) from postrider.keepers where expires_at > clock_timestamp()",
    )
    .await
        > 0
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut heir = database.connect().await.unwrap();
    let taken_over = tokio::spawn(async move {
        let mut keeper = keeper(&mut heir, &declared).await;
        keep(&mut keeper, &mut heir).await;
    });
    until_blocked(&database, &taken_over).await;
    execute(&mut frozen, "commit").await;
    taken_over.await.unwrap();
    assert_eq!(payloads(&mut connection).await, [1, 2, 3, 4]);
}

/// Its claims look like those of a poller that went, but for what we know of them.
#[tokio::test]
async fn what_another_keeper_has_moved_is_not_moved_again() {
    for preset in Preset::ALL {
        let (_database, mut connection) = with_table(preset).await;
        let declared = declared(preset, Mode::Poll);
        outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
        for n in 1..=3 {
            insert(&mut connection, preset, n, "k").await;
        }
        for _ in 0..2 {
            let mut keeper = keeper(&mut connection, &declared).await;
            keep(&mut keeper, &mut connection).await;
            keeper.close(&mut connection).await.unwrap();
        }
        assert_eq!(payloads(&mut connection).await, [1, 2, 3], "{preset:?}");
    }
}

/// Somebody takes the mark of a row back, to have it sent again, at the moment when it is to be deleted.
#[tokio::test]
async fn cleanup_looks_again_at_a_row_that_somebody_has_changed() {
    let (database, mut connection) = with_table(Preset::Plane).await;
    let declared =
        Outbox { cleanup: Some(Duration::from_hours(1)), ..declared(Preset::Plane, Mode::Trigger) };
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    for n in 1..=3 {
        insert(&mut connection, Preset::Plane, n, "k").await;
    }
    execute(
        &mut connection,
        "delete from postrider.adopted; update outbox set processed_at = now() - interval '1 day'",
    )
    .await;
    let mut other = database.connect().await.unwrap();
    execute(&mut other, "begin; update outbox set processed_at = null where id = 2").await;
    // Who has it locked is not waited for, and keeps no other from going; later it is seen what he has made of it.
    for end in ["", "commit"] {
        execute(&mut other, end).await;
        let mut cleaner = keeper(&mut connection, &declared).await;
        keep(&mut cleaner, &mut connection).await;
        cleaner.close(&mut connection).await.unwrap();
        assert_eq!(count(&mut connection, "select count(*) from outbox").await, 1);
    }
    let left: Vec<i64> =
        sqlx::query_scalar("select id from outbox order by id").fetch_all(&mut connection).await.unwrap();
    assert_eq!(left, [2]);
}
