//! Faults of a real broker.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use postrider::log::Record;
use postrider_relay::sinks::kafka::{CreateTopics, KafkaConfig, KafkaSink};
use postrider_relay::units::Span;
use postrider_relay::{Outcome, RefusalKind, Sink as _, UnavailableKind};
use postrider_testkit::{Authority, Broker, Direction, Kafka, Proxy};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use uuid::Uuid;

use super::super::{carried, deliver, delivered, event};
use super::{Proxied, Stored, add_partitions, config, firsts, ids, make, opened, partitions_of, stored};

/// Delivers, and gives it up before anything can have been confirmed.
async fn give_up(sink: &mut KafkaSink, records: &[Record], topic: &str) {
    let ended = tokio::time::timeout(Duration::from_millis(300), deliver(sink, records, topic)).await;
    assert!(ended.is_err(), "nothing can have been confirmed: {ended:?}");
}

/// A delivery that is given up marks nothing, and what it left in the client is not sent behind what is newer.
#[tokio::test]
async fn fault_83_a_kafka_producer_that_is_dropped_has_marked_nothing() -> Result<()> {
    let Proxied { proxy, brokers, .. } = &Proxied::start().await?;
    make(brokers, "order", 1, &[]).await?;
    let mut sink = KafkaSink::open(config(brokers)).await.unwrap();
    let first = [event("a"), event("a")];
    delivered(&mut sink, &first, "order").await;
    proxy.half_open();
    let second = [event("a"), event("a"), event("a")];
    give_up(&mut sink, &second, "order").await;
    proxy.heal();
    let third = [second.as_slice(), &[event("a"), event("a")]].concat();
    delivered(&mut sink, &third, "order").await;
    Box::new(sink).close().await.unwrap();
    assert_eq!(firsts(&stored(brokers, "order").await?, "a"), ids(first.iter().chain(&third), "a"));

    // And one that is dropped with what it has.
    let mut sink = KafkaSink::open(config(brokers)).await.unwrap();
    delivered(&mut sink, &[event("b")], "order").await;
    proxy.half_open();
    give_up(&mut sink, &[event("b"), event("b")], "order").await;
    drop(sink);
    proxy.heal();
    Ok(())
}

/// A confirmation is lost with its connection, and the producer sends the same again: the broker knows it by its number.
#[tokio::test]
async fn fault_76_kafka_has_each_event_once_though_confirmations_are_lost() -> Result<()> {
    let Proxied { proxy, brokers, .. } = &Proxied::start().await?;
    make(brokers, "order", 1, &[]).await?;
    let mut sink = KafkaSink::open(config(brokers)).await.unwrap();
    let mut sent = vec![event("a")];
    delivered(&mut sink, &sent, "order").await;
    for _ in 0..5 {
        let records = [event("a"), event("a"), event("a")];
        // One byte of the answer is enough to know that there was one.
        proxy.truncate_after(Direction::ToClient, 1);
        delivered(&mut sink, &records, "order").await;
        sent.extend(records);
    }
    let there: Vec<_> = stored(brokers, "order").await?.into_iter().map(|message| message.id).collect();
    assert_eq!(there, ids(&sent, "a"));
    Ok(())
}

/// Of two brokers that are named one is away, and the other takes longer than it is looked whether something is wrong: it is waited for. Where
/// nobody is there, nobody is waited for.
#[tokio::test]
async fn fault_76_one_kafka_broker_that_is_away_is_not_all_of_them() -> Result<()> {
    let Proxied { proxy, brokers, .. } = &Proxied::start().await?;
    make(brokers, "order", 1, &[]).await?;
    let (away, also_away) = ("127.0.0.1:1", "127.0.0.1:2");
    proxy.delay(Duration::from_millis(700));
    let mut sink = KafkaSink::open(config(&format!("{away},{brokers}"))).await.unwrap();
    proxy.heal();
    delivered(&mut sink, &[event("a")], "order").await;

    let nobody = config(&format!("{away},{also_away}"));
    let mut fastest = Duration::MAX;
    // Who waits although nobody is there does so each time; a busy machine is late now and then.
    for _ in 0..3 {
        let begun = Instant::now();
        let why = KafkaSink::open(nobody.clone()).await.err().context("somebody is there")?;
        assert_eq!(why.kind, UnavailableKind::Connection, "{why:?}");
        fastest = fastest.min(begun.elapsed());
        if fastest < nobody.timeout.0 / 2 {
            return Ok(());
        }
    }
    panic!("it took {fastest:?} to notice");
}

/// What a producer still has when it is given up never comes, after a delivery that was dropped as after one that took too long: what is newer
/// may have been sent since, by another relay.
#[tokio::test]
async fn fault_83_what_a_kafka_producer_was_given_up_with_is_not_sent_any_more() -> Result<()> {
    let Proxied { proxy, brokers, .. } = &Proxied::start().await?;
    let impatient = KafkaConfig { timeout: Span(Duration::from_secs(3)), ..config(brokers) };
    for topic in ["dropped", "late"] {
        make(brokers, topic, 1, &[]).await?;
        let mut sink = opened(&impatient).await;
        let first = [event("a")];
        carried(&mut sink, &first, topic).await;
        proxy.drop_direction(Direction::ToServer);
        let given_up = [event("a"), event("a")];
        if topic == "dropped" {
            give_up(&mut sink, &given_up, topic).await;
        } else {
            let report = deliver(&mut sink, &given_up, topic).await;
            assert!(report.unavailable.is_some(), "nothing can have been confirmed: {report:?}");
        }
        proxy.heal();
        // In one partition nothing is there before what was to be sent before it.
        let newer = [event("a")];
        carried(&mut sink, &newer, topic).await;
        assert_eq!(firsts(&stored(brokers, topic).await?, "a"), [first[0].id, newer[0].id], "{topic}");
    }
    Ok(())
}

/// Keys move to partitions that are added, and none has an event in the new one before those in the old one are confirmed.
#[tokio::test]
async fn fault_84_partitions_that_are_added_keep_the_order_of_a_key() -> Result<()> {
    let server = Broker::shared(Kafka::new()).await?;
    let brokers = server.bootstrap();
    let topic = "more-partitions";
    make(&brokers, topic, 1, &[]).await?;
    let mut sink = KafkaSink::open(config(&brokers)).await.unwrap();
    let keys: Vec<String> = (0..20).map(|key| format!("k{key}")).collect();
    let mut all: Vec<Record> = Vec::new();
    let mut is_added = false;
    let begun = Instant::now();
    loop {
        let records: Vec<Record> = (0..100).map(|at| event(&keys[at % keys.len()])).collect();
        delivered(&mut sink, &records, topic).await;
        all.extend(records);
        if !is_added {
            add_partitions(&brokers, topic, 4).await?;
            is_added = true;
        }
        // It is looked at every few seconds.
        tokio::time::sleep(Duration::from_millis(200)).await;
        if all.len().is_multiple_of(1000)
            && stored(&brokers, topic).await?.iter().any(|message| message.partition != 0)
        {
            break;
        }
        ensure!(begun.elapsed() < Duration::from_mins(2), "the new partitions are never used");
    }
    let there = stored(&brokers, topic).await?;
    assert_eq!(there.len(), all.len(), "each is there once");
    for key in &keys {
        // Sorted by partition: what is in the first was there before anything went to another.
        assert_eq!(firsts(&there, key), ids(&all, key), "{key}");
    }
    Ok(())
}

/// The client library learns of new partitions in the midst of a batch: when a connection breaks, it asks. All of the batch goes where the
/// first of it went all the same. In another partition a later event of a key could be there first.
#[tokio::test]
async fn fault_84_a_kafka_batch_keeps_to_the_partitions_that_it_began_with() -> Result<()> {
    let Proxied { proxy, brokers, .. } = &Proxied::start().await?;
    make(brokers, "order", 1, &[]).await?;
    let patient = KafkaConfig { timeout: Span(Duration::from_mins(1)), ..config(brokers) };
    let mut sink = KafkaSink::open(patient).await.unwrap();
    delivered(&mut sink, &[event("a")], "order").await;
    // More than the client's queue holds: the rest is handed over when the first are confirmed, and that is slow.
    let records: Vec<Record> = (0..20_000).map(|at| event(["a", "b", "c"][at % 3])).collect();
    let before = proxy.carried(Direction::ToServer);
    proxy.throttle(200_000);
    let change = async {
        let begun = Instant::now();
        while proxy.carried(Direction::ToServer) < before + 50_000 {
            ensure!(begun.elapsed() < Duration::from_mins(1), "nothing is sent");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        add_partitions(brokers, "order", 4).await?;
        proxy.heal();
        proxy.cut();
        Ok(())
    };
    let ((), changed) = tokio::join!(delivered(&mut sink, &records, "order"), change);
    changed?;
    let there = stored(brokers, "order").await?;
    assert_eq!(there.len(), records.len() + 1, "each is there once");
    assert!(there.iter().all(|message| message.partition == 0), "some went elsewhere");
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
    let server = Broker::shared(Kafka::new()).await?;
    let brokers = server.bootstrap();
    for topic in ["keys-ours", "keys-others"] {
        make(&brokers, topic, 7, &[]).await?;
    }
    let keys: Vec<String> = (0..100).map(|key| format!("key-{key}")).collect();
    let records: Vec<Record> = keys.iter().map(|key| event(key)).collect();
    let mut sink = KafkaSink::open(config(&brokers)).await.unwrap();
    // Each in a batch of its own, and all again in one: it is the key that counts.
    for record in &records {
        delivered(&mut sink, std::slice::from_ref(record), "keys-ours").await;
    }
    delivered(&mut sink, &records, "keys-ours").await;
    send_by_kcat(&brokers, "keys-others", &keys).await?;
    let partitions = |there: Vec<Stored>| -> BTreeSet<(String, i32)> {
        there.into_iter().map(|message| (message.key, message.partition)).collect()
    };
    let ours = partitions(stored(&brokers, "keys-ours").await?);
    assert_eq!(ours, partitions(stored(&brokers, "keys-others").await?));
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
    assert_eq!(partitions_of(&brokers, "order").await?, 5);
    Ok(())
}

/// A broker hangs up without a word to who speaks another protocol, and a certificate for another name is no better than one of somebody else:
/// the reason says what it may be.
#[tokio::test]
async fn a_kafka_broker_that_is_spoken_to_in_another_way_is_named() -> Result<()> {
    let (right, proxy) = (Authority::new()?, Proxy::start("127.0.0.1:1").await?);
    let service = Kafka::new()
        .with_login("shop", "pw", proxy.port())
        .with_tls(&right.issue("DNS:elsewhere.example", 10)?, proxy.port());
    let server = Broker::private(service).await?;
    let secure = server.tls_address();
    let over_tls = KafkaConfig {
        url: format!("kafka+ssl://{secure}"),
        ca: Some(right.certificate()),
        ..config(&secure)
    };
    let hint = "it may speak TLS (kafka+ssl://) or want a user";
    for (config, words) in [
        (config(&server.login_address()), hint),
        (config(&secure), hint),
        (over_tls, "or it is for another name than the host's"),
    ] {
        let why = KafkaSink::open(config).await.err().context("it was opened")?;
        assert_eq!(why.kind, UnavailableKind::Connection, "{}", why.source);
        assert!(why.source.to_string().contains(words), "{}", why.source);
    }
    Ok(())
}
