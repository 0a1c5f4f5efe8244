//! Events that nobody is there to take.

use std::collections::HashSet;

use anyhow::{Context as _, Result};
use postrider::log::Record;
use postrider_relay::sinks::rabbitmq::{ExchangeKind, RabbitMqConfig, RabbitMqSink, Unroutable};
use postrider_relay::{Outcome, RefusalKind, Sink as _, UnavailableKind};
use postrider_testkit::{Broker, RabbitMq, Seed};
use rand::RngExt as _;

use super::super::{deliver, deliver_to, delivered, event};
use super::client::{CLASSIC, Client};

/// The server that tests share which leave it as it is; each has an exchange of its own.
pub(super) async fn shared() -> Result<Broker<RabbitMq>> {
    Broker::shared(RabbitMq::new().with_management()).await
}

/// A tenth of the events has nowhere to go, at random: each of those is refused, each of the others is in the queue.
async fn unroutable_among_others(server: &Broker<RabbitMq>) -> Result<()> {
    const EVENTS: usize = 20_000;
    const BATCH: usize = 500;
    let client = Client::connect(&server.url()).await?;
    client.exchange("mixed", lapin::ExchangeKind::Topic).await?;
    client.queue("mixed", CLASSIC).await?;
    client.bind("mixed", "mixed", "good").await?;
    let config = RabbitMqConfig {
        exchange: "mixed".to_owned(),
        kind: ExchangeKind::Topic,
        ..RabbitMqConfig::new(server.url())
    };
    let mut sink = RabbitMqSink::open(config).await.unwrap();
    let mut random = Seed::from_env_or_random("unroutable among others").rng();
    let (mut marked, mut refused) = (HashSet::new(), 0);
    for batch in 0..EVENTS / BATCH {
        let events: Vec<(Record, &str)> = (0..BATCH)
            .map(|at| {
                let destination = if random.random_bool(0.1) { "bad" } else { "good" };
                (event(&format!("{batch}-{at}")), destination)
            })
            .collect();
        let report = deliver_to(&mut sink, events.iter().map(|(record, to)| (record, *to))).await;
        assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
        for ((record, destination), outcome) in events.iter().zip(&report.outcomes) {
            match outcome {
                Outcome::Delivered => assert!(marked.insert(record.id.to_string())),
                Outcome::Refused(refusal) => {
                    assert_eq!(refusal.kind, RefusalKind::Unroutable);
                    assert!(refusal.reason.contains("\"bad\""), "{}", refusal.reason);
                    assert_eq!(*destination, "bad", "one that was routable was called unroutable");
                    refused += 1;
                }
                Outcome::NotSent => panic!("an event was not sent, without a reason"),
            }
        }
    }
    let stored: HashSet<String> =
        client.drain("mixed").await?.into_iter().map(|message| message.id).collect();
    let wrong = marked.symmetric_difference(&stored).count();
    assert_eq!((wrong, marked.len() + refused), (0, EVENTS), "marks that are wrong");
    assert!(refused > EVENTS / 20, "the test has tested nothing: {refused}");
    client.close().await;
    Ok(())
}

#[tokio::test]
async fn fault_67_each_unroutable_event_is_named_among_others() -> Result<()> {
    unroutable_among_others(&shared().await?).await
}

#[tokio::test]
async fn fault_67_each_unroutable_event_is_named_among_others_by_rabbitmq_3() -> Result<()> {
    unroutable_among_others(&Broker::private(RabbitMq::old()).await?).await
}

/// A fanout exchange without a queue makes every event unroutable: the sink waits, and says for what.
#[tokio::test]
async fn a_rabbitmq_exchange_that_nobody_listens_to_is_waited_for() -> Result<()> {
    let server = shared().await?;
    let config = RabbitMqConfig { exchange: "lonely".to_owned(), ..RabbitMqConfig::new(server.url()) };
    let mut sink = RabbitMqSink::open(config).await.unwrap();
    let records = [event("a"), event("b"), event("a")];
    for _ in 0..2 {
        let report = deliver(&mut sink, &records, "order.paid").await;
        assert_eq!(report.outcomes, vec![Outcome::NotSent; 3]);
        let why = report.unavailable.context("it does not wait")?;
        assert_eq!(why.kind, UnavailableKind::Missing);
        assert!(
            why.source.to_string().contains("no queue is bound to the exchange `lonely`"),
            "{}",
            why.source
        );
    }
    let client = Client::connect(&server.url()).await?;
    client.queue("lonely", CLASSIC).await?;
    client.bind("lonely", "lonely", "").await?;
    delivered(&mut sink, &records, "order.paid").await;
    let read = client.drain("lonely").await?;
    let ids: Vec<String> = read.iter().map(|message| message.id.clone()).collect();
    assert_eq!(ids.len(), 3);
    let place = |record: &Record| ids.iter().position(|id| *id == record.id.to_string());
    assert!(place(&records[0]) < place(&records[2]), "{ids:?}");
    // As it was sent: kept on the disk, with its key and its type.
    let message = &read[0];
    assert_eq!(message.routing_key, "order.paid");
    assert_eq!(*message.properties.delivery_mode(), Some(2));
    assert_eq!(
        message.properties.content_type().as_ref().map(lapin::types::ShortString::as_str),
        Some("application/json")
    );
    assert_eq!(message.properties.kind().as_ref().map(lapin::types::ShortString::as_str), Some("order.paid"));
    client.close().await;
    Ok(())
}

#[tokio::test]
async fn unroutable_events_of_rabbitmq_are_dropped_only_when_asked_and_counted() -> Result<()> {
    let server = shared().await?;
    let config = RabbitMqConfig {
        exchange: "dropping".to_owned(),
        unroutable: Some(Unroutable::DropCounted),
        ..RabbitMqConfig::new(server.url())
    };
    let mut sink = RabbitMqSink::open(config).await.unwrap();
    let records = [event("a"), event("b"), event("a")];
    delivered(&mut sink, &records, "order.paid").await;
    assert_eq!(sink.dropped(), 3);
    let client = Client::connect(&server.url()).await?;
    client.queue("dropping", CLASSIC).await?;
    client.bind("dropping", "dropping", "").await?;
    delivered(&mut sink, &records[..2], "order.paid").await;
    assert_eq!(sink.dropped(), 0);
    assert_eq!(client.drain("dropping").await?.len(), 2);
    client.close().await;
    Ok(())
}

/// A key whose events go to several places does not pass the one that was refused.
#[tokio::test]
async fn a_rabbitmq_key_does_not_pass_its_refused_event() -> Result<()> {
    let server = shared().await?;
    let client = Client::connect(&server.url()).await?;
    client.exchange("direct", lapin::ExchangeKind::Direct).await?;
    client.queue("direct", CLASSIC).await?;
    client.bind("direct", "direct", "good").await?;
    let config = RabbitMqConfig {
        exchange: "direct".to_owned(),
        kind: ExchangeKind::Direct,
        ..RabbitMqConfig::new(server.url())
    };
    let mut sink = RabbitMqSink::open(config).await.unwrap();
    let events = [(event("a"), "good"), (event("a"), "bad"), (event("b"), "good"), (event("a"), "good")];
    let report = deliver_to(&mut sink, events.iter().map(|(record, to)| (record, *to))).await;
    assert!(report.unavailable.is_none(), "{:?}", report.unavailable);
    let [first, Outcome::Refused(refusal), other, last] = report.outcomes.as_slice() else {
        panic!("{:?}", report.outcomes);
    };
    assert_eq!(refusal.kind, RefusalKind::Unroutable);
    assert_eq!([first, other, last], [&Outcome::Delivered, &Outcome::Delivered, &Outcome::NotSent]);
    assert_eq!(client.drain("direct").await?.len(), 2);
    client.close().await;
    Ok(())
}
