//! What Kafka does with a message that it has confirmed.

use std::time::Instant;

use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::Producer as _;
use tokio::task::spawn_blocking;

use super::client::SET;
use super::config::KafkaConfig;
use super::error::{unavailable, wrong};
use super::producer::Producer;
use super::topics::admin;
use crate::durability::{Durability, Weakness};
use crate::sink::Unavailable;

/// What is there: topics by name and with how many replicas the worst of their partitions has, and a broker.
struct Found {
    topics: Vec<(String, usize)>,
    broker: Option<i32>,
}

/// Asks the brokers. A topic that would be made is judged as it would be.
pub(crate) async fn durability(config: &KafkaConfig) -> Result<Durability, Unavailable> {
    let found = found(config).await?;
    let admin = admin(config)?;
    let judged = judge(config, &admin, &found).await;
    // It waits for its thread.
    let _ = spawn_blocking(move || drop(admin)).await;
    judged
}

async fn judge(
    config: &KafkaConfig,
    admin: &AdminClient<DefaultClientContext>,
    found: &Found,
) -> Result<Durability, Unavailable> {
    if let Some(missing) =
        config.topics.iter().find(|name| !found.topics.iter().any(|(there, _)| there == *name))
        && config.create_topics.is_none()
    {
        return Err(wrong(format!("Kafka has no topic `{missing}`, or does not show it to this user")));
    }
    let wanted = |name: &str| match config.topics.as_slice() {
        [] => !name.starts_with("__"),
        topics => topics.iter().any(|topic| topic == name),
    };
    let mut weaknesses = Vec::new();
    let mut note = |new: Vec<Weakness>| {
        for weakness in new {
            if !weaknesses.contains(&weakness) {
                weaknesses.push(weakness);
            }
        }
    };
    let topics: Vec<&(String, usize)> = found.topics.iter().filter(|(name, _)| wanted(name)).collect();
    let specifiers: Vec<ResourceSpecifier<'_>> =
        topics.iter().map(|(name, _)| ResourceSpecifier::Topic(name)).collect();
    for (resource, (_, replicas)) in ask(config, admin, &specifiers).await?.into_iter().zip(&topics) {
        note(resource.map_or(vec![Weakness::KafkaUnknown], |resource| of_topic(&resource, *replicas)));
    }
    let is_to_be_made = config.topics.iter().any(|name| !topics.iter().any(|(there, _)| there == name));
    if let Some(made) = config.create_topics
        && (topics.is_empty() || is_to_be_made)
    {
        let broker: Vec<_> = found.broker.map(ResourceSpecifier::Broker).into_iter().collect();
        let resource = ask(config, admin, &broker).await?.into_iter().next().flatten();
        let replicas = usize::from(made.replication);
        note(resource.map_or(vec![Weakness::KafkaUnknown], |resource| of_topic(&resource, replicas)));
    } else if topics.is_empty() {
        note(vec![Weakness::KafkaUnknown]);
    }
    Ok(Durability::new(weaknesses))
}

async fn found(config: &KafkaConfig) -> Result<Found, Unavailable> {
    let producer = Producer::open(config, SET).await?;
    let found = producer
        .ask(Instant::now() + config.timeout.0, |threaded, patience| {
            let metadata = threaded.client().fetch_metadata(None, patience).ok()?;
            let topics = metadata.topics().iter().filter(|topic| topic.error().is_none());
            let replicas = topics.map(|topic| {
                let fewest = topic.partitions().iter().map(|partition| partition.replicas().len()).min();
                (topic.name().to_owned(), fewest.unwrap_or(0))
            });
            let topics = replicas.collect();
            Some(Found {
                topics,
                broker: metadata.brokers().first().map(rdkafka::metadata::MetadataBroker::id),
            })
        })
        .await;
    producer.end().await;
    found
}

/// The settings of each; `None` where we may not look.
async fn ask(
    config: &KafkaConfig,
    admin: &AdminClient<DefaultClientContext>,
    of: &[ResourceSpecifier<'_>],
) -> Result<Vec<Option<ConfigResource>>, Unavailable> {
    if of.is_empty() {
        return Ok(Vec::new());
    }
    let options = AdminOptions::new().request_timeout(Some(config.timeout.0));
    let told = admin.describe_configs(of, &options).await.map_err(|error| {
        let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
        unavailable(code, "Kafka does not tell its settings")
    })?;
    Ok(told.into_iter().map(Result::ok).collect())
}

/// How long messages are kept (`retention.ms`) is no weakness: that is what a topic is for. A broker has the same settings, for topics
/// that do not say otherwise.
fn of_topic(resource: &ConfigResource, replicas: usize) -> Vec<Weakness> {
    let value = |names: [&str; 2]| {
        let entry = names.iter().find_map(|name| resource.get(name));
        entry.and_then(|entry| entry.value.as_deref())
    };
    let least = value(["min.insync.replicas"; 2]).and_then(|value| value.parse::<u32>().ok());
    let unclean = value(["unclean.leader.election.enable"; 2]);
    let limit = value(["retention.bytes", "log.retention.bytes"]);
    let cleanup = value(["cleanup.policy", "log.cleanup.policy"]);
    let (Some(least), Some(unclean), Some(limit), Some(cleanup)) = (least, unclean, limit, cleanup) else {
        return vec![Weakness::KafkaUnknown];
    };
    let found = [
        (replicas < 2).then_some(Weakness::KafkaOneReplica),
        (replicas >= 2 && least < 2).then_some(Weakness::KafkaOneInSync),
        (unclean == "true").then_some(Weakness::KafkaUncleanElection),
        (cleanup.contains("delete") && limit != "-1").then_some(Weakness::KafkaLimited),
        cleanup.contains("compact").then_some(Weakness::KafkaCompacts),
    ];
    found.into_iter().flatten().collect()
}
