//! The topics that there are, and how many partitions each has.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::Producer as _;
use tokio::task::spawn_blocking;

use super::client;
use super::config::{CreateTopics, KafkaConfig};
use super::error::{unavailable, wrong};
use super::producer::Producer;
use crate::sink::{Refusal, RefusalKind, Unavailable};

/// How long it is relied on that no partitions were added.
const FRESH: Duration = Duration::from_secs(5);

/// What is known of the topics that events went to.
#[derive(Default)]
pub(super) struct Topics(HashMap<String, Topic>);

struct Topic {
    partitions: i32,
    looked_at: Instant,
}

/// What a broker says of a topic.
enum Found {
    Partitions(i32),
    Error(RDKafkaErrorCode),
}

impl Topics {
    /// How many partitions it has, or why nothing can be sent there.
    ///
    /// Asked when nothing is on its way: a key that moves to another partition has no event that is not confirmed in the old one.
    pub(super) async fn partitions(
        &mut self,
        name: &str,
        producer: &Producer,
        config: &KafkaConfig,
    ) -> Result<Result<i32, Refusal>, Unavailable> {
        if let Some(topic) = self.0.get(name).filter(|topic| topic.looked_at.elapsed() < FRESH) {
            return Ok(Ok(topic.partitions));
        }
        let deadline = Instant::now() + config.timeout.0;
        let mut found = look(name, producer, deadline).await?;
        if let Some(wanted) = config.create_topics
            && matches!(
                found,
                Found::Error(RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic)
            )
        {
            if let Err(refusal) = create(name, wanted, config).await? {
                self.forget(name);
                return Ok(Err(refusal));
            }
            found = look_until_there(name, producer, deadline).await?;
        }
        match found {
            Found::Partitions(partitions) => {
                self.know(name, partitions);
                Ok(Ok(partitions))
            }
            Found::Error(code) => {
                self.forget(name);
                refusal(name, code).map(Err)
            }
        }
    }

    fn know(&mut self, name: &str, partitions: i32) {
        let looked_at = Instant::now();
        let before = self.0.insert(name.to_owned(), Topic { partitions, looked_at });
        if let Some(before) = before.filter(|before| before.partitions != partitions) {
            tracing::warn!(
                topic = name,
                before = before.partitions,
                now = partitions,
                "the topic has other partitions now: most keys are in another one from here on, and a consumer of both may see their newer events first"
            );
        }
    }

    /// It is looked for again when the next event goes there.
    pub(super) fn forget(&mut self, name: &str) {
        self.0.remove(name);
    }
}

/// Why its events are refused; or that nothing can be said about it now.
fn refusal(name: &str, code: RDKafkaErrorCode) -> Result<Refusal, Unavailable> {
    let (kind, reason) = match code {
        RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic => (
            RefusalKind::Unroutable,
            format!(
                "Kafka has no topic `{name}`, or does not show it to this user; make it, or set `create_topics`"
            ),
        ),
        RDKafkaErrorCode::InvalidTopic => {
            (RefusalKind::Unroutable, format!("{name:?} is no name of a topic, says Kafka"))
        }
        RDKafkaErrorCode::TopicAuthorizationFailed => {
            (RefusalKind::Rejected, format!("Kafka does not let this user write to the topic `{name}`"))
        }
        code => return Err(unavailable(code, &format!("the topic `{name}` cannot be looked at"))),
    };
    Ok(Refusal { kind, reason })
}

async fn look(name: &str, producer: &Producer, deadline: Instant) -> Result<Found, Unavailable> {
    let name = name.to_owned();
    // Of long ago.
    let _ = producer.context().take_trouble();
    producer
        .ask(deadline, move |threaded, patience| {
            let metadata = threaded.client().fetch_metadata(Some(&name), patience).ok()?;
            let topic = metadata.topics().iter().find(|topic| topic.name() == name)?;
            Some(match topic.error().map(RDKafkaErrorCode::from) {
                Some(code) => Found::Error(code),
                None => Found::Partitions(i32::try_from(topic.partitions().len()).unwrap_or(i32::MAX)),
            })
        })
        .await
}

/// The broker that is asked may not have heard of a new topic yet.
async fn look_until_there(name: &str, producer: &Producer, deadline: Instant) -> Result<Found, Unavailable> {
    loop {
        let found = look(name, producer, deadline).await?;
        if matches!(found, Found::Partitions(1..)) || Instant::now() >= deadline {
            return Ok(found);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Makes it, or says why its events are refused: what the brokers hold against one topic is no reason to keep those of the others waiting.
async fn create(
    name: &str,
    wanted: CreateTopics,
    config: &KafkaConfig,
) -> Result<Result<(), Refusal>, Unavailable> {
    let admin = admin(config)?;
    let CreateTopics { partitions, replication } = wanted;
    let topic = NewTopic::new(name, i32::from(partitions), TopicReplication::Fixed(i32::from(replication)));
    let options =
        AdminOptions::new().operation_timeout(Some(config.timeout.0)).request_timeout(Some(config.timeout.0));
    let made = admin.create_topics([&topic], &options).await;
    // It waits for its thread.
    let _ = spawn_blocking(move || drop(admin)).await;
    let what = format!("the topic `{name}` cannot be made");
    let made = made.map_err(|error| {
        unavailable(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown), &what)
    })?;
    match made.into_iter().next() {
        None | Some(Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists))) => Ok(Ok(())),
        Some(Err((_, code))) => match not_made(code) {
            Some((kind, hint)) => Ok(Err(Refusal { kind, reason: format!("{what}: {code}{hint}") })),
            None => Err(unavailable(code, &what)),
        },
    }
}

/// What the brokers hold against this one topic, and what to say of it; `None` if they could not make any now.
fn not_made(code: RDKafkaErrorCode) -> Option<(RefusalKind, &'static str)> {
    match code {
        RDKafkaErrorCode::InvalidTopic => Some((
            RefusalKind::Unroutable,
            "; Kafka reserves the name, or has a topic whose name has `.` where this one has `_`, or the other way",
        )),
        // Older brokers say of the cluster what newer ones say of the topic: that this user may make none.
        RDKafkaErrorCode::TopicAuthorizationFailed | RDKafkaErrorCode::ClusterAuthorizationFailed => {
            Some((RefusalKind::Rejected, "; allow this user `Create`, or make the topic"))
        }
        RDKafkaErrorCode::InvalidReplicationFactor | RDKafkaErrorCode::InvalidPartitions => {
            Some((RefusalKind::Rejected, "; look at `create_topics`, and at how many brokers there are"))
        }
        RDKafkaErrorCode::InvalidRequest
        | RDKafkaErrorCode::InvalidConfig
        | RDKafkaErrorCode::PolicyViolation => {
            Some((RefusalKind::Rejected, "; the brokers make no topic like that"))
        }
        _ => None,
    }
}

/// Somebody to ask what a producer cannot ask.
pub(super) fn admin(config: &KafkaConfig) -> Result<AdminClient<DefaultClientContext>, Unavailable> {
    client::client(config)?.create().map_err(|error| wrong(format!("cannot set up the client: {error}")))
}

/// Topics that Kafka keeps for itself. Where they are not there yet they could be made, with settings that Kafka cannot work with, and what is
/// written to them is taken for its own.
const RESERVED: [&str; 5] = [
    "__consumer_offsets",
    "__transaction_state",
    "__share_group_state",
    "__cluster_metadata",
    "__remote_log_metadata",
];

/// What Kafka asks of a topic's name.
pub(crate) fn check_topic(name: &str) -> Result<(), String> {
    let wrong = |why: &str| Err(format!("{name:?} is no topic of Kafka: {why}"));
    if name == "." || name == ".." {
        return wrong("a name is more than dots");
    }
    if name.len() > 249 {
        return wrong("a name has 249 characters at most");
    }
    if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)) {
        return wrong("a name has letters, digits, dots, `_` and `-` only");
    }
    if RESERVED.contains(&name) {
        return wrong("Kafka keeps that one for itself");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_event_goes_to_a_topic_of_kafka_itself() {
        for name in RESERVED {
            let why = check_topic(name).unwrap_err();
            assert!(why.contains(name) && why.contains("for itself"), "{why}");
        }
    }

    #[test]
    fn what_concerns_one_topic_is_told_from_what_concerns_all() {
        use RDKafkaErrorCode as Code;
        let kind = |code| not_made(code).map(|(kind, _)| kind);
        assert_eq!(kind(Code::InvalidTopic), Some(RefusalKind::Unroutable));
        for code in [
            Code::InvalidRequest,
            Code::PolicyViolation,
            Code::TopicAuthorizationFailed,
            Code::ClusterAuthorizationFailed,
            Code::InvalidReplicationFactor,
            Code::InvalidPartitions,
            Code::InvalidConfig,
        ] {
            assert_eq!(kind(code), Some(RefusalKind::Rejected), "{code}");
        }
        for code in [
            Code::NotController,
            Code::RequestTimedOut,
            Code::OperationTimedOut,
            Code::BrokerTransportFailure,
            Code::AllBrokersDown,
            Code::ThrottlingQuotaExceeded,
            Code::SaslAuthenticationFailed,
            Code::Unknown,
        ] {
            assert_eq!(kind(code), None, "{code}");
        }
    }

    #[test]
    fn what_is_no_name_of_a_topic_is_refused() {
        for good in ["order", "order.paid_v2-1", "0", "__consumer_offsets.x", "__order"] {
            assert_eq!(check_topic(good), Ok(()), "{good}");
        }
        for bad in [".", "..", "a b", "ä", "a/b", &"x".repeat(250)] {
            assert!(check_topic(bad).is_err(), "{bad}");
        }
    }
}
