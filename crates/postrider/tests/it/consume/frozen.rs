//! A client that stands still: while it is sent rows, or in the middle of its work.

use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use postrider::consume::{BoxError, Message, Outcome, Subscription, Tx};
use postrider::log::Start;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

use super::{fetch, finish, subscribe};
use crate::support::{PATIENCE, database, emit, run};

/// No timeout of the server's counts while it writes to a client, but that of the socket.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_freezes_while_it_is_sent_rows_loses_its_lane() {
    let database = database().await;
    let (mut connection, mut frozen) = (database.connect().await.unwrap(), database.connect().await.unwrap());
    subscribe(&mut connection, "c").await;
    // More than all buffers in between take, a socket's may have 36 MB; and one batch, which goes by the compressed size.
    run(
        &mut connection,
        "select postrider.emit('large', to_json(repeat('x', 1000000)), key => 'one') from generate_series(1, 60)",
    )
    .await;
    let mut rows =
        pin!(sqlx::query("select * from postrider.next_batch('c', 100, '5 seconds')").fetch(&mut frozen));
    assert!(rows.next().await.unwrap().is_ok());
    let is_free = "select exists (select from postrider.next_batch('c', 1))";
    assert!(!sqlx::query_scalar::<_, bool>(is_free).fetch_one(&mut connection).await.unwrap());
    let freed = async {
        while !sqlx::query_scalar::<_, bool>(is_free).fetch_one(&mut connection).await.unwrap() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, freed).await.expect("the lane is never free");
}

/// What is not inside `block_on` of it stands still.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

static BEGUN: Notify = Notify::const_new();
static AWAKE: Notify = Notify::const_new();
static STOP: Notify = Notify::const_new();

async fn book_and_freeze(tx: &mut Tx, _: &Message) -> Result<Outcome, BoxError> {
    sqlx::query("insert into effects values ('frozen')").execute(&mut **tx).await?;
    BEGUN.notify_one();
    AWAKE.notified().await;
    Ok(Outcome::Done)
}

/// As a process that is stopped by SIGSTOP, or its virtual machine: others have its event after the lease, and what it brings afterwards is refused.
#[test]
fn a_subscription_that_stood_still_past_its_lease_commits_nothing_any_more() {
    let (world, frozen) = (runtime(), runtime());
    let database = world.block_on(database());
    let mut connection = world.block_on(async { database.connect().await.unwrap() });
    world.block_on(async {
        run(&mut connection, "create table effects (who text)").await;
        emit(&mut connection, "event", "k").await;
    });
    let pool = frozen.block_on(database.pool(2)).unwrap();
    let subscription = Subscription::new(pool, "c").start(Start::Earliest).lease(Duration::from_secs(1));
    let stands_still = frozen.spawn(subscription.run(STOP.notified(), book_and_freeze));
    frozen.block_on(BEGUN.notified());
    world.block_on(async {
        let start = Instant::now();
        loop {
            run(&mut connection, "begin").await;
            if let Some(batch) = fetch(&mut connection, "c", 10).await {
                run(&mut connection, "insert into effects values ('heir')").await;
                finish(&mut connection, "c", &batch).await;
                run(&mut connection, "commit").await;
                break;
            }
            run(&mut connection, "commit").await;
            assert!(start.elapsed() < PATIENCE, "the lane of a frozen worker does not come back");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    frozen.block_on(async {
        AWAKE.notify_one();
        STOP.notify_one();
        tokio::time::timeout(PATIENCE, stands_still).await.expect("it does not end").unwrap().unwrap();
    });
    let effects = world.block_on(async {
        sqlx::query_scalar::<_, String>("select who from effects").fetch_all(&mut connection).await.unwrap()
    });
    assert_eq!(effects, ["heir"]);
}
