//! A handler that ends its process at an event: that one is given up, and nobody else is.

use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use postrider_testkit::Database;
use sqlx::PgConnection;

use super::child::{Consumer, Kind, MOST_ABORTS, Order};
use crate::support::{PATIENCE, database, run};

const GOOD: i64 = 400;
const SIGABRT: i32 = 6;

/// Payments of forty keys; among them, two that abort the process, far from each other, and one whose handler takes longer than the other takes to abort.
async fn world(connection: &mut PgConnection) {
    run(
        connection,
        "create table ledger (place bigserial, event text not null, amount bigint not null);
         select postrider.subscribe('ledger', 'earliest');
         select postrider.emit('slow', '{\"amount\": 1001}', key => 'slow'),
                postrider.emit('fatal', '{\"amount\": 1002}', key => 'first');
         select count(postrider.emit('paid', json_build_object('amount', i), key => (i % 40)::text)) from generate_series(1, 200) i;
         select postrider.emit('fatal', '{\"amount\": 1003}', key => '7'), postrider.emit('panicking', '{\"amount\": 1004}', key => '8');
         select count(postrider.emit('paid', json_build_object('amount', i), key => (i % 40)::text)) from generate_series(201, 400) i",
    )
    .await;
}

/// One process after the other until nothing is left; how often it ended by SIGABRT.
async fn work_off(database: &Database, kind: Kind, is_done: impl AsyncFn(&mut PgConnection) -> bool) -> u32 {
    let mut connection = database.connect().await.unwrap();
    let order = Order { database: database.url(), kind, points: Vec::new() };
    let (mut aborts, start) = (0, Instant::now());
    let mut consumer = Consumer::start(&order);
    while !is_done(&mut connection).await {
        if let Some(status) = consumer.has_ended() {
            assert_eq!(status.signal(), Some(SIGABRT), "{status}");
            aborts += 1;
            consumer = Consumer::start(&order);
        }
        assert!(start.elapsed() < PATIENCE && aborts < 30, "it goes on and on: {aborts} aborts");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    aborts
}

async fn nothing_is_left(connection: &mut PgConnection) -> bool {
    let left: i64 = sqlx::query_scalar("select coalesce(sum(events), 0)::bigint from postrider.backlog")
        .fetch_one(&mut *connection)
        .await
        .unwrap();
    left == 0
}

/// Amount, attempts and reason of what is dead.
async fn dead(connection: &mut PgConnection) -> Vec<(i64, i32, String)> {
    sqlx::query_as(
        "select (payload ->> 'amount')::bigint, attempts, reason from postrider.parked where state = 'dead' order by 1",
    )
    .fetch_all(connection)
    .await
    .unwrap()
}

async fn isolates(kind: Kind) {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    world(&mut connection).await;
    let aborts = work_off(&database, kind, async |connection| nothing_is_left(connection).await).await;
    println!("{kind:?}: {aborts} aborts");
    // Each once unseen, among its neighbours, and then by itself as often as it may; unseen they may have been at it together.
    assert!((2 * MOST_ABORTS + 1..=2 * MOST_ABORTS + 2).contains(&aborts), "{aborts} aborts");

    let attempts = i32::try_from(MOST_ABORTS).unwrap();
    let ended = "the process ended each time".to_owned();
    let expected = [
        (1002, attempts, ended.clone()),
        (1003, attempts, ended.clone()),
        (1004, attempts, "the handler panicked: at the payment".to_owned()),
    ];
    let mut found = dead(&mut connection).await;
    // The process may end by another lane's event when the last panic is counted and its event not yet given up: then it panics once more.
    if let Some((1004, panics, _)) = found.last_mut()
        && *panics == attempts + 1
    {
        *panics = attempts;
    }
    assert_eq!(found, expected, "with its payload and its reason, and nobody else");

    let booked: Vec<i64> = sqlx::query_scalar("select amount from ledger order by amount")
        .fetch_all(&mut connection)
        .await
        .unwrap();
    assert_eq!(booked, (1..=GOOD).chain([1001]).collect::<Vec<_>>(), "each neighbour once");
    let overtaken: i64 = sqlx::query_scalar(
        "select count(*) from ledger a join ledger b on a.amount % 40 = b.amount % 40 and a.amount <= 400 and b.amount <= 400
            and a.place < b.place and a.amount > b.amount",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert_eq!(overtaken, 0, "in order per key");
    let notes: i64 = sqlx::query_scalar("select count(*) from postrider.retries")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(notes, 0, "nothing is noted of what is settled");

    // Somebody has another go at one of them: it is no better, and no danger.
    let retry =
        "update postrider.parked set state = 'waiting', attempts = 0, next_attempt_at = clock_timestamp()
        where (payload ->> 'amount')::bigint = 1002";
    run(&mut connection, retry).await;
    let aborts = work_off(&database, kind, async |connection| dead(connection).await.len() == 3).await;
    assert!((MOST_ABORTS..=MOST_ABORTS + 1).contains(&aborts), "{aborts} aborts");
    assert_eq!(dead(&mut connection).await[0], (1002, attempts, ended));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_107_an_event_that_aborts_the_process_is_given_up_and_its_neighbours_are_not() {
    isolates(Kind::Aborting).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_107_an_event_that_aborts_the_process_in_a_batch_is_given_up_and_its_neighbours_are_not() {
    isolates(Kind::AbortingBatches).await;
}

/// Id, lane, type, attempts, suspect.
type Row = (sqlx::types::Uuid, i32, String, i32, bool);

/// The same by SQL alone: note, fetch by itself, give up.
#[tokio::test]
async fn fault_107_what_was_begun_and_never_ended_comes_alone() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "select postrider.subscribe('c', 'earliest')").await;
    for event in ["1", "2", "3"] {
        crate::support::emit(&mut connection, event, "k").await;
    }
    let fetch = "select id, lane, type, attempts, suspect from postrider.next_batch('c')";
    let batch = async |connection: &mut PgConnection| -> Vec<Row> {
        sqlx::query("begin").execute(&mut *connection).await.unwrap();
        let rows = sqlx::query_as(fetch).fetch_all(&mut *connection).await.unwrap();
        sqlx::query("rollback").execute(connection).await.unwrap();
        rows
    };
    let plain = batch(&mut connection).await;
    assert_eq!(plain.len(), 3);
    assert!(plain.iter().all(|row| !row.4));
    let (event, lane, ..) = plain[0];
    let begin = async |connection: &mut PgConnection, alone: bool| -> i32 {
        sqlx::query_scalar("select postrider.begin_try('c', $1, $2, $3)")
            .bind(lane)
            .bind(event)
            .bind(alone)
            .fetch_one(connection)
            .await
            .unwrap()
    };
    assert_eq!(begin(&mut connection, false).await, 0, "in company nothing is counted");
    let suspect = batch(&mut connection).await;
    assert_eq!(suspect.len(), 1, "by itself");
    assert_eq!((suspect[0].3, suspect[0].4), (0, true));
    assert_eq!(begin(&mut connection, true).await, 1);
    assert_eq!(begin(&mut connection, true).await, 2);
    assert_eq!(batch(&mut connection).await[0].3, 2);
    let reason: String = sqlx::query_scalar("select reason from postrider.consumers")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(reason, "the process ended");
    run(
        &mut connection,
        "begin;
         select postrider.give_up('c', token, id, 'the process ended', was_tried => false), postrider.finish_batch('c', token)
         from postrider.next_batch('c');
         commit",
    )
    .await;
    let attempts: i32 = sqlx::query_scalar("select attempts from postrider.dead_letters")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(attempts, 2);
    let rest = batch(&mut connection).await;
    assert_eq!(rest.iter().map(|row| row.2.as_str()).collect::<Vec<_>>(), ["2", "3"]);
    assert!(rest.iter().all(|row| !row.4));
}
