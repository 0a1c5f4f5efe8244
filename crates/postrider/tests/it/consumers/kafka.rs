//! Behind Kafka.

use std::time::Duration;

use futures_util::future::join_all;
use postrider::consumers::kafka::Kafka as Topics;
use postrider_testkit::{Broker, Kafka};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Header, Headers as _, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};

use super::far::{Dead, Far, Letter, unique};
use super::{contract, poison, storm};

const PARTITIONS: i32 = 4;
const PATIENCE: Duration = Duration::from_secs(30);

/// `BROKERS TOPIC`
pub fn source(url: &str) -> Topics {
    let (brokers, topic) = url.split_once(' ').unwrap();
    Topics::new(brokers, [topic]).set("session.timeout.ms", "6000").set("heartbeat.interval.ms", "500")
}

pub struct Tested {
    brokers: String,
    topic: String,
    producer: FutureProducer,
    _server: Broker<Kafka>,
}

pub async fn tested() -> Tested {
    keeping(Duration::from_hours(24)).await
}

async fn keeping(time: Duration) -> Tested {
    let server = Broker::shared(Kafka::new()).await.unwrap();
    let brokers = server.bootstrap();
    let topic = unique("events");
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", &brokers);
    let admin: AdminClient<DefaultClientContext> = client.create().unwrap();
    let retention = time.as_millis().to_string();
    let new = NewTopic::new(&topic, PARTITIONS, TopicReplication::Fixed(1)).set("retention.ms", &retention);
    for made in admin.create_topics([&new], &AdminOptions::new()).await.unwrap() {
        made.unwrap();
    }
    let producer = client.set("enable.idempotence", "true").create().unwrap();
    Tested { brokers, topic, producer, _server: server }
}

impl Far for Tested {
    type Source = Topics;

    fn kind(&self) -> &'static str {
        "kafka"
    }

    fn url(&self) -> String {
        format!("{} {}", self.brokers, self.topic)
    }

    fn source(&self) -> Topics {
        source(&self.url())
    }

    fn prefix(&self) -> &'static str {
        "ce_"
    }

    async fn publish(&self, letters: &[Letter]) {
        let send = |letter: &'_ Letter| {
            let content_type = Header { key: "content-type", value: Some(letter.content_type) };
            let headers = letter
                .headers
                .iter()
                .fold(OwnedHeaders::new(), |all, (key, value)| all.insert(Header { key, value: Some(value) }))
                .insert(content_type);
            let record =
                FutureRecord::to(&self.topic).key(&letter.key).payload(&letter.body).headers(headers);
            self.producer.send_result(record).unwrap()
        };
        for letters in letters.chunks(1_000) {
            for sent in join_all(letters.iter().map(send)).await {
                sent.unwrap().unwrap();
            }
        }
    }

    async fn dead_letters(&self, consumer: &str) -> Vec<Dead> {
        let topic = format!("{consumer}.dead");
        let reading = self.reading(consumer);
        tokio::task::spawn_blocking(move || {
            let (low, high) = reading.fetch_watermarks(&topic, 0, PATIENCE).unwrap();
            let mut assignment = TopicPartitionList::new();
            assignment.add_partition_offset(&topic, 0, Offset::Offset(low)).unwrap();
            reading.assign(&assignment).unwrap();
            let mut found = Vec::new();
            while i64::try_from(found.len()).unwrap() < high - low {
                let message = reading.poll(PATIENCE).expect("a dead letter").unwrap();
                let headers = message.headers().unwrap();
                let header = |name: &str| {
                    let value =
                        headers.iter().find(|header| header.key == name).and_then(|header| header.value);
                    String::from_utf8(value.unwrap().to_vec()).unwrap()
                };
                let (reason, consumer) = (header("postrider-dead-reason"), header("postrider-dead-consumer"));
                found.push(Dead { reason, consumer, body: message.payload().unwrap().to_vec() });
            }
            found
        })
        .await
        .unwrap()
    }

    fn tells_repetitions(&self) -> bool {
        false
    }

    async fn left(&self, consumer: &str) -> u64 {
        let (reading, topic) = (self.reading(consumer), self.topic.clone());
        tokio::task::spawn_blocking(move || {
            let mut asked = TopicPartitionList::new();
            asked.add_partition_range(&topic, 0, PARTITIONS - 1);
            // A coordinator that is only just coming up says so.
            let Ok(committed) = reading.committed_offsets(asked, PATIENCE) else { return u64::MAX };
            let mut left = 0;
            for partition in committed.elements() {
                let marks = reading.fetch_watermarks(&topic, partition.partition(), PATIENCE);
                let Ok((low, high)) = marks else { return u64::MAX };
                left += match partition.offset() {
                    Offset::Offset(offset) => high - offset,
                    _ => high - low,
                };
            }
            u64::try_from(left).unwrap()
        })
        .await
        .unwrap()
    }
}

impl Tested {
    /// Of the group, and no member of it.
    fn reading(&self, consumer: &str) -> BaseConsumer {
        let mut client = ClientConfig::new();
        client
            .set("bootstrap.servers", &self.brokers)
            .set("group.id", consumer)
            .set("enable.auto.commit", "false");
        client.create().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_105_106_kafka_consumers_that_die_anywhere_book_every_event_once() {
    storm::kills(&tested().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_inbox_a_ledger_behind_kafka_is_wrong() {
    storm::without_inbox(&tested().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_107_poison_behind_kafka_is_given_up_and_its_neighbours_are_not() {
    poison::poison(&tested().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_kafka_cloudevents_in_headers_are_understood() {
    contract::binary(&tested().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_kafka_a_key_is_never_overtaken() {
    contract::order_per_key(&tested().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_kafka_what_was_not_begun_is_given_back_at_the_end() {
    contract::drained(&tested().await).await;
    contract::deadline(&tested().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_of_kafka_that_keeps_messages_for_longer_than_the_inbox_remembers_is_refused() {
    let keeps = Duration::from_hours(24 * 20);
    let tested = keeping(keeps).await;
    contract::forgetful(&tested, || tested.source(), keeps).await;
}
