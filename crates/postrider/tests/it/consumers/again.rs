//! A broker with one event that may have been delivered before: what is counted of it, and who keeps it from whom.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use postrider::consume::{Backoff, BoxError, Outcome, Tx};
use postrider::consumer::{Consumer, Delivery, Event, Grave, Link, Message, Opened, Source, Terms, Trouble};
use serde_json::Value;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::{Notify, mpsc, oneshot};

use super::{WRITE, ledger, sums, until};
use crate::consume::wrapping::{WAYS, deadlock};
use crate::jobs::metrics::Figures;
use crate::support::options;

const MAX_ATTEMPTS: u32 = 2;

/// Has one event, which may have been delivered before, until it is acknowledged.
#[derive(Clone, Default)]
struct Again {
    is_settled: Arc<AtomicBool>,
    buried: Arc<AtomicU32>,
}

impl Again {
    fn is_settled(&self) -> bool {
        self.is_settled.load(Ordering::SeqCst)
    }
}

impl Source for Again {
    type Link = Self;

    fn kind(&self) -> &'static str {
        "again"
    }

    async fn open(&self, terms: &Terms) -> Opened<Self> {
        let (send, deliveries) = mpsc::channel(1);
        let body = br#"{"specversion":"1.0","id":"e1","source":"s","type":"order.paid","data":1}"#.to_vec();
        let content_type = Some("application/cloudevents+json".to_owned());
        let message = Message { place: "orders".to_owned(), content_type, body, ..Message::default() };
        let room = Arc::clone(&terms.room).acquire_owned().await.map_err(Trouble::away)?;
        let delivery = Delivery { message, receipt: (), is_repeated: true, room };
        send.send(Ok(delivery)).await.map_err(|_| Trouble::away("closed"))?;
        // It stays open for as long as somebody listens.
        tokio::spawn(async move { send.closed().await });
        Ok((self.clone(), deliveries))
    }
}

impl Link for Again {
    type Receipt = ();

    async fn acknowledge(&self, (): &()) -> Result<(), Trouble> {
        self.is_settled.store(true, Ordering::SeqCst);
        Ok(())
    }

    async fn bury(&self, _: &Message, _: &Grave<'_>) -> Result<(), Trouble> {
        self.buried.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    async fn give_back(&self, _: &[()]) -> Result<(), Trouble> {
        Ok(())
    }
}

/// What has become of messages: done, duplicate, failed, dead.
fn ends(figures: &Figures, consumer: &str) -> [u64; 4] {
    ["done", "duplicate", "failed", "dead"].map(|outcome| {
        let labels = format!("consumer={consumer},broker=again,outcome={outcome}");
        figures.count(&format!("postrider_consumer_messages_total{{{labels}}}"))
    })
}

async fn write(tx: &mut Tx, event: &Event<Value>) -> Result<(), BoxError> {
    sqlx::query(WRITE).bind(&event.id).bind(&event.key).bind(1_i64).execute(&mut **tx).await?;
    Ok(())
}

/// An event that came again is counted before each try. What comes to nothing by a deadlock was none, however the handler says it.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_fails_uses_up_no_attempt_of_an_event_that_came_again() {
    let (_database, pool) = ledger().await;
    let broker = Again::default();
    let (stop, stopped) = oneshot::channel::<()>();
    let short = Duration::from_millis(1);
    let tries = AtomicU32::new(0);
    let figures = Figures::default();
    let consumer = || Consumer::new(pool.clone(), "excused", broker.clone());
    let running = metrics::with_local_recorder(&figures, consumer)
        .retry(Backoff { first: short, factor: 1.0, max: short, max_attempts: MAX_ATTEMPTS })
        .run(async { drop(stopped.await) }, async |tx: &mut Tx, event: Event<Value>| {
            match tries.fetch_add(1, Ordering::SeqCst) {
                // Its own fault once, so that the count goes on from there.
                0 => return Err::<_, BoxError>("not yet".into()),
                way @ 1..=WAYS => deadlock(tx, way).await?,
                _ => {}
            }
            write(tx, &event).await?;
            Ok(Outcome::Done)
        });
    let watching = async {
        until("it is settled", async || broker.is_settled()).await;
        drop(stop);
    };
    let (ended, ()) = tokio::join!(running, watching);
    ended.unwrap();
    assert_eq!((sums(&pool).await.0, broker.buried.load(Ordering::SeqCst)), (1, 0), "lines, dead letters");
    let left: i64 =
        sqlx::query_scalar("select count(*) from postrider.attempts").fetch_one(&pool).await.unwrap();
    assert_eq!(left, 0);
    assert_eq!(ends(&figures, "excused"), [1, 0, 1, 0]);
}

/// Another process has the same message by now and waits for the first at the inbox: the server ends that one, which commits nothing any more.
#[tokio::test(flavor = "multi_thread")]
async fn fault_106_a_frozen_consumer_keeps_no_event_from_others_and_cannot_commit() {
    let (_database, pool) = ledger().await;
    let (frozen, heir) = (Again::default(), Again::default());
    let (stop, stopped) = oneshot::channel::<()>();
    let (begun, awake) = (Notify::new(), Notify::new());
    let tries = AtomicU32::new(0);
    let figures = Figures::default();
    let consumer = || Consumer::new(pool.clone(), "frozen", frozen.clone());
    let consumer = metrics::with_local_recorder(&figures, consumer);
    let running = consumer.lease(Duration::from_secs(1)).run(
        async { drop(stopped.await) },
        async |tx: &mut Tx, event: Event<Value>| {
            write(tx, &event).await?;
            if tries.fetch_add(1, Ordering::SeqCst) == 0 {
                begun.notify_one();
                awake.notified().await;
            }
            Ok::<_, BoxError>(Outcome::Done)
        },
    );
    let watching = async {
        begun.notified().await;
        let had = until("another has the event", async || heir.is_settled());
        let other = Consumer::new(pool.clone(), "frozen", heir.clone());
        let ended = other.run(had, async |tx: &mut Tx, event: Event<Value>| {
            write(tx, &event).await?;
            Ok::<_, BoxError>(Outcome::Done)
        });
        ended.await.unwrap();
        awake.notify_one();
        until("the first one has heard of it", async || frozen.is_settled()).await;
        drop(stop);
    };
    let (ended, ()) = tokio::join!(running, watching);
    ended.unwrap();
    assert_eq!((sums(&pool).await.0, tries.load(Ordering::SeqCst)), (1, 1), "lines, tries of the frozen one");
    assert_eq!(ends(&figures, "frozen"), [0, 1, 0, 0]);
}

/// A shorter time of the server's own stands, a longer one does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_may_be_silent_for_its_lease_at_most() {
    for (own, kept) in [("0", "1min"), ("1h", "1min"), ("5s", "5s")] {
        let (database, pool) = ledger().await;
        let own_time = options(&database).options([("idle_in_transaction_session_timeout", own)]);
        let broker = Again::default();
        let settled = until("it is settled", async || broker.is_settled());
        Consumer::new(PgPoolOptions::new().connect_lazy_with(own_time), "silent", broker.clone())
            .lease(Duration::from_mins(1))
            .run(settled, async |tx: &mut Tx, _: Event<Value>| {
                let note = "insert into ledger (event_id, amount)
                    select current_setting('idle_in_transaction_session_timeout'), 1";
                sqlx::query(note).execute(&mut **tx).await?;
                Ok::<_, BoxError>(Outcome::Done)
            })
            .await
            .unwrap();
        let told: String = sqlx::query_scalar("select event_id from ledger").fetch_one(&pool).await.unwrap();
        assert_eq!(told, kept, "with {own} of its own");
    }
}
