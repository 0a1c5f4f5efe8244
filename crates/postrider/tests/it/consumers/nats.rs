//! Behind NATS.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::{self, stream};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use postrider::consumer::{Grave, Link as _, Message, Source as _};
use postrider::consumers::nats::Nats as Stream;
use postrider_testkit::{Broker, Nats};

use super::far::{Dead, Far, Letter, terms, unique};
use super::{contract, poison, storm};
use crate::support::PATIENCE;

/// `URL STREAM`
pub fn source(url: &str) -> Stream {
    let (url, stream) = url.split_once(' ').unwrap();
    Stream::new(url, stream).ack_wait(Duration::from_millis(600))
}

pub struct Tested {
    url: String,
    stream: String,
    context: jetstream::Context,
    _server: Broker<Nats>,
}

pub async fn tested() -> Tested {
    let server = Broker::shared(Nats::new()).await.unwrap();
    let context = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let name = unique("events");
    let config = stream::Config {
        name: name.clone(),
        subjects: vec![format!("{name}.>")],
        ..stream::Config::default()
    };
    context.create_stream(config).await.unwrap();
    Tested { url: server.url(), stream: name, context, _server: server }
}

impl Far for Tested {
    type Source = Stream;

    fn kind(&self) -> &'static str {
        "nats"
    }

    fn url(&self) -> String {
        format!("{} {}", self.url, self.stream)
    }

    fn source(&self) -> Stream {
        source(&self.url())
    }

    fn prefix(&self) -> &'static str {
        "ce-"
    }

    async fn publish(&self, letters: &[Letter]) {
        for letters in letters.chunks(500) {
            let mut confirmations = Vec::new();
            for letter in letters {
                let mut headers = HeaderMap::new();
                headers.insert("Content-Type", letter.content_type);
                for (name, value) in &letter.headers {
                    headers.insert(name.as_str(), value.as_str());
                }
                let subject = format!("{}.payment", self.stream);
                let body = letter.body.clone().into();
                confirmations.push(self.context.publish_with_headers(subject, headers, body).await.unwrap());
            }
            for confirmed in join_all(confirmations.into_iter().map(IntoFuture::into_future)).await {
                confirmed.unwrap();
            }
        }
    }

    async fn dead_letters(&self, consumer: &str) -> Vec<Dead> {
        let stream = self.context.get_stream(format!("{consumer}-dead")).await.unwrap();
        let count = stream.cached_info().state.messages;
        let config = pull::Config { ack_policy: AckPolicy::None, ..pull::Config::default() };
        let reading = stream.create_consumer(config).await.unwrap();
        let mut found = Vec::new();
        while u64::try_from(found.len()).unwrap() < count {
            let mut messages =
                reading.fetch().max_messages(100).expires(Duration::from_secs(5)).messages().await.unwrap();
            while let Some(message) = messages.next().await {
                let message = message.unwrap();
                let header = |name: &str| message.headers.as_ref().unwrap().get(name).unwrap().to_string();
                let (reason, consumer) = (header("postrider-dead-reason"), header("postrider-dead-consumer"));
                found.push(Dead { reason, consumer, body: message.payload.to_vec() });
            }
        }
        found
    }

    async fn left(&self, consumer: &str) -> u64 {
        let stream = self.context.get_stream(&self.stream).await.unwrap();
        let info = stream.consumer_info(consumer).await.unwrap();
        info.num_pending + info.num_ack_pending as u64
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_105_106_nats_consumers_that_die_anywhere_book_every_event_once() {
    storm::kills(&tested().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_inbox_a_ledger_behind_nats_is_wrong() {
    storm::without_inbox(&tested().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_107_poison_behind_nats_is_given_up_and_its_neighbours_are_not() {
    poison::poison(&tested().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_nats_cloudevents_in_headers_are_understood() {
    contract::binary(&tested().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_nats_a_key_is_never_overtaken() {
    contract::order_per_key(&tested().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_nats_a_connection_that_breaks_costs_nothing_but_time() {
    contract::reconnects(&tested().await, source).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_nats_what_was_not_begun_is_given_back_at_the_end() {
    contract::drained(&tested().await).await;
    contract::deadline(&tested().await).await;
}

/// Who watches the server hears of a message that is given up.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_behind_nats_is_announced_by_the_server() {
    let tested = tested().await;
    let consumer = unique("announced");
    super::far::prepare(&tested, &consumer).await;
    let client = async_nats::connect(&tested.url).await.unwrap();
    let subject = format!("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{}.{consumer}", tested.stream);
    let mut advisories = client.subscribe(subject).await.unwrap();
    client.flush().await.unwrap();
    contract::one_dead_letter(&tested, &consumer).await;
    let advisory = tokio::time::timeout(PATIENCE, advisories.next()).await.expect("no word of it").unwrap();
    let said: serde_json::Value = serde_json::from_slice(&advisory.payload).unwrap();
    assert_eq!(said["consumer"], consumer);
}

/// Somebody has mended it and moved the letter back, and it was not mended. The server takes a second message of one id for the first.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_behind_nats_that_is_given_up_again_is_a_dead_letter_again() {
    let tested = tested().await;
    let consumer = unique("hopeless");
    let (link, _deliveries) = tested.source().open(&terms(&consumer)).await.unwrap();
    let message = Message { body: b"{}".to_vec(), ..Message::default() };
    let grave = |reason| Grave { consumer: &consumer, event_id: Some("event-1"), reason, attempts: 1 };
    link.bury(&message, &grave("broken")).await.unwrap();
    let letters = tested.context.get_stream(format!("{consumer}-dead")).await.unwrap();
    letters.purge().await.unwrap();
    link.bury(&message, &grave("still broken")).await.unwrap();
    let found = tested.dead_letters(&consumer).await;
    assert_eq!(found.iter().map(|dead| dead.reason.as_str()).collect::<Vec<_>>(), ["still broken"]);
    link.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_nats_that_keeps_messages_for_longer_than_the_inbox_remembers_is_refused() {
    let tested = tested().await;
    let keeps = Duration::from_hours(24 * 20);
    let stream = tested.context.get_stream(&tested.stream).await.unwrap();
    let config = stream::Config { max_age: keeps, ..stream.cached_info().config.clone() };
    tested.context.update_stream(config).await.unwrap();
    contract::forgetful(&tested, || tested.source(), keeps).await;
}
