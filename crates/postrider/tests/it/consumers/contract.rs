//! What holds behind every broker: order per key, pauses that keep it, an end that leaves nothing half done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use postrider::consume::{Backoff, BoxError, Outcome, Tx};
use postrider::consumer::{Consumer, Event};
use postrider::inbox;
use postrider_testkit::Proxy;
use sqlx::PgPool;
use tokio::sync::{Notify, oneshot};

use super::far::{Far, Letter, make, prepare, unique};
use super::{Payment, WRITE, expected, ledger, payments, sums, until};
use crate::support::PATIENCE;

async fn write(tx: &mut Tx, event: &Event<Payment>) -> Result<Outcome, BoxError> {
    let write = sqlx::query(WRITE).bind(&event.id).bind(&event.key).bind(event.payload.amount);
    write.execute(&mut **tx).await?;
    Ok(Outcome::Done)
}

async fn stopped(stop: oneshot::Receiver<()>) {
    let _ = stop.await;
}

/// One process, many at work: those of a key in order, also past one that is tried again.
pub async fn order_per_key<F: Far>(far: &F) {
    let consumer = unique("ordered");
    let (_database, pool) = ledger().await;
    prepare(far, &consumer).await;
    let count = 300;
    far.publish(&payments(count, 20)).await;
    let (stop, stopping) = oneshot::channel();
    let short = Duration::from_millis(30);
    let at_work = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let running = Consumer::new(pool.clone(), &consumer, far.source())
        .retry(Backoff { first: short, factor: 1.0, max: short, max_attempts: 5 })
        .concurrency(8)
        .run(stopped(stopping), async |tx: &mut Tx, event: Event<Payment>| {
            most.fetch_max(at_work.fetch_add(1, Ordering::AcqRel) + 1, Ordering::AcqRel);
            let written = write(tx, &event).await;
            tokio::task::yield_now().await;
            at_work.fetch_sub(1, Ordering::AcqRel);
            // Everything of it is taken back, and the next of its key has to wait.
            if event.payload.amount % 50 == 0 && event.attempt < 3 {
                return Ok(Outcome::Retry(short));
            }
            written
        });
    let watching = async {
        until("all are written", async || sums(&pool).await.0 >= 300).await;
        until("nothing is left", async || far.left(&consumer).await == 0).await;
        stop.send(()).unwrap();
    };
    let (ended, ()) = tokio::join!(running, watching);
    ended.unwrap();
    assert_eq!(sums(&pool).await, expected(count));
    assert!(most.load(Ordering::Acquire) > 1 || !far.tells_repetitions(), "never two side by side");
    let unordered: i64 = sqlx::query_scalar(
        "select count(*) from ledger a join ledger b on a.key = b.key and a.place < b.place and a.amount > b.amount",
    )
    .fetch_one(&pool)
    .await
    .unwrap();
    assert_eq!(unordered, 0, "some key was overtaken");
}

/// What was begun is finished, what was not is somebody else's, and comes in time.
pub async fn drained<F: Far>(far: &F) {
    let consumer = unique("drained");
    let (_database, pool) = ledger().await;
    prepare(far, &consumer).await;
    let count = 40;
    far.publish(&payments(count, 40)).await;
    let (stop, stopping) = oneshot::channel();
    let (begun, go_on) = (Notify::new(), Notify::new());
    let is_first = AtomicBool::new(true);
    let running = Consumer::new(pool.clone(), &consumer, far.source()).concurrency(1).run(
        stopped(stopping),
        async |tx: &mut Tx, event: Event<Payment>| {
            if is_first.swap(false, Ordering::AcqRel) {
                begun.notify_one();
                go_on.notified().await;
            }
            write(tx, &event).await
        },
    );
    let ending = async {
        begun.notified().await;
        stop.send(()).unwrap();
        // It is stopped and waits for the one that was begun.
        tokio::task::yield_now().await;
        go_on.notify_one();
    };
    let (ended, ()) = tokio::join!(running, ending);
    ended.unwrap();
    assert_eq!(sums(&pool).await.0, 1, "the one that was begun, and no other");
    work_off(far, &pool, &consumer, count).await;
    assert_eq!(sums(&pool).await, expected(count));
}

/// The connection ends twice in the middle of the work, by a close and by a reset: connected again, and every effect once.
pub async fn reconnects<F: Far>(far: &F, source: impl Fn(&str) -> F::Source) {
    let consumer = unique("cut");
    let (_database, pool) = ledger().await;
    prepare(far, &consumer).await;
    let url = far.url();
    let (before, rest) = url.split_once("127.0.0.1:").expect("a server of this machine");
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let proxy = Proxy::start(format!("127.0.0.1:{}", &rest[..digits])).await.unwrap();
    let through = format!("{before}127.0.0.1:{}{}", proxy.port(), &rest[digits..]);
    let count = 200;
    far.publish(&payments(count, 20)).await;
    let (stop, stopping) = oneshot::channel();
    let (first, second) = (AtomicBool::new(true), AtomicBool::new(true));
    let running = Consumer::new(pool.clone(), &consumer, source(&through)).run(
        stopped(stopping),
        async |tx: &mut Tx, event: Event<Payment>| {
            match event.payload.amount {
                50 if first.swap(false, Ordering::AcqRel) => proxy.cut(),
                120 if second.swap(false, Ordering::AcqRel) => {
                    until("it is back", async || proxy.accepted() > 1).await;
                    proxy.reset();
                }
                _ => {}
            }
            write(tx, &event).await
        },
    );
    let watching = async {
        until("all are written", async || sums(&pool).await.0 >= expected(count).0).await;
        until("nothing is left", async || far.left(&consumer).await == 0).await;
        stop.send(()).unwrap();
    };
    let (ended, ()) = tokio::join!(running, watching);
    ended.unwrap();
    assert_eq!(sums(&pool).await, expected(count));
    assert!(proxy.accepted() > 2, "it was never cut");
}

/// A handler that does not end in time is rolled back.
pub async fn deadline<F: Far>(far: &F) {
    let consumer = unique("late");
    let (_database, pool) = ledger().await;
    prepare(far, &consumer).await;
    far.publish(&[Letter::payment(1, "a")]).await;
    let (stop, stopping) = oneshot::channel();
    let begun = Notify::new();
    let running = Consumer::new(pool.clone(), &consumer, far.source()).drain(Duration::from_millis(100)).run(
        stopped(stopping),
        async |tx: &mut Tx, event: Event<Payment>| {
            let written = write(tx, &event).await;
            begun.notify_one();
            tokio::time::sleep(PATIENCE).await;
            written
        },
    );
    let ending = async {
        begun.notified().await;
        stop.send(()).unwrap();
    };
    let (ended, ()) = tokio::join!(running, ending);
    ended.unwrap();
    assert_eq!(sums(&pool).await.0, 0);
    work_off(far, &pool, &consumer, 1).await;
    assert_eq!(sums(&pool).await, expected(1));
}

/// All of it, by a consumer that is stopped then.
pub async fn work_off<F: Far>(far: &F, pool: &PgPool, consumer: &str, count: usize) {
    let (stop, stopping) = oneshot::channel();
    let running = Consumer::new(pool.clone(), consumer, far.source())
        .run(stopped(stopping), async |tx: &mut Tx, event: Event<Payment>| write(tx, &event).await);
    let watching = async {
        until("all are written", async || sums(pool).await.0 >= expected(count).0).await;
        until("nothing is left", async || far.left(consumer).await == 0).await;
        stop.send(()).unwrap();
    };
    let (ended, ()) = tokio::join!(running, watching);
    ended.unwrap();
}

/// Events whose attributes are headers are the same events: one that comes in both ways has one effect.
pub async fn binary<F: Far>(far: &F) {
    let consumer = unique("binary");
    let (_database, pool) = ledger().await;
    prepare(far, &consumer).await;
    let count = 20;
    let letters =
        (1..=count).map(|number| Letter::binary(number, &format!("key-{}", number % 3), far.prefix()));
    far.publish(&letters.chain(payments(count, 3)).collect::<Vec<_>>()).await;
    work_off(far, &pool, &consumer, count).await;
    assert_eq!(sums(&pool).await, expected(count));
    let wrong: i64 = sqlx::query_scalar(
        "select count(*) from ledger where event_id <> 'event-' || amount or key is distinct from 'key-' || amount % 3",
    )
    .fetch_one(&pool)
    .await
    .unwrap();
    assert_eq!(wrong, 0);
    assert_eq!(far.dead_letters(&consumer).await.len(), 0);
}

/// A message that is no event is one dead letter.
pub async fn one_dead_letter<F: Far>(far: &F, consumer: &str) {
    let (_database, pool) = ledger().await;
    far.publish(&[Letter { body: b"no event".to_vec(), ..Letter::payment(1, "a") }, Letter::payment(2, "a")])
        .await;
    let (stop, stopping) = oneshot::channel();
    let running = Consumer::new(pool.clone(), consumer, far.source())
        .run(stopped(stopping), async |tx: &mut Tx, event: Event<Payment>| write(tx, &event).await);
    let watching = async {
        until("the other is written", async || sums(&pool).await.0 == 1).await;
        until("nothing is left", async || far.left(consumer).await == 0).await;
        stop.send(()).unwrap();
    };
    let (ended, ()) = tokio::join!(running, watching);
    ended.unwrap();
    assert_eq!(far.left(consumer).await, 0);
    assert_eq!(far.dead_letters(consumer).await.len(), 1);
}

/// One that comes again when the inbox has forgotten it would be booked twice: who may get such a one does not run.
pub async fn forgetful<F: Far>(far: &F, source: impl Fn() -> F::Source, keeps: Duration) {
    let consumer = unique("forgetful");
    let (_database, pool) = ledger().await;
    make(&source(), &consumer).await;
    far.publish(&[Letter::payment(1, "a")]).await;
    let run = async || {
        let done = until("it is booked", async || sums(&pool).await == expected(1));
        Consumer::new(pool.clone(), &consumer, source())
            .run(done, async |tx: &mut Tx, event: Event<Payment>| write(tx, &event).await)
            .await
    };
    let remember = async |time: Duration| {
        inbox::keep(&mut pool.acquire().await.unwrap(), time).await.unwrap();
    };
    remember(keeps.saturating_sub(Duration::from_secs(1))).await;
    let refused = run().await.unwrap_err();
    assert!(refused.to_string().contains("postrider inbox keep"), "{refused}");
    remember(keeps).await;
    run().await.unwrap();
}
