//! What a real broker cannot be made to say.

use std::time::Duration;

use anyhow::{Context as _, Result};
use postrider::log::Record;
use postrider_relay::sinks::kafka::{KafkaConfig, KafkaSink};
use postrider_relay::units::Span;
use postrider_relay::{Outcome, UnavailableKind};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use uuid::Uuid;

use super::super::{carried, deliver, delivered, event};
use super::{config, firsts, ids, large, opened, stored};

const TOPIC: &str = "order";

fn cluster(brokers: i32, partitions: i32) -> Result<MockCluster<'static, DefaultProducerContext>> {
    let cluster = MockCluster::new(brokers)?;
    cluster.create_topic(TOPIC, partitions, brokers)?;
    Ok(cluster)
}

fn events(keys: &[&str], count: usize) -> Vec<Record> {
    (0..count).map(|at| event(keys[at % keys.len()])).collect()
}

/// The leader changes, and brokers go and come.
#[tokio::test]
async fn fault_76_kafka_repeats_nothing_when_a_partition_changes_its_leader() -> Result<()> {
    let cluster = cluster(3, 1)?;
    let brokers = cluster.bootstrap_servers();
    let mut sink = KafkaSink::open(config(&brokers)).await.unwrap();
    let mut all = Vec::new();
    for round in 0..9 {
        let records = events(&["a", "b"], 40);
        let leader = round % 3 + 1;
        if round % 2 == 0 {
            cluster.partition_leader(TOPIC, 0, Some(leader))?;
        } else {
            cluster.request_errors(
                RDKafkaApiKey::Produce,
                &[RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION],
            );
            cluster.broker_down(leader)?;
            cluster.partition_leader(TOPIC, 0, Some(leader % 3 + 1))?;
        }
        delivered(&mut sink, &records, TOPIC).await;
        cluster.broker_up(leader)?;
        all.extend(records);
    }
    let there: Vec<Uuid> = stored(&brokers, TOPIC).await?.into_iter().map(|message| message.id).collect();
    assert_eq!(there, all.iter().map(|record| record.id).collect::<Vec<_>>());
    Ok(())
}

/// Of two partitions, one is with a broker that takes longer than we wait.
#[tokio::test]
async fn fault_77_kafka_stops_a_key_at_what_was_not_confirmed_in_time() -> Result<()> {
    let cluster = cluster(2, 2)?;
    for (partition, leader) in [(0, 1), (1, 2)] {
        cluster.partition_leader(TOPIC, partition, Some(leader))?;
    }
    let brokers = cluster.bootstrap_servers();
    let patient = config(&brokers);
    let mut sink = KafkaSink::open(patient.clone()).await.unwrap();
    let warm = events(&["a", "b", "c", "d"], 8);
    delivered(&mut sink, &warm, TOPIC).await;
    let slow: Vec<String> =
        stored(&brokers, TOPIC).await?.into_iter().filter(|m| m.partition == 0).map(|m| m.key).collect();
    let slow_key = slow.first().context("no key is in the first partition")?.clone();
    drop(sink);

    let impatient = KafkaConfig { timeout: Span(Duration::from_secs(8)), ..patient.clone() };
    let mut sink = opened(&impatient).await;
    carried(&mut sink, &events(&["a", "b", "c", "d"], 8), TOPIC).await;
    cluster.broker_round_trip_time(1, Duration::from_secs(30))?;
    let records = events(&["a", "b", "c", "d"], 40);
    let report = deliver(&mut sink, &records, TOPIC).await;
    let why = report.unavailable.context("it did not notice")?;
    assert!(matches!(why.kind, UnavailableKind::Timeout | UnavailableKind::Connection), "{why:?}");
    for (record, outcome) in records.iter().zip(&report.outcomes) {
        let is_slow = record.key.as_ref().is_some_and(|key| slow.contains(key));
        let expected = if is_slow { Outcome::NotSent } else { Outcome::Delivered };
        assert_eq!(*outcome, expected, "{:?}", record.key);
    }
    cluster.broker_round_trip_time(1, Duration::ZERO)?;
    let again: Vec<Record> = records
        .iter()
        .zip(&report.outcomes)
        .filter(|(_, outcome)| **outcome == Outcome::NotSent)
        .map(|(record, _)| record.clone())
        .collect();
    let mut sink = KafkaSink::open(patient).await.unwrap();
    delivered(&mut sink, &again, TOPIC).await;
    let there = firsts(&stored(&brokers, TOPIC).await?, &slow_key);
    let expected = ids(&records, &slow_key);
    assert!(there.ends_with(&expected), "{there:?} does not end with {expected:?}");
    Ok(())
}

/// The producer stops for good, and another sends what was not confirmed, in order, in the same delivery.
#[tokio::test]
async fn fault_78_kafka_goes_on_with_a_new_producer_after_a_fatal_error() -> Result<()> {
    for error in [
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_PRODUCER_ID,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH,
    ] {
        let cluster = cluster(1, 1)?;
        let brokers = cluster.bootstrap_servers();
        let mut sink = KafkaSink::open(config(&brokers)).await.unwrap();
        let first = events(&["a", "b"], 20);
        delivered(&mut sink, &first, TOPIC).await;
        cluster.request_errors(RDKafkaApiKey::Produce, &[error]);
        let second = events(&["a", "b"], 20);
        delivered(&mut sink, &second, TOPIC).await;
        let there = stored(&brokers, TOPIC).await?;
        for key in ["a", "b"] {
            assert_eq!(firsts(&there, key), [ids(&first, key), ids(&second, key)].concat(), "{error:?}");
        }
    }
    Ok(())
}

/// What is on its way when the producer stops comes back to it, and is not sent by it any more: another does, in the same delivery.
#[tokio::test]
async fn fault_78_what_comes_back_to_a_kafka_producer_that_has_stopped_is_sent_by_another() -> Result<()> {
    let cluster = cluster(1, 2)?;
    let brokers = cluster.bootstrap_servers();
    // What fills a set is sent at once, and the rest that much later.
    let lingering = KafkaConfig { linger: Span(Duration::from_millis(200)), ..config(&brokers) };
    let mut sink = KafkaSink::open(lingering).await.unwrap();
    let keys = ["21", "abc"];
    delivered(&mut sink, &keys.map(event), TOPIC).await;
    let there: Vec<_> = stored(&brokers, TOPIC).await?.into_iter().map(|m| (m.partition, m.key)).collect();
    assert_eq!(there, [(0, keys[0].to_owned()), (1, keys[1].to_owned())], "each has a partition of its own");
    // Longer than that: both are on their way when the first is answered, and the second is answered later.
    cluster.broker_round_trip_time(1, Duration::from_millis(400))?;
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        ],
    );
    delivered(&mut sink, &[large(keys[0], 1_000_000), event(keys[1])], TOPIC).await;
    Ok(())
}

/// Of two sets of a key the first is to be sent again, and the second is refused, which ends the producer. Whether the second is really
/// meant is tried when the first is there.
#[tokio::test]
async fn fault_81_what_kafka_may_have_refused_is_not_sent_before_what_precedes_it() -> Result<()> {
    let cluster = cluster(1, 1)?;
    let brokers = cluster.bootstrap_servers();
    let mut sink = KafkaSink::open(config(&brokers)).await.unwrap();
    delivered(&mut sink, &[event("a")], TOPIC).await;
    // Both are on their way when the first is answered.
    cluster.broker_round_trip_time(1, Duration::from_millis(300))?;
    cluster.request_errors(
        RDKafkaApiKey::Produce,
        &[
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
            RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE,
        ],
    );
    // Two of them are more than a set.
    let records = [large("a", 600_000), large("a", 600_000)];
    delivered(&mut sink, &records, TOPIC).await;
    cluster.broker_round_trip_time(1, Duration::ZERO)?;
    assert_eq!(firsts(&stored(&brokers, TOPIC).await?, "a")[1..], ids(&records, "a"));
    Ok(())
}

/// Not enough brokers are in sync: waited for, nothing is kept, nothing is lost. A real broker alone counts itself as enough.
#[tokio::test]
async fn fault_79_kafka_without_enough_replicas_is_waited_for() -> Result<()> {
    let cluster = cluster(1, 1)?;
    let brokers = cluster.bootstrap_servers();
    let impatient = KafkaConfig { timeout: Span(Duration::from_secs(2)), ..config(&brokers) };
    let mut sink = opened(&impatient).await;
    let first = events(&["a", "b"], 4);
    carried(&mut sink, &first, TOPIC).await;
    for error in [
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ] {
        cluster.request_errors(RDKafkaApiKey::Produce, &[error; 1000]);
        let records = events(&["a", "b"], 10);
        let report = deliver(&mut sink, &records, TOPIC).await;
        assert_eq!(report.outcomes, vec![Outcome::NotSent; 10]);
        let why = report.unavailable.context("it did not notice")?;
        assert!(matches!(why.kind, UnavailableKind::Timeout | UnavailableKind::Blocked), "{why:?}");
        cluster.clear_request_errors(RDKafkaApiKey::Produce);
        carried(&mut sink, &records, TOPIC).await;
        let there = stored(&brokers, TOPIC).await?;
        for key in ["a", "b"] {
            assert!(firsts(&there, key).ends_with(&ids(&records, key)), "{error:?}");
        }
    }
    Ok(())
}
