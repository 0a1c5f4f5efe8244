//! The brokers that a [`Consumer`](crate::consumer::Consumer) can be behind, each with its feature.

#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(feature = "redis")]
pub mod redis;

/// How long dead letters are kept where nothing else is said.
#[cfg(any(feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis"))]
const DEAD_LETTERS: std::time::Duration = std::time::Duration::from_hours(7 * 24);
