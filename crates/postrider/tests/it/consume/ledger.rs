//! A ledger of effects, exact to the last one, whatever dies.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use postrider_testkit::Database;
use sqlx::PgConnection;

use super::child::{Consumer, Kind, Order, POINTS};
use crate::support::{PATIENCE, database, run};

fn soak() -> i64 {
    if std::env::var_os("POSTRIDER_SOAK").is_some() { 20 } else { 1 }
}

/// What the ledger says: rows, different events, sum.
async fn ledger(connection: &mut PgConnection) -> (i64, i64, i64) {
    sqlx::query_as("select count(*), count(distinct event), coalesce(sum(amount), 0)::bigint from ledger")
        .fetch_one(connection)
        .await
        .unwrap()
}

async fn world(connection: &mut PgConnection, kind: Kind, events: i64) {
    run(connection, "create table ledger (event text not null, amount bigint not null)").await;
    let write = match kind {
        Kind::Inbox | Kind::NoInbox => {
            "create table queue as select i::text as event, i::bigint as amount from generate_series(1, $1) i"
        }
        _ => {
            run(connection, "select postrider.subscribe('ledger', 'earliest')").await;
            "select count(postrider.emit('paid', json_build_object('amount', i), key => (i % 1000)::text)) from generate_series(1, $1) i"
        }
    };
    let write = write.replace("$1", &events.to_string());
    sqlx::raw_sql(sqlx::AssertSqlSafe(write)).execute(connection).await.unwrap();
}

/// Two consumers that die again and again, each followed by another, until every event has its effect and each point was hit as often
/// as it has to be. Then what the ledger says.
async fn killed(
    database: &Database,
    kind: Kind,
    events: i64,
    hits: usize,
) -> ((i64, i64, i64), BTreeMap<&'static str, usize>) {
    let mut connection = database.connect().await.unwrap();
    world(&mut connection, kind, events).await;
    let mut toll: BTreeMap<&'static str, usize> = POINTS.into_iter().map(|point| (point, 0)).collect();
    // Only where it was not hit often enough: they may live in the end.
    let order = |toll: &BTreeMap<&'static str, usize>| {
        let points =
            toll.iter().filter(|(_, hit)| **hit < hits).map(|(point, _)| (*point).to_owned()).collect();
        Order { database: database.url(), kind, points }
    };
    let mut consumers: Vec<Consumer> = (0..2).map(|_| Consumer::start(&order(&toll))).collect();
    let start = Instant::now();
    loop {
        for consumer in &mut consumers {
            if let Some(point) = consumer.death() {
                *toll.entry(point).or_default() += 1;
                *consumer = Consumer::start(&order(&toll));
            }
        }
        let (_, different, _) = ledger(&mut connection).await;
        let queued = match kind {
            Kind::Inbox | Kind::NoInbox => "select count(*) from queue",
            _ => "select coalesce(sum(events), 0)::bigint from postrider.backlog",
        };
        let left: i64 = sqlx::query_scalar(queued).fetch_one(&mut connection).await.unwrap();
        if different == events && left == 0 {
            break;
        }
        assert!(
            start.elapsed() < PATIENCE * u32::try_from(soak()).unwrap(),
            "{different} of {events} events, {toll:?}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(consumers);
    let found = ledger(&mut connection).await;
    println!("{kind:?}: {} rows of {events} events, killed {toll:?} in {:.1?}", found.0, start.elapsed());
    (found, toll)
}

async fn is_exact(kind: Kind, events: i64) {
    let (events, hits) = (events * soak(), 20);
    let database = database().await;
    let (found, toll) = killed(&database, kind, events, hits).await;
    assert_eq!(found, (events, events, events * (events + 1) / 2), "rows, events, sum");
    assert!(toll.values().all(|hit| *hit >= hits), "{toll:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_105_a_subscription_that_dies_anywhere_leaves_an_exact_ledger() {
    is_exact(Kind::Rust, 30_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_105_a_consumer_by_sql_that_dies_anywhere_leaves_an_exact_ledger() {
    is_exact(Kind::Sql, 30_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_105_a_consumer_with_an_inbox_leaves_an_exact_ledger_although_messages_come_twice() {
    is_exact(Kind::Inbox, 3_000).await;
}

/// The safety step left out: the effect does not share the transaction of the cursor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_the_effect_apart_from_the_cursor_the_ledger_is_wrong() {
    let database = database().await;
    let ((rows, different, _), _) = killed(&database, Kind::EffectApart, 5_000, 3).await;
    assert!(rows > different, "{rows} rows of {different} events: the test proves nothing");
}

/// The safety step left out: nobody asks the inbox.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_inbox_the_ledger_is_wrong() {
    let database = database().await;
    let ((rows, different, _), _) = killed(&database, Kind::NoInbox, 500, 3).await;
    assert!(rows > different, "{rows} rows of {different} events: the test proves nothing");
}
