//! Three brokers that keep a topic together.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures_util::future::try_join_all;
use postrider::log::Record;
use postrider_relay::sinks::kafka::{KafkaConfig, KafkaSink};
use postrider_relay::units::Span;
use postrider_relay::{Outcome, Sink as _, UnavailableKind};
use postrider_testkit::{Broker, Kafka};
use rdkafka::admin::{NewTopic, TopicReplication};

use super::super::{carried, deliver, delivered, event, is_soak, kills_of_one_in_three};
use super::{admin, config, firsts, ids, options, stored};

const TOPIC: &str = "order";

struct Three {
    brokers: Vec<Broker<Kafka>>,
    bootstrap: String,
}

impl Three {
    /// With a topic of one partition on all of them, which takes nothing unless so many have it.
    async fn start(in_sync: usize) -> Result<Self> {
        let service = Kafka::cluster(3)?.into_iter().map(|kafka| {
            // So long nobody misses a broker that was killed.
            kafka.set("broker.session.timeout.ms", 3000).set("broker.heartbeat.interval.ms", 500)
        });
        let brokers = try_join_all(service.map(Broker::private)).await?;
        let bootstrap = brokers.iter().map(Broker::<Kafka>::bootstrap).collect::<Vec<_>>().join(",");
        let in_sync = in_sync.to_string();
        let topic = NewTopic::new(TOPIC, 1, TopicReplication::Fixed(3)).set("min.insync.replicas", &in_sync);
        let begun = Instant::now();
        // Each is ready before it knows of the two others.
        while let Err((_, code)) = admin(&bootstrap)?.create_topics([&topic], &options()).await?.remove(0) {
            ensure!(begun.elapsed() < Duration::from_mins(1), "the topic cannot be made: {code}");
        }
        let three = Self { brokers, bootstrap };
        three.until_in_sync(3).await?;
        Ok(three)
    }

    /// Which of them leads the partition, and how many are in sync.
    fn standing(&self) -> Result<(i32, usize)> {
        let metadata =
            admin(&self.bootstrap)?.inner().fetch_metadata(Some(TOPIC), Duration::from_secs(10))?;
        let topic = metadata.topics().first().context("no topic")?;
        let partition = topic.partitions().first().context("no partition")?;
        Ok((partition.leader(), partition.isr().len()))
    }

    async fn until_in_sync(&self, count: usize) -> Result<i32> {
        let begun = Instant::now();
        loop {
            match self.standing() {
                Ok((leader, in_sync)) if in_sync == count && leader > 0 => return Ok(leader),
                said => {
                    ensure!(begun.elapsed() < Duration::from_mins(1), "{count} are not in sync: {said:?}");
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The one of that number.
    fn broker(&self, number: i32) -> &Broker<Kafka> {
        &self.brokers[usize::try_from(number).map_or(0, |number| number - 1)]
    }
}

fn events(count: usize) -> Vec<Record> {
    (0..count).map(|at| event(["a", "b"][at % 2])).collect()
}

/// All of them, in order. How many messages there are in all.
async fn assert_there(three: &Three, sent: &[Record]) -> Result<usize> {
    let there = stored(&three.bootstrap, TOPIC).await?;
    for key in ["a", "b"] {
        assert_eq!(firsts(&there, key), ids(sent, key), "{key}");
    }
    Ok(there.len())
}

/// `kill -9` of the partition's leader under load: another leads, and has everything that was confirmed. Inside `timeout` nothing is repeated.
#[tokio::test]
async fn fault_76_kafka_loses_and_repeats_nothing_when_the_leader_of_three_is_killed() -> Result<()> {
    if !is_soak() {
        return Ok(());
    }
    let three = Three::start(2).await?;
    let patient = KafkaConfig { timeout: Span(Duration::from_mins(1)), ..config(&three.bootstrap) };
    let mut sink = KafkaSink::open(patient).await.unwrap();
    let mut sent = events(2);
    delivered(&mut sink, &sent, TOPIC).await;
    for _ in 0..kills_of_one_in_three() {
        let leader = three.broker(three.until_in_sync(3).await?);
        let records = events(400);
        let load = async {
            for some in records.chunks(10) {
                delivered(&mut sink, some, TOPIC).await;
            }
        };
        let kill = async {
            leader.crash().await?;
            leader.start().await
        };
        let ((), killed) = tokio::join!(load, kill);
        killed?;
        sent.extend(records);
    }
    Box::new(sink).close().await.unwrap();
    assert_eq!(assert_there(&three, &sent).await?, sent.len(), "each is there once");
    Ok(())
}

/// One of three is gone where all three are wanted: nothing is taken until it is back, and everything then.
#[tokio::test]
async fn fault_79_kafka_with_one_replica_too_few_is_waited_for() -> Result<()> {
    if !is_soak() {
        return Ok(());
    }
    let three = Three::start(3).await?;
    let impatient = KafkaConfig { timeout: Span(Duration::from_secs(3)), ..config(&three.bootstrap) };
    let mut sink = KafkaSink::open(impatient).await.unwrap();
    let mut sent = events(4);
    // Three that have just begun may take longer than that.
    carried(&mut sink, &sent, TOPIC).await;
    let leader = three.until_in_sync(3).await?;
    let other = three.broker(leader % 3 + 1);
    other.crash().await?;
    three.until_in_sync(2).await?;
    let records = events(10);
    for _ in 0..2 {
        let report = deliver(&mut sink, &records, TOPIC).await;
        assert_eq!(report.outcomes, vec![Outcome::NotSent; 10]);
        let why = report.unavailable.context("it did not notice")?;
        assert!(matches!(why.kind, UnavailableKind::Timeout | UnavailableKind::Blocked), "{why:?}");
    }
    other.start().await?;
    three.until_in_sync(3).await?;
    carried(&mut sink, &records, TOPIC).await;
    sent.extend(records);
    assert_there(&three, &sent).await?;
    Ok(())
}
