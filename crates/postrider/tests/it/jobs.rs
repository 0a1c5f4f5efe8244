//! The job queue: what SQL promises, what the worker promises, and what faults do to it.

mod bloat;
mod cancelling;
mod claims;
mod enqueue;
mod keys;
mod kills;
mod leases;
pub mod metrics;
mod outcomes;
mod patience;
mod process;
mod python;
mod rings;
mod schedules;
mod storm;
mod suspects;
mod working;

use std::time::Duration;

use postrider::jobs::{Worker, WorkerOptions};
use sqlx::{PgConnection, PgPool};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::support::PATIENCE;

/// A worker in this process, until it is stopped.
pub struct Working {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<postrider::jobs::Result<()>>,
}

impl Working {
    pub fn start(worker: Worker) -> Self {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(worker.run(async {
            let _ = stopped.await;
        }));
        Self { stop: Some(stop), task }
    }

    /// Ends it without a word, as it is.
    pub fn abort(self) {
        self.task.abort();
    }

    pub async fn stop(mut self) {
        drop(self.stop.take());
        tokio::time::timeout(PATIENCE, &mut self.task).await.expect("it did not stop").unwrap().unwrap();
    }
}

/// Options with which nothing takes long.
pub fn quick() -> WorkerOptions {
    WorkerOptions {
        lease: Some(Duration::from_secs(10)),
        idle: Duration::from_millis(200),
        ..WorkerOptions::default()
    }
}

/// Waits until a question is answered with true.
pub async fn until(connection: &mut PgConnection, question: &'static str) {
    let waiting = async {
        loop {
            if sqlx::query_scalar::<_, bool>(question).fetch_one(&mut *connection).await.unwrap() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, waiting).await.is_ok(), "never true: {question}");
}

pub async fn one<T>(connection: &mut PgConnection, question: &'static str) -> T
where
    T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres> + Send + Unpin,
{
    sqlx::query_scalar(question).fetch_one(connection).await.unwrap()
}

/// What a claim brings: claim, id and kind of each job.
pub async fn claim(connection: &mut PgConnection, most: i32) -> Vec<(i64, i64, String)> {
    sqlx::query_as("select claim, id, kind from postrider.claim_jobs(most => $1)")
        .bind(most)
        .fetch_all(connection)
        .await
        .unwrap()
}

pub async fn kinds(connection: &mut PgConnection, most: i32) -> Vec<String> {
    claim(connection, most).await.into_iter().map(|(_, _, kind)| kind).collect()
}

pub async fn finish(connection: &mut PgConnection, claim: i64) -> Result<(), sqlx::Error> {
    sqlx::query("select postrider.finish_jobs($1)").bind(claim).execute(connection).await.map(drop)
}

/// Claims and finishes what is there; the kinds of it.
pub async fn work_off(connection: &mut PgConnection) -> Vec<String> {
    let claimed = claim(connection, 1000).await;
    let claims: std::collections::BTreeSet<i64> = claimed.iter().map(|job| job.0).collect();
    for number in claims {
        finish(connection, number).await.unwrap();
    }
    claimed.into_iter().map(|job| job.2).collect()
}

pub async fn pool(database: &postrider_testkit::Database) -> PgPool {
    database.pool(10).await.unwrap()
}
