//! `Subscription`: retries, dead letters, order, and a stop that finishes what is begun.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use postrider::consume::{Backoff, BoxError, Message, Outcome, Subscription, Tx};
use postrider::log::Start;
use postrider_testkit::Database;
use sqlx::PgPool;
use tokio::sync::Notify;

use super::wrapping::{WAYS, deadlock};
use crate::support::{PATIENCE, database, database_with_one_lane, emit, pool_through_proxy, run};

async fn subscription(database: &Database) -> Subscription {
    subscription_of(PgPool::connect(&database.url()).await.unwrap())
}

fn subscription_of(pool: PgPool) -> Subscription {
    let quick = Backoff {
        first: Duration::from_millis(5),
        max: Duration::from_millis(20),
        max_attempts: 3,
        ..Backoff::default()
    };
    Subscription::new(pool, "c")
        .start(Start::Earliest)
        .retry(quick)
        .idle(Duration::from_millis(1), Duration::from_millis(10))
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it does not end")
}

/// Types in the order in which they were committed, and the reasons of dead ones.
async fn outcome(database: &Database) -> (Vec<String>, Vec<(String, String, i32)>) {
    let mut connection = database.connect().await.unwrap();
    let done =
        sqlx::query_scalar("select type from done order by n").fetch_all(&mut connection).await.unwrap();
    let dead = sqlx::query_as("select type, reason, attempts from postrider.dead_letters")
        .fetch_all(&mut connection)
        .await
        .unwrap();
    (done, dead)
}

async fn note(tx: &mut Tx, event: &Message) -> Result<(), sqlx::Error> {
    sqlx::query("insert into done (type) values ($1)").bind(&event.r#type).execute(&mut **tx).await?;
    Ok(())
}

async fn five_events(database: &Database) {
    let mut connection = database.connect().await.unwrap();
    run(&mut connection, "create table done (n bigserial, type text)").await;
    for event in ["1", "2", "3", "4", "5"] {
        emit(&mut connection, event, "k").await;
    }
}

#[tokio::test]
async fn an_event_that_fails_is_tried_again_in_its_place() {
    let database = database_with_one_lane().await;
    five_events(&database).await;
    let (tries, ended) = (AtomicU32::new(0), Notify::new());
    let handler = async |tx: &mut Tx, event: &Message| {
        note(tx, event).await?;
        if event.r#type == "3" && tries.fetch_add(1, Ordering::Relaxed) < 2 {
            assert!(event.attempts < 2);
            return Err::<_, BoxError>("not yet".into());
        }
        if event.r#type == "5" {
            ended.notify_one();
        }
        Ok(Outcome::Done)
    };
    in_time(subscription(&database).await.run(ended.notified(), handler)).await.unwrap();
    let (done, dead) = outcome(&database).await;
    assert_eq!(done, ["1", "2", "3", "4", "5"]);
    assert!(dead.is_empty(), "{dead:?}");
    // The first two attempts failed: 1 and 2 were committed without it, and it came to its turn again.
    assert!(tries.load(Ordering::Relaxed) >= 3);
}

/// However the handler says it.
#[tokio::test]
async fn a_deadlock_uses_up_no_attempt_of_an_event() {
    let database = database_with_one_lane().await;
    five_events(&database).await;
    let (tries, ended) = (AtomicU32::new(0), Notify::new());
    let handler = async |tx: &mut Tx, event: &Message| {
        note(tx, event).await?;
        if event.r#type == "1" {
            assert_eq!(event.attempts, 0);
            let way = tries.fetch_add(1, Ordering::Relaxed);
            if way < WAYS {
                deadlock(tx, way).await?;
            }
        }
        if event.r#type == "5" {
            ended.notify_one();
        }
        Ok::<_, BoxError>(Outcome::Done)
    };
    in_time(Box::pin(subscription(&database).await.run(ended.notified(), handler))).await.unwrap();
    let (done, dead) = outcome(&database).await;
    assert_eq!(done, ["1", "2", "3", "4", "5"]);
    assert!(dead.is_empty(), "{dead:?}");
    assert_eq!(tries.load(Ordering::Relaxed), WAYS + 1);
}

/// What shows only when the batch is ended: a constraint that is looked at by COMMIT, a failed statement that the handler did not heed.
#[tokio::test]
async fn an_event_whose_commit_fails_is_dead_and_the_rest_goes_on() {
    let database = database_with_one_lane().await;
    five_events(&database).await;
    let mut connection = database.connect().await.unwrap();
    run(
        &mut connection,
        "create function refuse() returns trigger language plpgsql as 'begin raise exception ''too much''; end';
         create constraint trigger refuse after insert on done deferrable initially deferred for each row
         when (new.type = '2') execute function refuse()",
    )
    .await;
    let handler = async |tx: &mut Tx, event: &Message| {
        if event.r#type == "4" {
            drop(sqlx::query("select 1 / 0").execute(&mut **tx).await);
            return Ok::<_, BoxError>(Outcome::Done);
        }
        note(tx, event).await?;
        Ok(Outcome::Done)
    };
    let watching = async {
        loop {
            let (done, dead) = outcome(&database).await;
            if done == ["1", "3", "5"] && dead.len() == 2 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    in_time(Box::pin(subscription(&database).await.run(watching, handler))).await.unwrap();
    let (_, dead) = outcome(&database).await;
    let said = |event: &str, reason: &str| {
        dead.iter().any(|(dead, why, tries)| dead == event && why.contains(reason) && *tries >= 3)
    };
    assert!(said("2", "too much") && said("4", "current transaction is aborted"), "{dead:?}");
}

#[tokio::test]
async fn an_event_that_fails_for_ever_is_dead_and_the_rest_goes_on() {
    let database = database_with_one_lane().await;
    five_events(&database).await;
    let ended = Notify::new();
    let handler = async |tx: &mut Tx, event: &Message| {
        if event.r#type == "2" {
            // What the server refuses aborts the transaction.
            sqlx::query("select 1 / 0").execute(&mut **tx).await?;
        }
        if event.r#type == "4" {
            return Ok::<_, BoxError>(Outcome::Dead("no such product".to_owned()));
        }
        note(tx, event).await?;
        if event.r#type == "5" {
            ended.notify_one();
        }
        Ok(Outcome::Done)
    };
    in_time(subscription(&database).await.run(ended.notified(), handler)).await.unwrap();
    let (done, dead) = outcome(&database).await;
    assert_eq!(done, ["1", "3", "5"]);
    assert_eq!(dead.len(), 2, "{dead:?}");
    assert!(
        dead.iter()
            .any(|(event, reason, tries)| event == "2" && reason.contains("division by zero") && *tries >= 3),
        "{dead:?}"
    );
    assert!(dead.iter().any(|(event, reason, _)| event == "4" && reason == "no such product"), "{dead:?}");
}

/// Of a batch that fails nobody knows which event it was: they come one by one.
#[tokio::test]
async fn one_bad_event_does_not_take_its_batch_with_it() {
    let database = database_with_one_lane().await;
    five_events(&database).await;
    let (sizes, ended) = (Mutex::new(Vec::new()), Notify::new());
    let handler = async |tx: &mut Tx, events: &[Message]| {
        sizes.lock().unwrap().push(events.len());
        for event in events {
            if event.r#type == "3" {
                return Ok::<_, BoxError>(Outcome::Dead("bad".to_owned()));
            }
            note(tx, event).await?;
            if event.r#type == "5" {
                ended.notify_one();
            }
        }
        Ok(Outcome::Done)
    };
    in_time(subscription(&database).await.run_batches(ended.notified(), handler)).await.unwrap();
    let (done, dead) = outcome(&database).await;
    assert_eq!(done, ["1", "2", "4", "5"]);
    assert_eq!(dead, [("3".to_owned(), "bad".to_owned(), 1)]);
    assert_eq!(sizes.lock().unwrap()[0], 5);
}

/// What is being worked on when it is told to stop is finished and committed.
#[tokio::test]
async fn a_stop_waits_for_the_handler() {
    let database = database().await;
    five_events(&database).await;
    let stop = Notify::new();
    let handler = async |tx: &mut Tx, event: &Message| {
        stop.notify_one();
        // Longer than the stop takes to arrive.
        tokio::task::yield_now().await;
        note(tx, event).await?;
        Ok::<_, BoxError>(Outcome::Done)
    };
    in_time(subscription(&database).await.run(stop.notified(), handler)).await.unwrap();
    let (done, _) = outcome(&database).await;
    assert_eq!(done, ["1", "2", "3", "4", "5"], "one key, one batch");
}

/// It is waited for as it is later, and a stop does not wait for it.
#[tokio::test]
async fn a_database_that_is_away_at_the_beginning_is_waited_for() {
    let database = database_with_one_lane().await;
    five_events(&database).await;
    let (proxy, pool) = pool_through_proxy(&database).await;
    proxy.refuse();
    let ended = Notify::new();
    let handler = async |tx: &mut Tx, event: &Message| {
        note(tx, event).await?;
        if event.r#type == "5" {
            ended.notify_one();
        }
        Ok::<_, BoxError>(Outcome::Done)
    };
    let refused_twice = async || {
        let before = proxy.accepted();
        while proxy.accepted() < before + 2 {
            tokio::task::yield_now().await;
        }
    };
    in_time(subscription_of(pool.clone()).run(refused_twice(), handler)).await.unwrap();
    let running = subscription_of(pool).run(ended.notified(), handler);
    let healing = async {
        refused_twice().await;
        proxy.heal();
    };
    in_time(Box::pin(async { tokio::join!(running, healing) })).await.0.unwrap();
    assert_eq!(outcome(&database).await.0, ["1", "2", "3", "4", "5"]);
}

/// Its connection is ended by an administrator in the middle of the effect: done again, once.
#[tokio::test]
async fn a_lost_connection_is_no_failure_of_the_event() {
    let database = database_with_one_lane().await;
    five_events(&database).await;
    let (ended, tries) = (Notify::new(), AtomicU32::new(0));
    let handler = async |tx: &mut Tx, event: &Message| {
        note(tx, event).await?;
        if event.r#type == "2" && tries.fetch_add(1, Ordering::Relaxed) == 0 {
            sqlx::query("select pg_terminate_backend(pg_backend_pid())").execute(&mut **tx).await?;
        }
        assert_eq!(event.attempts, 0);
        if event.r#type == "5" {
            ended.notify_one();
        }
        Ok::<_, BoxError>(Outcome::Done)
    };
    in_time(subscription(&database).await.run(ended.notified(), handler)).await.unwrap();
    let (done, dead) = outcome(&database).await;
    assert_eq!(done, ["1", "2", "3", "4", "5"]);
    assert!(dead.is_empty(), "{dead:?}");
}
