//! Faults of a real broker.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use postrider::log::Record;
use postrider_relay::sinks::kafka::{CreateTopics, KafkaConfig, KafkaSink};
use postrider_relay::units::Span;
use postrider_relay::{Outcome, RefusalKind, Sink as _};
use postrider_testkit::{Broker, Direction, Kafka, Proxy};
use rdkafka::admin::NewPartitions;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use uuid::Uuid;

use super::super::{carried, deliver, delivered, event};
use super::{Stored, admin, config, firsts, make, options, stored};

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

/// A confirmation is lost with its connection, and the producer sends the same again: the broker knows it by its number.
#[tokio::test]
async fn fault_76_kafka_has_each_event_once_though_confirmations_are_lost() -> Result<()> {
    let proxy = Proxy::start("127.0.0.1:1").await?;
    let server = Broker::private(Kafka::new().advertised_at(proxy.port())).await?;
    proxy.set_upstream(server.address());
    let brokers = format!("127.0.0.1:{}", proxy.port());
    make(&brokers, "order", 1, &[]).await?;
    let mut sink = KafkaSink::open(config(&brokers)).await.unwrap();
    let mut sent = vec![event("a")];
    delivered(&mut sink, &sent, "order").await;
    for _ in 0..5 {
        let records = [event("a"), event("a"), event("a")];
        // One byte of the answer is enough to know that there was one.
        proxy.truncate_after(Direction::ToClient, 1);
        delivered(&mut sink, &records, "order").await;
        sent.extend(records);
    }
    let there: Vec<_> = stored(&brokers, "order").await?.into_iter().map(|message| message.id).collect();
    assert_eq!(there, sent.iter().map(|record| record.id).collect::<Vec<_>>());
    Ok(())
}

/// What a producer still has when it is given up never comes, after a delivery that was dropped as after one that took too long: what is newer
/// may have been sent since, by another relay.
#[tokio::test]
async fn fault_83_what_a_kafka_producer_was_given_up_with_is_not_sent_any_more() -> Result<()> {
    let proxy = Proxy::start("127.0.0.1:1").await?;
    let server = Broker::private(Kafka::new().advertised_at(proxy.port())).await?;
    proxy.set_upstream(server.address());
    let brokers = format!("127.0.0.1:{}", proxy.port());
    let impatient = KafkaConfig { timeout: Span(Duration::from_secs(3)), ..config(&brokers) };
    for topic in ["dropped", "late"] {
        make(&brokers, topic, 1, &[]).await?;
        let mut sink = KafkaSink::open(impatient.clone()).await.unwrap();
        let first = [event("a")];
        carried(&mut sink, &first, topic).await;
        proxy.drop_direction(Direction::ToServer);
        let given_up = [event("a"), event("a")];
        let delivery = deliver(&mut sink, &given_up, topic);
        if topic == "dropped" {
            let ended = tokio::time::timeout(Duration::from_millis(300), delivery).await;
            assert!(ended.is_err(), "nothing can have been confirmed: {ended:?}");
        } else {
            assert!(delivery.await.unavailable.is_some(), "nothing can have been confirmed");
        }
        proxy.heal();
        // In one partition nothing is there before what was to be sent before it.
        let newer = [event("a")];
        carried(&mut sink, &newer, topic).await;
        assert_eq!(firsts(&stored(&brokers, topic).await?, "a"), [first[0].id, newer[0].id], "{topic}");
    }
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
        ensure!(begun.elapsed() < Duration::from_mins(2), "the new partitions are never used");
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

/// A message of each key, in the partition that Kafka's own clients choose.
async fn send_by_kcat(brokers: &str, topic: &str, keys: &[String]) -> Result<()> {
    let mut kcat = Command::new("kcat")
        .args(["-b", brokers, "-P", "-t", topic, "-K", ":", "-X", "partitioner=murmur2"])
        .args(["-H", &format!("event_id={}", Uuid::nil())])
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let lines = keys.join(":x\n") + ":x\n";
    // It sends when its input ends.
    kcat.stdin.take().context("no input")?.write_all(lines.as_bytes()).await?;
    ensure!(kcat.wait().await?.success(), "kcat could not send");
    Ok(())
}

/// A key is where Kafka's own clients put it, so that events of a key meet what others have sent for it. `kcat` is told to choose as they do.
#[tokio::test]
async fn a_kafka_key_is_in_the_partition_that_others_choose_for_it() -> Result<()> {
    let server = Broker::private(Kafka::new()).await?;
    let brokers = server.bootstrap();
    for topic in ["ours", "others"] {
        make(&brokers, topic, 7, &[]).await?;
    }
    let keys: Vec<String> = (0..100).map(|key| format!("key-{key}")).collect();
    let records: Vec<Record> = keys.iter().map(|key| event(key)).collect();
    let mut sink = KafkaSink::open(config(&brokers)).await.unwrap();
    // Each in a batch of its own, and all again in one: it is the key that counts.
    for record in &records {
        delivered(&mut sink, std::slice::from_ref(record), "ours").await;
    }
    delivered(&mut sink, &records, "ours").await;
    send_by_kcat(&brokers, "others", &keys).await?;
    let partitions = |there: Vec<Stored>| -> BTreeSet<(String, i32)> {
        there.into_iter().map(|message| (message.key, message.partition)).collect()
    };
    let ours = partitions(stored(&brokers, "ours").await?);
    assert_eq!(ours, partitions(stored(&brokers, "others").await?));
    assert_eq!(ours.len(), records.len(), "each key has one partition");
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
