//! Tables on which nothing may be installed.

use std::time::Duration;

use postrider::outbox::{self, Error, Mode, Outbox, Preset};
use sqlx::AssertSqlSafe;

use super::tables::{insert, number};
use super::{count, declared, execute, keep, keeper, read, with_table};
use crate::support::{open, reading};

/// One at a time, and one that has lost its lease moves nothing.
#[tokio::test]
async fn a_table_has_one_mover() {
    let (_database, mut connection) = with_table(Preset::Plane).await;
    let declared = declared(Preset::Plane, Mode::Poll);
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    assert_eq!(
        count(&mut connection, "select count(*) from pg_trigger where tgrelid = 'outbox'::regclass").await,
        0
    );
    let mut first = keeper(&mut connection, &declared).await;
    let mut second = keeper(&mut connection, &declared).await;
    assert!(!first.work(&mut connection).await.unwrap().stands_by);
    assert!(second.work(&mut connection).await.unwrap().stands_by);
    insert(&mut connection, Preset::Plane, 1, "k").await;
    // As if the first had been frozen for longer than its lease.
    execute(&mut connection, "update postrider.keepers set expires_at = clock_timestamp() - interval '1 s'")
        .await;
    let worked = second.work(&mut connection).await.unwrap();
    assert_eq!((worked.stands_by, worked.moved), (false, 1));
    insert(&mut connection, Preset::Plane, 2, "k").await;
    let worked = first.work(&mut connection).await.unwrap();
    assert_eq!((worked.stands_by, worked.moved), (true, 0), "it does not know that it has lost its lease");
    second.close(&mut connection).await.unwrap();
    assert_eq!(first.work(&mut connection).await.unwrap().moved, 1, "handed back");
}

/// The rows of the old poller come first: while its claims are young nothing moves, and what it has left is taken back.
#[tokio::test]
async fn claims_that_were_left_are_taken_back() {
    let (database, mut connection) = with_table(Preset::Plane).await;
    let declared =
        Outbox { stale_after: Duration::from_mins(1), batch: 10, ..declared(Preset::Plane, Mode::Poll) };
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    for n in 1..=30 {
        insert(&mut connection, Preset::Plane, n, "k").await;
    }
    execute(&mut connection, "update outbox set claimed_at = now() where id <= 12").await;
    execute(&mut connection, "update outbox set processed_at = now() where id <= 5").await;
    let mut reader = open(&database, reading("one")).await;
    let mut ours = keeper(&mut connection, &declared).await;
    let refused = ours.work(&mut connection).await.unwrap_err();
    assert!(matches!(refused, Error::Claimed { claims: 7, .. }), "{refused}");
    assert_eq!(count(&mut connection, "select count(*) from postrider.events").await, 0);
    execute(&mut connection, "update outbox set claimed_at = now() - interval '2 minutes' where id <= 12")
        .await;
    keep(&mut ours, &mut connection).await;
    let records = read(&mut reader, 25).await;
    let numbers: Vec<i64> = records.iter().map(|record| number(&record.payload)).collect();
    assert_eq!(numbers, (6..=30).collect::<Vec<i64>>());
    keep(&mut ours, &mut connection).await;
    assert_eq!(count(&mut connection, "select count(*) from outbox where processed_at is null").await, 0);
    assert_eq!(count(&mut connection, "select count(*) from postrider.events").await, 25);
    reader.close().await.unwrap();
}

/// A table without claims: what is in the log is not moved again, however long its sinks take.
#[tokio::test]
async fn without_a_claim_a_row_is_moved_once() {
    let (database, mut connection) = with_table(Preset::OutboxUuid).await;
    let declared = Outbox { batch: 7, ..declared(Preset::OutboxUuid, Mode::Poll) };
    outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
    for n in 1..=20 {
        insert(&mut connection, Preset::OutboxUuid, n, "").await;
    }
    let mut reader = open(&database, reading("one")).await;
    let mut keeper = keeper(&mut connection, &declared).await;
    keep(&mut keeper, &mut connection).await;
    keep(&mut keeper, &mut connection).await;
    assert_eq!(count(&mut connection, "select count(*) from postrider.events").await, 20);
    read(&mut reader, 20).await;
    keep(&mut keeper, &mut connection).await;
    assert_eq!(count(&mut connection, "select count(*) from outbox where published_at is null").await, 0);
    reader.close().await.unwrap();
}

/// Rows go into the log in sets, by which nothing is lost, doubled or put out of order.
#[tokio::test]
async fn many_rows_are_moved_at_once_and_stay_in_order() {
    for mode in [Mode::Poll, Mode::Trigger] {
        let (_database, mut connection) = with_table(Preset::Plane).await;
        let declared = Outbox { batch: 5000, ..declared(Preset::Plane, mode) };
        insert(&mut connection, Preset::Plane, 1, "k").await;
        // One of them is longer than a set may be.
        execute(
            &mut connection,
            "insert into outbox (event_id, event_type, entity_id, payload, workspace_id, initiator_type, created_at)
             select gen_random_uuid(), o.event_type, o.entity_id,
                    jsonb_build_object('n', n, 'long', case when n = 2100 then repeat('x', 67108864) end), o.workspace_id, 'USER', now()
             from outbox o, generate_series(2, 2101) n order by n",
        )
        .await;
        outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
        if mode == Mode::Poll {
            let mut keeper = keeper(&mut connection, &declared).await;
            assert_eq!(keeper.work(&mut connection).await.unwrap().moved, 2101);
        }
        let in_order = "select count(*) from (
                select o.id, row_number() over (order by e.seq) as place from postrider.events e join outbox o on o.event_id::text = e.source_id
                join postrider.adopted a on a.lane = e.lane and a.seq = e.seq and a.event = e.id and a.source_id = e.source_id) e
            where e.id = e.place";
        assert_eq!(count(&mut connection, in_order).await, 2101, "{mode:?}");
        assert_eq!(count(&mut connection, "select count(*) from postrider.events").await, 2101, "{mode:?}");
        assert_eq!(
            count(&mut connection, "select count(*) from outbox where claimed_at is not null").await,
            2101
        );
    }
}

/// An index that has the marks before the order gives the rows that wait in order, and none that was sent: it is asked for so. Where an index of those
/// that wait has the order first, or there is none, the order alone is asked for.
#[tokio::test]
async fn rows_that_wait_are_found_by_the_index_that_is_there() {
    let marked = r#"order by o."claimed_at", o."processed_at", o."id""#;
    let alone = r#"order by o."id""#;
    let (_database, mut connection) = with_table(Preset::Plane).await;
    let declared = declared(Preset::Plane, Mode::Poll);
    for (change, order) in [
        ("", marked),
        ("create index by_id on outbox (id) where claimed_at is null and processed_at is null", alone),
        ("drop index by_id; drop index outbox_unclaimed_unprocessed", alone),
        (
            "create index by_marks on outbox (processed_at, claimed_at, id)",
            r#"order by o."processed_at", o."claimed_at", o."id""#,
        ),
        ("drop index by_marks; create index by_marks on outbox (claimed_at desc, id)", alone),
        ("drop index by_marks; create index by_marks on outbox (claimed_at, event_type, id)", alone),
        ("drop index by_marks; create index by_marks on outbox (claimed_at, processed_at, id)", marked),
    ] {
        execute(&mut connection, change).await;
        outbox::apply(&mut connection, std::slice::from_ref(&declared), false).await.unwrap();
        let body: String =
            sqlx::query_scalar("select prosrc from pg_proc where proname = 'move_public_outbox'")
                .fetch_one(&mut connection)
                .await
                .unwrap();
        assert!(body.contains(&format!("{order}\n")), "{change}: {body}");
    }
    execute(
        &mut connection,
        "insert into outbox (event_id, event_type, entity_id, payload, workspace_id, initiator_type, created_at, claimed_at, processed_at)
         select gen_random_uuid(), 't', gen_random_uuid(), '{}', gen_random_uuid(), 'USER', now(), now(), now() from generate_series(1, 5000);
         analyze outbox",
    )
    .await;
    let looks = format!(
        "explain select from outbox o where o.claimed_at is null and o.processed_at is null {marked} limit 100"
    );
    let plan: Vec<String> =
        sqlx::query_scalar(AssertSqlSafe(looks)).fetch_all(&mut connection).await.unwrap();
    let plan = plan.join("\n");
    assert!(plan.contains("using by_marks") && !plan.contains("Sort"), "{plan}");
}
