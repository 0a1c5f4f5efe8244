//! A broker that takes no dead letters: the message is neither lost nor tried for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use postrider::consume::{BoxError, Outcome, Tx};
use postrider::consumer::{Consumer, Delivery, Event, Grave, Link, Message, Opened, Source, Terms, Trouble};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use super::{ledger, until};
use crate::jobs::metrics::Figures;

/// Has two messages, one that is no event and one that the handler calls dead, until they are acknowledged.
#[derive(Clone, Default)]
struct Refusing {
    offered: Arc<AtomicUsize>,
    settled: Arc<AtomicUsize>,
}

fn messages() -> [Message; 2] {
    let event =
        br#"{"specversion":"1.0","id":"e1","source":"s","type":"order.paid","data":{"n":1}}"#.to_vec();
    [b"torn".to_vec(), event].map(|body| Message {
        place: "orders".to_owned(),
        content_type: Some("application/cloudevents+json".to_owned()),
        body,
        ..Message::default()
    })
}

impl Source for Refusing {
    type Link = Self;

    fn kind(&self) -> &'static str {
        "refusing"
    }

    async fn open(&self, terms: &Terms) -> Opened<Self> {
        let (send, deliveries) = mpsc::channel(8);
        let settled = self.settled.load(Ordering::SeqCst);
        for (receipt, message) in messages().into_iter().enumerate().filter(|(n, _)| settled & (1 << n) == 0)
        {
            let room = Arc::clone(&terms.room).acquire_owned().await.map_err(Trouble::away)?;
            let delivery = Delivery { message, receipt, is_repeated: true, room };
            send.send(Ok(delivery)).await.map_err(|_| Trouble::away("closed"))?;
        }
        // It stays open for as long as somebody listens.
        tokio::spawn(async move { send.closed().await });
        Ok((self.clone(), deliveries))
    }
}

impl Link for Refusing {
    type Receipt = usize;

    async fn acknowledge(&self, receipt: &usize) -> Result<(), Trouble> {
        self.settled.fetch_or(1 << receipt, Ordering::SeqCst);
        Ok(())
    }

    async fn bury(&self, _: &Message, _: &Grave<'_>) -> Result<(), Trouble> {
        self.offered.fetch_add(1, Ordering::SeqCst);
        Err(Trouble::away("too large for this broker"))
    }

    async fn give_back(&self, _: &[usize]) -> Result<(), Trouble> {
        Ok(())
    }
}

async fn dead(_: &mut Tx, _: Event<Value>) -> Result<Outcome, BoxError> {
    Ok(Outcome::Dead("not for us".to_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_that_the_broker_refuses_is_kept_in_the_database() {
    let (_database, pool) = ledger().await;
    let broker = Refusing::default();
    let (stop, stopped) = oneshot::channel::<()>();
    let figures = Figures::default();
    let consumer = || Consumer::new(pool.clone(), "refused", broker.clone());
    let consumer = metrics::with_local_recorder(&figures, consumer);
    let running = tokio::spawn(consumer.run(async { drop(stopped.await) }, dead));
    until("both are settled", async || broker.settled.load(Ordering::SeqCst) == 3).await;
    drop(stop);
    running.await.unwrap().unwrap();
    let mut kept: Vec<(Option<String>, String, String, Vec<u8>)> =
        sqlx::query_as("select event_id, reason, refused, body from postrider.dead_messages order by number")
            .fetch_all(&pool)
            .await
            .unwrap();
    kept.sort_by(|a, b| a.0.cmp(&b.0));
    let [torn, event] = messages().map(|message| message.body);
    assert_eq!((kept.len(), &kept[0].3, &kept[1].3), (2, &torn, &event));
    assert!(kept[0].1.contains("no JSON") && kept[1].1 == "not for us", "{kept:?}");
    assert!(kept.iter().all(|letter| letter.2.contains("too large")), "{kept:?}");
    let offered = broker.offered.load(Ordering::SeqCst);
    assert!((6..=12).contains(&offered), "offered {offered} times");
    let count = |name: &str, more: &str| {
        figures.count(&format!("postrider_consumer_{name}{{consumer=refused,broker=refusing{more}}}"))
    };
    assert_eq!(count("refused_letters_total", ""), offered as u64);
    assert_eq!((count("kept_letters_total", ""), count("messages_total", ",outcome=dead")), (2, 2));
    assert!(count("reconnects_total", "") >= 4);
    assert_eq!((count("connected", ""), count("in_hand", "")), (0, 0), "it has ended");
}
