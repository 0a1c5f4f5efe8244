//! An idle subscription sleeps, and a commit wakes it.

use std::time::{Duration, Instant};

use postrider::consume::{BoxError, Message, Outcome, Subscription, Tx};
use postrider::log::Hint;
use sqlx::PgConnection;
use tokio::sync::{mpsc, oneshot};

use super::{consumer_role, drop_role};
use crate::support::{PATIENCE, database, emit};

/// The last ticket that was drawn.
async fn tickets(connection: &mut PgConnection) -> i64 {
    sqlx::query_scalar("select coalesce(pg_sequence_last_value('postrider.armed'), 0)")
        .fetch_one(connection)
        .await
        .unwrap()
}

/// A new ticket is drawn: somebody is about to sleep.
async fn until_asleep(connection: &mut PgConnection, before: i64) -> i64 {
    let start = Instant::now();
    loop {
        let now = tickets(connection).await;
        if now > before {
            return now;
        }
        assert!(start.elapsed() < PATIENCE, "nobody sleeps");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// With no more rights than a consumer has. Its timer would wake it after an hour.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_that_sleeps_is_woken_by_a_commit() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let (role, _) = consumer_role(&database).await;
    let pool = sqlx::PgPool::connect(&database.url_as(&role)).await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let (handled, mut came) = mpsc::unbounded_channel();
    let running = Subscription::new(pool, "woken")
        .workers(3)
        .idle(Duration::from_millis(1), Duration::from_hours(1))
        .run(async { drop(stopped.await) }, async |_: &mut Tx, event: &Message| {
            handled.send((event.r#type.clone(), Instant::now()))?;
            Ok::<_, BoxError>(Outcome::Done)
        });
    let watching = async {
        let mut delays = Vec::new();
        let mut drawn = 0;
        for number in 1..=20 {
            drawn = until_asleep(&mut connection, drawn).await;
            let begun = Instant::now();
            emit(&mut connection, &number.to_string(), "k").await;
            let (event, at) =
                tokio::time::timeout(PATIENCE, came.recv()).await.expect("it sleeps on").unwrap();
            assert_eq!(event, number.to_string());
            delays.push(at - begun);
        }
        stop.send(()).unwrap();
        delays.sort_unstable();
        println!("woken after {:.1?}, at most {:.1?}", delays[10], delays[19]);
    };
    let (ended, ()) = tokio::join!(running, watching);
    ended.unwrap();
    drop_role(&database, &role).await;
}

/// Where nobody wakes it, it looks for itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_without_a_bell_looks_for_itself() {
    let database = database().await;
    let mut connection = database.connect().await.unwrap();
    let pool = database.pool(2).await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let mut stop = Some(stop);
    let seen = std::sync::Mutex::new(&mut stop);
    let running = Subscription::new(pool, "polling")
        .hint(Hint::Off)
        .idle(Duration::from_millis(1), Duration::from_hours(1))
        .run(async { drop(stopped.await) }, async |_: &mut Tx, _: &Message| {
            drop(seen.lock().unwrap().take());
            Ok::<_, BoxError>(Outcome::Done)
        });
    let emitting = async {
        let known = "select count(*) from postrider.consumers";
        while sqlx::query_scalar::<_, i64>(known).fetch_one(&mut connection).await.unwrap() == 0 {
            tokio::task::yield_now().await;
        }
        emit(&mut connection, "1", "k").await;
    };
    let both = async { tokio::join!(running, emitting) };
    let (ended, ()) = tokio::time::timeout(PATIENCE, both).await.expect("it never looks");
    ended.unwrap();
    assert_eq!(tickets(&mut connection).await, 0, "nobody was asked to ring");
}

async fn handle(tx: &mut Tx, event: &Message) -> Result<Outcome, BoxError> {
    sqlx::query("select $1").bind(event.id).execute(&mut **tx).await?;
    Ok(Outcome::Done)
}

/// What a service does with it: a task of its own.
#[tokio::test]
async fn a_subscription_can_be_spawned() {
    let database = database().await;
    let pool = database.pool(2).await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(Subscription::new(pool, "spawned").run(async { drop(stopped.await) }, handle));
    stop.send(()).unwrap();
    tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap().unwrap();
}
