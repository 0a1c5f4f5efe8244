//! Jobs: work that is promised in the caller's transaction and done by a worker, each at least once, and with its effect exactly once
//! where the effect is in the same database.
//!
//! ```no_run
//! # #[derive(serde::Serialize, serde::Deserialize)] struct Welcome { user: i64 }
//! use postrider::jobs::{self, Job, JobContext, NewJob, Outcome, Worker};
//!
//! # async fn sign_up(pool: &sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! let mut tx = pool.begin().await?;
//! jobs::enqueue(&mut tx, &NewJob::new("user.welcome", &Welcome { user: 7 })?).await?;
//! tx.commit().await?; // the user and the promise to welcome them, or neither
//! # Ok(())
//! # }
//!
//! async fn welcome(context: &mut JobContext, job: Job<Welcome>) -> jobs::HandlerResult {
//!     let tx = context.transaction().await?;
//!     sqlx::query("insert into greetings values ($1)").bind(job.payload.user).execute(&mut **tx).await?;
//!     Ok(Outcome::Done) // the greeting and the end of the job are committed together
//! }
//!
//! # async fn work(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! Worker::new(pool).handle("user.welcome", welcome).run(std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! A worker holds what it has claimed by a **lease** that its heartbeat renews. If it dies or hangs, another takes over when the lease has run
//! out, and what the first one brings afterwards is refused. The functions behind this (`postrider.claim_jobs`, `postrider.finish_jobs`)
//! are open to every language; docs/jobs.md has a worker in Python.

pub mod admin;
mod beat;
mod claimer;
mod context;
pub mod cron;
mod error;
mod floor;
mod handler;
mod job;
mod link;
mod new_job;
mod run;
mod schedule;
mod settler;
mod strangers;
mod telemetry;
mod tend;
mod unsettled;
mod worker;

pub use context::JobContext;
pub use cron::{Cron, Missed};
pub use error::{Error, Result};
pub use handler::{BoxError, Handler, HandlerResult, Outcome};
pub use job::Job;
pub use new_job::{NewJob, enqueue, enqueue_many};
pub use worker::{Worker, WorkerOptions};
