//! A worker in a process of its own: this test binary, started again, with the one test that is a worker if it is told so.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use postrider::jobs::{Cron, HandlerResult, Job, JobContext, Missed, Outcome, Worker, WorkerOptions};
use postrider_testkit::{Process, Signal};
use rand::RngExt as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::{Connection as _, PgConnection};
use tokio::signal::unix::{SignalKind, signal};

const VARIABLE: &str = "POSTRIDER_TEST_WORKER";

/// What a worker process is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Orders {
    pub name: String,
    pub database: String,
    pub lease: Duration,
    /// At which point it kills itself, after some jobs.
    pub dies: Option<Point>,
    /// The name of a schedule that it keeps, and its expression.
    pub cron: Option<(String, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Point {
    BeforeEffect,
    AfterEffect,
    AfterCommit,
}

/// Nothing, unless it was started by [`WorkerProcess::start`]: then a worker until SIGTERM.
#[test]
fn worker() {
    let Ok(orders) = std::env::var(VARIABLE) else { return };
    let orders: Orders = serde_json::from_str(&orders).unwrap();
    std::thread::spawn(|| {
        // Ends with whoever started it, whatever ended that.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(70);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut told = signal(SignalKind::terminate()).unwrap();
        let pool =
            sqlx::postgres::PgPoolOptions::new().max_connections(8).connect(&orders.database).await.unwrap();
        let options = WorkerOptions {
            name: orders.name.clone(),
            lease: Some(orders.lease),
            idle: Duration::from_millis(100),
            concurrency: 4,
            ..WorkerOptions::default()
        };
        let fuse = Fuse { left: AtomicI64::new(rand::rng().random_range(1..20)), orders: orders.clone() };
        let mut worker =
            Worker::new(pool).options(options).state(fuse).handle("effect", effect).handle("hang", hang);
        if let Some((name, expression)) = &orders.cron {
            worker = worker.cron(Cron::new(name, expression, "effect", &Value::Null).missed(Missed::All));
        }
        worker.run(async move { told.recv().await.map_or((), drop) }).await.unwrap();
    });
}

struct Fuse {
    left: AtomicI64,
    orders: Orders,
}

impl Fuse {
    /// Whether it is this one's turn; once in a process.
    fn burns(&self, point: Point) -> bool {
        self.orders.dies == Some(point) && self.left.fetch_sub(1, Ordering::SeqCst) == 1
    }

    /// Counts the hit where a rollback cannot reach it, and dies as by `kill -9`.
    async fn die(&self, point: Point) {
        let mut connection = PgConnection::connect(&self.orders.database).await.unwrap();
        sqlx::query("insert into hits values ($1)")
            .bind(format!("{point:?}"))
            .execute(&mut connection)
            .await
            .unwrap();
        Process::find(std::process::id().cast_signed()).unwrap().signal(Signal::KILL).unwrap();
        std::future::pending::<()>().await;
    }
}

async fn effect(context: &mut JobContext, job: Job<Value>) -> HandlerResult {
    let fuse = context.state::<Fuse>();
    if fuse.burns(Point::BeforeEffect) {
        fuse.die(Point::BeforeEffect).await;
    }
    let tx = context.transaction().await?;
    sqlx::query("insert into effects values ($1, $2)")
        .bind(job.id)
        .bind(job.payload.as_i64())
        .execute(&mut **tx)
        .await?;
    if fuse.burns(Point::AfterEffect) {
        fuse.die(Point::AfterEffect).await;
    }
    if fuse.burns(Point::AfterCommit) {
        // As soon as others see the effect, and before the worker can say that the claim has ended.
        tokio::spawn(async move {
            let mut connection = PgConnection::connect(&fuse.orders.database).await.unwrap();
            let is_there = "select exists (select from effects where job = $1)";
            while !sqlx::query_scalar::<_, bool>(is_there)
                .bind(job.id)
                .fetch_one(&mut connection)
                .await
                .unwrap()
            {}
            fuse.die(Point::AfterCommit).await;
        });
    }
    Ok(Outcome::Done)
}

/// Waits until somebody opens the gate, and only then has its effect.
async fn hang(context: &mut JobContext, job: Job<Value>) -> HandlerResult {
    let open = "select exists (select from gate)";
    while !sqlx::query_scalar::<_, bool>(open).fetch_one(context.pool()).await? {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let tx = context.transaction().await?;
    sqlx::query("insert into effects values ($1, 0)").bind(job.id).execute(&mut **tx).await?;
    Ok(Outcome::Done)
}

/// A worker process. Killed when it is dropped.
pub struct WorkerProcess {
    child: Child,
    process: Process,
}

impl WorkerProcess {
    pub fn start(orders: &Orders) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "jobs::process::worker", "--nocapture"])
            .env(VARIABLE, serde_json::to_string(orders).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let process = Process::find(child.id().cast_signed()).unwrap();
        Self { child, process }
    }

    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal).unwrap();
    }

    pub fn is_gone(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// `kill -9`; it is gone when this returns.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
