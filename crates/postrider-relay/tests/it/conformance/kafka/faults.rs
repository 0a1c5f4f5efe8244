//! Faults of a real broker.

use std::time::Duration;

use anyhow::{Result, ensure};
use postrider::log::Record;
use postrider_relay::sinks::kafka::{CreateTopics, KafkaConfig, KafkaSink};
use postrider_relay::{Outcome, RefusalKind, Sink as _};
use postrider_testkit::{Broker, Kafka, Proxy};
use rdkafka::admin::NewPartitions;

use super::super::{deliver, delivered, event};
use super::{admin, config, firsts, make, options, stored};

/// A delivery that is given up marks nothing, and what it left in the client is not sent behind what is newer.
#[tokio::test]
async fn fault_83_a_kafka_producer_that_is_dropped_has_marked_nothing() -> Result<()> {
    let proxy = Proxy::start("127.0.0.1:1").await?;
    let server = Broker::private(Kafka::new().advertised_at(proxy.port())).await?;
    proxy.set_upstream(server.address());
    // Itself it is reached through the proxy as well.
    let brokers = format!("127.0.0.1:{}", proxy.port());
    make(&brokers, "order", 1, &[]).await?;
    let mut sink = KafkaSink::open(config(&brokers)).await.unwrap();
    let first = [event("a"), event("a")];
    delivered(&mut sink, &first, "order").await;
    proxy.half_open();
    let second = [event("a"), event("a"), event("a")];
    let given_up =
        tokio::time::timeout(Duration::from_millis(300), deliver(&mut sink, &second, "order")).await;
    assert!(given_up.is_err(), "nothing can have been confirmed: {given_up:?}");
    proxy.heal();
    let third = [second.as_slice(), &[event("a"), event("a")]].concat();
    delivered(&mut sink, &third, "order").await;
    Box::new(sink).close().await.unwrap();
    let expected: Vec<_> = first.iter().chain(&third).map(|record| record.id).collect();
    assert_eq!(firsts(&stored(&brokers, "order").await?, "a"), expected);

    // And one that is dropped with what it has.
    let mut sink = KafkaSink::open(config(&brokers)).await.unwrap();
    delivered(&mut sink, &[event("b")], "order").await;
    proxy.half_open();
    let lost = [event("b"), event("b")];
    let given_up = tokio::time::timeout(Duration::from_millis(300), deliver(&mut sink, &lost, "order")).await;
    assert!(given_up.is_err(), "nothing can have been confirmed: {given_up:?}");
    drop(sink);
    proxy.heal();
    Ok(())
}

/// Keys move to partitions that are added, and none has an event in the new one before those in the old one are confirmed.
#[tokio::test]
async fn fault_84_partitions_that_are_added_keep_the_order_of_a_key() -> Result<()> {
    let server = Broker::private(Kafka::new()).await?;
    let brokers = server.bootstrap();
    make(&brokers, "order", 1, &[]).await?;
    let mut sink = KafkaSink::open(config(&brokers)).await.unwrap();
    let keys: Vec<String> = (0..20).map(|key| format!("k{key}")).collect();
    let mut all: Vec<Record> = Vec::new();
    let mut is_added = false;
    let begun = std::time::Instant::now();
    loop {
        let records: Vec<Record> = (0..100).map(|at| event(&keys[at % keys.len()])).collect();
        delivered(&mut sink, &records, "order").await;
        all.extend(records);
        if !is_added {
            let more = NewPartitions::new("order", 4);
            for added in admin(&brokers)?.create_partitions([&more], &options()).await? {
                added.map_err(|(_, code)| anyhow::anyhow!("{code}"))?;
            }
            is_added = true;
        }
        // It is looked at every few seconds.
        tokio::time::sleep(Duration::from_millis(200)).await;
        if all.len().is_multiple_of(1000)
            && stored(&brokers, "order").await?.iter().any(|message| message.partition != 0)
        {
            break;
        }
        ensure!(begun.elapsed() < Duration::from_mins(1), "the new partitions are never used");
    }
    let there = stored(&brokers, "order").await?;
    assert_eq!(there.len(), all.len(), "each is there once");
    for key in &keys {
        // Sorted by partition: what is in the first was there before anything went to another.
        let expected: Vec<_> = all.iter().filter(|r| r.key.as_ref() == Some(key)).map(|r| r.id).collect();
        assert_eq!(firsts(&there, key), expected, "{key}");
    }
    Ok(())
}

/// Topics are made when that is asked for, and never by looking for them.
#[tokio::test]
async fn a_kafka_topic_is_made_only_when_asked() -> Result<()> {
    let server = Broker::private(Kafka::new().set("auto.create.topics.enable", "true")).await?;
    let brokers = server.bootstrap();
    let mut sink = KafkaSink::open(config(&brokers)).await.unwrap();
    let records = [event("a")];
    for _ in 0..2 {
        let report = deliver(&mut sink, &records, "order").await;
        assert!(
            matches!(&report.outcomes[0], Outcome::Refused(refusal) if refusal.kind == RefusalKind::Unroutable),
            "{report:?}"
        );
    }
    let asked = KafkaConfig {
        create_topics: Some(CreateTopics { partitions: 5, replication: 1 }),
        ..config(&brokers)
    };
    let mut sink = KafkaSink::open(asked).await.unwrap();
    delivered(&mut sink, &records, "order").await;
    assert_eq!(stored(&brokers, "order").await?.len(), 1);
    let metadata = admin(&brokers)?;
    let partitions = tokio::task::spawn_blocking(move || {
        let metadata = metadata.inner().fetch_metadata(Some("order"), Duration::from_secs(20))?;
        anyhow::Ok(metadata.topics()[0].partitions().len())
    });
    assert_eq!(partitions.await??, 5);
    Ok(())
}
