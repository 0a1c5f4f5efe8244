//! Emit events in your own PostgreSQL transaction, and read every committed one, in order per key.
//!
//! ```no_run
//! # #[cfg(feature = "sqlx")]
//! # async fn pay(pool: &sqlx::PgPool, order: i64) -> Result<(), Box<dyn std::error::Error>> {
//! let mut transaction = pool.begin().await?;
//! sqlx::query("update orders set paid_at = now() where id = $1").bind(order).execute(&mut *transaction).await?;
//!
//! let event = postrider::Event::new("order.paid", &serde_json::json!({ "order": order }))?.key(order);
//! postrider::emit(&mut transaction, &event).await?;
//!
//! transaction.commit().await?; // the change and its event, or neither
//! # Ok(())
//! # }
//! ```
//!
//! | feature | for |
//! |---|---|
//! | `sqlx` | emitting in an open sqlx transaction |
//! | `tokio-postgres` | emitting in an open tokio-postgres transaction |
//! | `log` | installing the schema, reading the log, capturing tables, the inbox |
//! | `consume` | handling events exactly once: subscriptions to the log |
//! | `jobs` | working jobs off: [`jobs`] |
//! | `rabbitmq`, `kafka`, `nats`, `redis` | handling events of that broker exactly once: consumers |
#![forbid(unsafe_code)]

#[cfg(feature = "amqp")]
#[doc(hidden)]
pub mod amqp;
#[cfg(feature = "log")]
pub mod capture;
#[cfg(feature = "consume")]
pub mod consume;
#[cfg(feature = "consumer")]
pub mod consumer;
#[cfg(feature = "consumer")]
pub mod consumers;
mod context;
#[cfg(feature = "log")]
pub mod declared;
mod event;
#[cfg(feature = "log")]
pub mod inbox;
#[cfg(feature = "jobs")]
pub mod jobs;
#[cfg(feature = "log")]
pub mod log;
#[cfg(feature = "log")]
pub mod outbox;
pub mod producer;
#[cfg(feature = "log")]
pub mod schema;

pub use context::Context;
pub use event::Event;
pub use producer::{
    Changed, EmitError, Emitted, Expected, Refusal, Transaction, assert_emitted, emit, emit_many, emitted,
};

/// The examples of the README are compiled like those of the documentation.
#[cfg(all(doctest, feature = "consume"))]
#[doc = include_str!("../../../README.md")]
pub struct Readme;
