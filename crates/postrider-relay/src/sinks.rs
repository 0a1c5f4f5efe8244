//! The sinks there are: one folder each, one arm here.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::durability::{Durability, Weakness};
use crate::sink::{Sink, Unavailable};

#[cfg(any(feature = "nats", feature = "rabbitmq"))]
mod chains;
mod custom;
#[cfg(any(feature = "file", feature = "stdout"))]
mod hand;
#[cfg(any(feature = "file", feature = "stdout"))]
mod lines;
#[cfg(any(feature = "kafka", feature = "nats"))]
mod percent;
#[cfg(all(test, any(feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis")))]
mod planned;
#[cfg(any(feature = "kafka", feature = "redis"))]
mod rounds;

#[cfg(feature = "file")]
pub mod file;
#[cfg(feature = "jobs")]
pub mod jobs;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "null")]
pub mod null;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "stdout")]
pub mod stdout;

pub use custom::Custom;

/// Where a sink goes, as it stands in the configuration.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[non_exhaustive]
pub enum Target {
    /// Lines of JSON at the end of a file.
    #[cfg(feature = "file")]
    File(file::FileConfig),
    /// Jobs of a queue in PostgreSQL.
    #[cfg(feature = "jobs")]
    Jobs(jobs::JobsConfig),
    /// Messages of Kafka topics.
    #[cfg(feature = "kafka")]
    Kafka(kafka::KafkaConfig),
    /// Messages of a NATS `JetStream` stream.
    #[cfg(feature = "nats")]
    Nats(nats::NatsConfig),
    /// Builds every message and drops it: for measuring.
    #[cfg(feature = "null")]
    Null(null::NullConfig),
    /// Messages of a RabbitMQ exchange.
    #[cfg(feature = "rabbitmq")]
    RabbitMq(rabbitmq::RabbitMqConfig),
    /// Entries of Redis streams.
    #[cfg(feature = "redis")]
    Redis(redis::RedisConfig),
    /// Lines of JSON on the standard output.
    #[cfg(feature = "stdout")]
    Stdout(stdout::StdoutConfig),
    /// A sink of your own, in a program that embeds the relay.
    #[serde(skip)]
    Custom(Custom),
}

impl Target {
    /// What it is called in the configuration.
    pub fn kind(&self) -> &'static str {
        match self {
            #[cfg(feature = "file")]
            Self::File(_) => "file",
            #[cfg(feature = "jobs")]
            Self::Jobs(_) => "jobs",
            #[cfg(feature = "kafka")]
            Self::Kafka(_) => "kafka",
            #[cfg(feature = "nats")]
            Self::Nats(_) => "nats",
            #[cfg(feature = "null")]
            Self::Null(_) => "null",
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMq(_) => "rabbitmq",
            #[cfg(feature = "redis")]
            Self::Redis(_) => "redis",
            Self::Custom(custom) => custom.kind(),
            #[cfg(feature = "stdout")]
            Self::Stdout(_) => "stdout",
        }
    }

    /// What in its settings can never work: the key, and why. The address is not repeated, it may hold a password.
    pub fn objections(&self) -> Vec<(&'static str, String)> {
        match self {
            #[cfg(feature = "file")]
            Self::File(config) => config.objections(),
            #[cfg(feature = "jobs")]
            Self::Jobs(config) => config.objections(),
            #[cfg(feature = "kafka")]
            Self::Kafka(config) => config.objections(),
            #[cfg(feature = "nats")]
            Self::Nats(config) => config.objections(),
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMq(config) => config.objections(),
            #[cfg(feature = "redis")]
            Self::Redis(config) => config.objections(),
            _ => Vec::new(),
        }
    }

    /// Opens it for no sink in particular: to see whether it can be.
    pub async fn open(&self) -> Result<Box<dyn Sink>, Unavailable> {
        self.open_for("").await
    }

    /// Opens it for the sink of this name.
    pub async fn open_for(&self, sink: &str) -> Result<Box<dyn Sink>, Unavailable> {
        #[cfg(not(feature = "nats"))]
        let _ = sink;
        match self {
            #[cfg(feature = "file")]
            Self::File(config) => Ok(Box::new(file::FileSink::open(config.clone()).await?)),
            #[cfg(feature = "jobs")]
            Self::Jobs(config) => Ok(Box::new(jobs::JobsSink::open(config.clone()).await?)),
            #[cfg(feature = "kafka")]
            Self::Kafka(config) => Ok(Box::new(kafka::KafkaSink::open(config.clone()).await?)),
            #[cfg(feature = "nats")]
            Self::Nats(config) => Ok(Box::new(nats::NatsSink::open(config.clone(), sink).await?)),
            #[cfg(feature = "null")]
            Self::Null(_) => Ok(Box::new(null::Null)),
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMq(config) => Ok(Box::new(rabbitmq::RabbitMqSink::open(config.clone()).await?)),
            #[cfg(feature = "redis")]
            Self::Redis(config) => Ok(Box::new(redis::RedisSink::open(config.clone()).await?)),
            Self::Custom(custom) => custom.open().await,
            #[cfg(feature = "stdout")]
            Self::Stdout(_) => Ok(Box::new(stdout::Stdout::open()?)),
        }
    }

    /// What its confirmations are worth, by what its server says of itself just now; `None` of a sink that is your own.
    pub async fn durability(&self) -> Result<Option<Durability>, Unavailable> {
        let durability = match self {
            #[cfg(feature = "file")]
            Self::File(config) => {
                let unsynced = (config.fsync == file::Fsync::Never).then_some(Weakness::FileNotSynced);
                Durability::new([Weakness::FileOnOneDisk].into_iter().chain(unsynced))
            }
            #[cfg(feature = "jobs")]
            Self::Jobs(_) => Durability::new([]),
            #[cfg(feature = "kafka")]
            Self::Kafka(config) => kafka::durability(config).await?,
            #[cfg(feature = "nats")]
            Self::Nats(config) => nats::durability(config).await?,
            #[cfg(feature = "null")]
            Self::Null(_) => Durability::new([Weakness::NotKept]),
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMq(config) => rabbitmq::durability(config).await?,
            #[cfg(feature = "redis")]
            Self::Redis(config) => redis::durability(config).await?,
            Self::Custom(_) => return Ok(None),
            #[cfg(feature = "stdout")]
            Self::Stdout(_) => Durability::new([Weakness::NotKept]),
        };
        Ok(Some(durability))
    }

    /// Whether it has destinations that a routing template can name.
    pub fn has_destinations(&self) -> bool {
        match self {
            #[cfg(feature = "file")]
            Self::File(_) => false,
            Self::Custom(_) => true,
            #[cfg(feature = "jobs")]
            Self::Jobs(_) => true,
            #[cfg(feature = "kafka")]
            Self::Kafka(_) => true,
            #[cfg(feature = "nats")]
            Self::Nats(_) => true,
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMq(_) => true,
            #[cfg(feature = "redis")]
            Self::Redis(_) => true,
            // Drops whatever it is given, and so can measure a template too.
            #[cfg(feature = "null")]
            Self::Null(_) => true,
            #[cfg(feature = "stdout")]
            Self::Stdout(_) => false,
        }
    }

    /// The routing template it has by default; empty where a sink has no destinations.
    pub fn default_route(&self) -> &'static str {
        match self {
            #[cfg(feature = "jobs")]
            Self::Jobs(_) => jobs::ROUTE,
            #[cfg(feature = "kafka")]
            Self::Kafka(_) => kafka::ROUTE,
            #[cfg(feature = "nats")]
            Self::Nats(_) => nats::ROUTE,
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMq(_) => rabbitmq::ROUTE,
            #[cfg(feature = "redis")]
            Self::Redis(_) => redis::ROUTE,
            _ => "",
        }
    }

    /// How many events may be sent and not yet settled, unless somebody says otherwise. Kafka confirms a batch at a time, whatever its size, and
    /// catches up by half as fast again with five times as many. NATS has nothing to do from the last of a batch to the first of the next either, and
    /// keeps only once what is sent twice; a server lets 10,000 wait for a stream. Redis writes a batch to its disk at once: with twice as many it
    /// was a sixth faster.
    pub fn usual_in_flight(&self) -> u32 {
        match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(_) => 5000,
            #[cfg(feature = "nats")]
            Self::Nats(_) => 4000,
            #[cfg(feature = "redis")]
            Self::Redis(_) => 2000,
            _ => 1000,
        }
    }

    /// What it asks of a destination's name beyond what every name must be (not empty, no control characters, 255 bytes at most).
    pub fn check_destination(&self, name: &str) -> Result<(), String> {
        match self {
            #[cfg(feature = "kafka")]
            Self::Kafka(_) => kafka::check_topic(name),
            #[cfg(feature = "nats")]
            Self::Nats(_) => nats::check_subject(name),
            _ => {
                let _ = name;
                Ok(())
            }
        }
    }

    /// Whether it is opened before there is anything to deliver, so that trouble shows early: every one that can be away. A sink of your
    /// own is opened when it is needed.
    pub(crate) fn opens_early(&self) -> bool {
        match self {
            Self::Custom(_) => false,
            #[cfg(feature = "null")]
            Self::Null(_) => false,
            #[cfg(feature = "stdout")]
            Self::Stdout(_) => false,
            #[allow(unreachable_patterns, reason = "with none of the others built in")]
            _ => true,
        }
    }

    /// Whether one relay has to hold all lanes: two could not write to one file.
    pub fn is_exclusive(&self) -> bool {
        match self {
            Self::Custom(custom) => custom.is_exclusive(),
            #[cfg(feature = "file")]
            Self::File(_) => true,
            #[cfg(feature = "jobs")]
            Self::Jobs(_) => false,
            #[cfg(feature = "kafka")]
            Self::Kafka(_) => false,
            #[cfg(feature = "nats")]
            Self::Nats(_) => false,
            #[cfg(feature = "null")]
            Self::Null(_) => false,
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMq(_) => false,
            #[cfg(feature = "redis")]
            Self::Redis(_) => false,
            #[cfg(feature = "stdout")]
            Self::Stdout(_) => true,
        }
    }
}
