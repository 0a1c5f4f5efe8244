//! Our own worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use postrider::jobs::{
    HandlerResult, Job, JobContext, NewJob, Outcome, Worker, WorkerOptions, enqueue, enqueue_many,
};
use postrider::schema::{self, Install};
use postrider_testkit::{Database, PostgresServer, Template};
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use tokio::sync::{Notify, mpsc};

const PAGE: u32 = 5000;

struct Left {
    jobs: AtomicI64,
    none: Notify,
}

async fn no_op(context: &mut JobContext, _job: Job<Value>) -> HandlerResult {
    let left = context.state::<Arc<Left>>();
    if left.jobs.fetch_sub(1, Ordering::Relaxed) == 1 {
        left.none.notify_one();
    }
    Ok(Outcome::Done)
}

async fn arrive(context: &mut JobContext, job: Job<i64>) -> HandlerResult {
    let arrivals = context.state::<mpsc::UnboundedSender<(i64, Instant)>>();
    let _ = arrivals.send((job.payload, Instant::now()));
    Ok(Outcome::Done)
}

/// A database with the queue; a fresh one for each run.
pub(super) struct Ours<'s> {
    server: &'s PostgresServer,
    template: Template,
}

impl<'s> Ours<'s> {
    pub(super) fn new(server: &'s PostgresServer) -> Self {
        let template = Template::new("postrider_jobs", |url| async move {
            let mut connection = PgConnection::connect(&url).await?;
            schema::install(&mut connection, &Install::default()).await?;
            connection.close().await?;
            Ok(())
        });
        Self { server, template }
    }

    /// Jobs per second.
    pub(super) async fn burn(&mut self, jobs: u32, keep: bool) -> Result<f64> {
        let database = self.filled(jobs, keep).await?;
        burn(&database, jobs, keep).await
    }

    /// Jobs per second while a transaction is held that began before, and the dead rows that are left.
    pub(super) async fn burn_held(&mut self, jobs: u32) -> Result<(f64, i64)> {
        let database = self.filled(jobs, true).await?;
        let mut holder = database.connect().await?;
        let mut held = holder.begin_with("begin isolation level repeatable read").await?;
        sqlx::query("select 1").execute(&mut *held).await?;
        // Not worked off at once: what the first half leaves behind is in the way of the second.
        let rate = burn(&database, jobs, true).await?;
        fill(&database, jobs).await?;
        let second = burn(&database, jobs, true).await?;
        let mut connection = database.connect().await?;
        sqlx::query("create extension if not exists pgstattuple").execute(&mut connection).await?;
        let dead: i64 = sqlx::query_scalar(
            "select coalesce(sum((public.pgstattuple(c.oid)).dead_tuple_count), 0)::bigint from pg_class c
             where c.relnamespace = 'postrider'::regnamespace and c.relname like 'job%' and c.relkind = 'r'",
        )
        .fetch_one(&mut connection)
        .await?;
        held.rollback().await?;
        Ok((rate.min(second), dead))
    }

    /// Milliseconds from the commit of a job to its handler; beside others, so many a second, or while nothing else happens.
    pub(super) async fn latencies(&mut self, samples: u32, beside: Option<u32>) -> Result<Vec<f64>> {
        let database = self.server.database(&self.template).await?;
        let (arrivals, mut arrived) = mpsc::unbounded_channel::<(i64, Instant)>();
        let worker = Worker::new(database.pool(2).await?).state(arrivals).handle("arrive", arrive);
        let working = tokio::spawn(worker.run(std::future::pending()));
        let load = beside.map(|rate| {
            let url = database.url();
            tokio::spawn(async move {
                let mut connection = PgConnection::connect(&url).await?;
                let mut ticks = tokio::time::interval(Duration::from_millis(10));
                loop {
                    ticks.tick().await;
                    let jobs = vec![NewJob::new("arrive", &-1)?; (rate / 100) as usize];
                    enqueue_many(&mut connection, &jobs).await?;
                }
                #[expect(unreachable_code, reason = "the type of the task")]
                Ok::<(), anyhow::Error>(())
            })
        });
        let mut connection = database.connect().await?;
        let mut taken = Vec::new();
        for number in 0..i64::from(samples) {
            // So that it has fallen asleep again, if it does.
            tokio::time::sleep(Duration::from_millis(20)).await;
            enqueue(&mut connection, &NewJob::new("arrive", &number)?).await?;
            let committed = Instant::now();
            loop {
                let Some((which, at)) = arrived.recv().await else { anyhow::bail!("the worker is gone") };
                if which == number {
                    taken.push(at.saturating_duration_since(committed).as_secs_f64() * 1000.0);
                    break;
                }
            }
        }
        working.abort();
        if let Some(load) = load {
            load.abort();
        }
        Ok(taken)
    }

    async fn filled(&mut self, jobs: u32, keep: bool) -> Result<Database> {
        let database = self.server.database(&self.template).await?;
        let mut connection = database.connect().await?;
        sqlx::query("select postrider.set_queue('default', keep_results => make_interval(days => $1))")
            .bind(i32::from(keep))
            .execute(&mut connection)
            .await?;
        fill(&database, jobs).await?;
        Ok(database)
    }
}

async fn fill(database: &Database, jobs: u32) -> Result<()> {
    let mut connection = database.connect().await?;
    for first in (0..jobs).step_by(PAGE as usize) {
        let page: Vec<NewJob> = (first..jobs.min(first + PAGE))
            .map(|n| NewJob::new("noop", &json!({ "n": n })))
            .collect::<Result<_, _>>()?;
        enqueue_many(&mut connection, &page).await?;
    }
    sqlx::query("vacuum analyze").execute(&mut connection).await?;
    sqlx::query("checkpoint").execute(&mut connection).await?;
    Ok(())
}

async fn burn(database: &Database, jobs: u32, keep: bool) -> Result<f64> {
    let left = Arc::new(Left { jobs: AtomicI64::new(i64::from(jobs)), none: Notify::new() });
    let mut connection = database.connect().await?;
    let before: i64 =
        sqlx::query_scalar("select count(*) from postrider.job_results").fetch_one(&mut connection).await?;
    let options = WorkerOptions { batch: 2000, ..WorkerOptions::default() };
    let worker =
        Worker::new(database.pool(2).await?).options(options).state(left.clone()).handle("noop", no_op);
    let begin = Instant::now();
    // It returns when everything is stored.
    worker.run(async move { left.none.notified().await }).await?;
    let seconds = begin.elapsed().as_secs_f64();
    let ended: i64 =
        sqlx::query_scalar("select count(*) from postrider.job_results").fetch_one(&mut connection).await?;
    ensure!(!keep || ended - before == i64::from(jobs), "{} results of {jobs}", ended - before);
    let open: i64 = sqlx::query_scalar("select count(*) from postrider.list_running_jobs()")
        .fetch_one(&mut connection)
        .await?;
    ensure!(open == 0, "{open} jobs are not settled");
    Ok(f64::from(jobs) / seconds)
}
