//! Behind RabbitMQ.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lapin::options::{
    BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeBindOptions,
    ExchangeDeclareOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use postrider::consume::{BoxError, Outcome, Tx};
use postrider::consumer::{Consumer, Event, Link as _, Source as _, Terms};
use postrider::consumers::rabbitmq::RabbitMq as Exchange;
use postrider::inbox;
use postrider_testkit::{Authority, Broker, RabbitMq};
use tokio::sync::{Semaphore, oneshot};

use super::far::{Dead, Far, Letter, make, unique};
use super::{Payment, contract, expected, ledger, poison, storm, sums, until};
use crate::support::PATIENCE;

/// `URL EXCHANGE`
pub fn source(url: &str) -> Exchange {
    let (url, exchange) = url.split_once(' ').unwrap();
    Exchange::new(url, exchange)
}

pub struct Tested {
    url: String,
    exchange: String,
    connection: Connection,
    pub channel: Channel,
    _server: Broker<RabbitMq>,
}

pub async fn tested() -> Tested {
    let server = Broker::shared(RabbitMq::new().with_management()).await.unwrap();
    let connection = Connection::connect(&server.url(), ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let exchange = unique("events");
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let name = exchange.as_str().into();
    channel.exchange_declare(name, ExchangeKind::Fanout, durable, FieldTable::default()).await.unwrap();
    Tested { url: server.url(), exchange, connection, channel, _server: server }
}

impl Far for Tested {
    type Source = Exchange;

    fn kind(&self) -> &'static str {
        "rabbitmq"
    }

    fn url(&self) -> String {
        format!("{} {}", self.url, self.exchange)
    }

    fn source(&self) -> Exchange {
        source(&self.url())
    }

    fn prefix(&self) -> &'static str {
        "cloudEvents_"
    }

    async fn publish(&self, letters: &[Letter]) {
        for letters in letters.chunks(500) {
            let mut confirmations = Vec::new();
            for letter in letters {
                let mut headers = FieldTable::default();
                for (name, value) in &letter.headers {
                    headers.insert(name.as_str().into(), AMQPValue::LongString(value.as_str().into()));
                }
                let properties = BasicProperties::default()
                    .with_content_type(letter.content_type.into())
                    .with_headers(headers)
                    .with_delivery_mode(2);
                let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
                let name = self.exchange.as_str().into();
                let publishing =
                    self.channel.basic_publish(name, "".into(), options, &letter.body, properties);
                confirmations.push(publishing.await.unwrap());
            }
            for confirmed in join_all(confirmations).await {
                assert!(matches!(confirmed.unwrap(), lapin::Confirmation::Ack(None)));
            }
        }
    }

    async fn dead_letters(&self, consumer: &str) -> Vec<Dead> {
        let channel = self.connection.create_channel().await.unwrap();
        let mut found = Vec::new();
        let queue = format!("{consumer}.dead");
        while let Some(got) =
            channel.basic_get(queue.as_str().into(), BasicGetOptions::default()).await.unwrap()
        {
            let headers = got.delivery.properties.headers().as_ref().unwrap().inner();
            let header = |name: &str| match headers.get(name) {
                Some(AMQPValue::LongString(text)) => text.to_string(),
                other => panic!("{name}: {other:?}"),
            };
            let (reason, consumer) = (header("postrider-dead-reason"), header("postrider-dead-consumer"));
            found.push(Dead { reason, consumer, body: got.delivery.data.clone() });
        }
        // What was got and not acknowledged goes back.
        channel.close(200, "OK".into()).await.unwrap();
        found
    }

    /// Without what is in hand: that is back when its consumer has ended.
    async fn left(&self, consumer: &str) -> u64 {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue =
            self.channel.queue_declare(consumer.into(), passive, FieldTable::default()).await.unwrap();
        u64::from(queue.message_count())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_105_106_rabbitmq_consumers_that_die_anywhere_book_every_event_once() {
    storm::kills(&tested().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_inbox_a_ledger_behind_rabbitmq_is_wrong() {
    storm::without_inbox(&tested().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_107_poison_behind_rabbitmq_is_given_up_and_its_neighbours_are_not() {
    poison::poison(&tested().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_rabbitmq_cloudevents_in_headers_are_understood() {
    contract::binary(&tested().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_rabbitmq_a_key_is_never_overtaken() {
    contract::order_per_key(&tested().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_rabbitmq_a_connection_that_breaks_costs_nothing_but_time() {
    contract::reconnects(&tested().await, source).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_rabbitmq_what_was_not_begun_is_given_back_at_the_end() {
    contract::drained(&tested().await).await;
    contract::deadline(&tested().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tls_only_the_right_rabbitmq_is_listened_to() {
    let (right, wrong) = (Authority::new().unwrap(), Authority::new().unwrap());
    let certificate = right.issue("IP:127.0.0.1", 10).unwrap();
    let server = Broker::private(RabbitMq::new().with_tls(&certificate)).await.unwrap();
    let url = format!("amqps://guest:guest@{}/", server.tls_address().unwrap());
    let source = |authority: &Authority| Exchange::new(&url, "events").ca(authority.certificate());
    let terms = || Terms { consumer: "secret".to_owned(), prefetch: 1, room: Arc::new(Semaphore::new(1)) };

    let (link, mut deliveries) = source(&right).open(&terms()).await.unwrap();
    let connection = Connection::connect(&server.url(), ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let options = BasicPublishOptions::default();
    let letter = Letter::payment(1, "a").body;
    channel
        .basic_publish("events".into(), "".into(), options, &letter, BasicProperties::default())
        .await
        .unwrap();
    let delivery = tokio::time::timeout(PATIENCE, deliveries.recv()).await.unwrap().unwrap().unwrap();
    assert_eq!(delivery.message.body, letter);
    link.acknowledge(&delivery.receipt).await.unwrap();
    link.close().await;

    let trouble = source(&wrong).open(&terms()).await.err().unwrap().to_string();
    assert!(trouble.contains("UnknownIssuer"), "{trouble}");
    let nowhere = Exchange::new(&url, "events").ca("/nowhere/ca.pem");
    let trouble = nowhere.open(&terms()).await.err().unwrap().to_string();
    assert!(trouble.contains("/nowhere/ca.pem") && !trouble.contains("guest"), "{trouble}");
}

/// Somebody has bound the exchange of the dead letters to that of the events: a dead letter comes back once, and that is all.
#[tokio::test(flavor = "multi_thread")]
async fn fault_107_a_loop_of_dead_letters_in_rabbitmq_ends() {
    let tested = tested().await;
    let consumer = unique("looped");
    super::far::prepare(&tested, &consumer).await;
    let (from, to) = (format!("{consumer}.dead"), tested.exchange.clone());
    let options = ExchangeBindOptions::default();
    let bound = tested.channel.exchange_bind(
        to.as_str().into(),
        from.as_str().into(),
        "".into(),
        options,
        FieldTable::default(),
    );
    bound.await.unwrap();
    contract::one_dead_letter(&tested, &consumer).await;
    let channel = tested.connection.create_channel().await.unwrap();
    let got = channel.basic_get(consumer.as_str().into(), BasicGetOptions::default()).await.unwrap();
    if let Some(got) = got {
        got.delivery.ack(BasicAckOptions::default()).await.unwrap();
        panic!("the dead letter goes round");
    }
}

/// What docs/consumers.md says of a dead event: forget it, and publish the letter again, with everything that stands beside it.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_behind_rabbitmq_that_is_published_again_takes_effect() {
    let tested = tested().await;
    let consumer = unique("mended");
    let (_database, pool) = ledger().await;
    super::far::prepare(&tested, &consumer).await;
    tested.publish(&[Letter::payment(1, "a")]).await;
    let (stop, stopping) = oneshot::channel::<()>();
    let running = Consumer::new(pool.clone(), &consumer, tested.source()).run(
        async { drop(stopping.await) },
        async |_: &mut Tx, _: Event<Payment>| {
            Ok::<_, BoxError>(Outcome::Dead("the handler is broken".to_owned()))
        },
    );
    let watching = async {
        until("it is dead", async || tested.dead_letters(&consumer).await.len() == 1).await;
        drop(stop);
    };
    let (ended, ()) = tokio::join!(running, watching);
    ended.unwrap();

    let forgotten =
        inbox::forget(&mut pool.acquire().await.unwrap(), &consumer, Some(&Letter::id(1))).await.unwrap();
    assert_eq!(forgotten, 1);
    let place = format!("{consumer}.dead");
    let channel = &tested.channel;
    // Looking at it took it out, and it is back a moment later.
    let begun = Instant::now();
    let got = loop {
        let got = channel.basic_get(place.as_str().into(), BasicGetOptions::default()).await.unwrap();
        if let Some(got) = got {
            break got;
        }
        assert!(begun.elapsed() < PATIENCE, "the dead letter is gone");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let (exchange, options) = (tested.exchange.as_str().into(), BasicPublishOptions::default());
    let properties = got.delivery.properties.clone();
    let moved = channel.basic_publish(exchange, "".into(), options, &got.delivery.data, properties);
    moved.await.unwrap().await.unwrap();
    got.delivery.ack(BasicAckOptions::default()).await.unwrap();
    contract::work_off(&tested, &pool, &consumer, 1).await;
    assert_eq!(sums(&pool).await, expected(1));
}

/// What nobody takes is not lost, and neither queue grows for ever.
#[tokio::test(flavor = "multi_thread")]
async fn what_lies_in_a_queue_of_rabbitmq_for_too_long_goes_to_the_dead_letters_for_a_time() {
    let tested = tested().await;
    let consumer = unique("away");
    // So long with the dead letters that a machine which stands still for some seconds does not keep it from being seen there.
    let source = tested.source().keep(Duration::from_millis(200)).keep_dead(Duration::from_secs(15));
    make(&source, &consumer).await;
    tested.publish(&[Letter::payment(1, "a")]).await;
    let dead = format!("{consumer}.dead");
    until("it is with the dead letters", async || tested.left(&dead).await == 1).await;
    until("it is gone from here", async || tested.left(&consumer).await == 0).await;
    until("it is gone from there", async || tested.left(&dead).await == 0).await;
}

/// Those of its dead letters, too: from there somebody may move them back.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_rabbitmq_that_keeps_messages_for_longer_than_the_inbox_remembers_is_refused() {
    let tested = tested().await;
    let days = |days: u64| Duration::from_hours(24 * days);
    let source = || tested.source().keep(days(13)).keep_dead(days(20));
    contract::forgetful(&tested, source, days(33)).await;
}
