//! A consumer in a process of its own.

use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use postrider::consume::{Backoff, BoxError, Outcome, Tx};
use postrider::consumer::{Consumer, Event, Source};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;
use tokio::io::AsyncReadExt as _;

use super::fatal::{End, Fatal, kill};
use super::{Payment, WRITE, kafka, nats, rabbitmq, redis};
use crate::support::PATIENCE;

const VARIABLE: &str = "POSTRIDER_TEST_CONSUMER";

/// What it is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    pub kind: String,
    pub url: String,
    pub consumer: String,
    pub database: String,
    pub slot: usize,
    pub point: Option<String>,
    pub countdown: i64,
    pub max_attempts: u32,
}

/// A process that ends when its standard input does, unless it ends before.
pub struct Worker(Child);

impl Worker {
    pub fn start(order: &Order) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "consumers::child::consumer", "--nocapture"])
            .env(VARIABLE, serde_json::to_string(order).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    /// Waits for it to end by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        let ended = async {
            loop {
                if let Some(status) = self.has_ended() {
                    return status;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.expect("the consumer did not end")
    }

    /// Asks it to end.
    pub async fn stop(mut self) -> ExitStatus {
        drop(self.0.stdin.take());
        self.ended().await
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// No test: what a child runs. Passes at once where it is not told to be one.
#[tokio::test(flavor = "multi_thread")]
async fn consumer() {
    let Ok(order) = std::env::var(VARIABLE) else { return };
    let order: Order = serde_json::from_str(&order).unwrap();
    match order.kind.as_str() {
        "redis" => run(&order, redis::source(&order.url)).await,
        "nats" => run(&order, nats::source(&order.url)).await,
        "rabbitmq" => run(&order, rabbitmq::source(&order.url)).await,
        "kafka" => run(&order, kafka::source(&order.url).instance(format!("slot-{}", order.slot))).await,
        other => panic!("no broker {other}"),
    }
}

async fn run<S: Source>(order: &Order, source: S) {
    let end = End::new(order.point.clone(), order.countdown);
    let pool = PgPoolOptions::new().max_connections(6).connect(&order.database).await.unwrap();
    let stop = async { drop(tokio::io::stdin().read_u8().await) };
    let committed = end.clone();
    let short = Duration::from_millis(20);
    Consumer::new(pool, &order.consumer, Fatal(source, end.clone()))
        .prefetch(50)
        .concurrency(4)
        .retry(Backoff { first: short, factor: 1.0, max: short, max_attempts: order.max_attempts })
        .observe(move |_| committed.pass("after commit"))
        .run(stop, async |tx: &mut Tx, event: Event<Payment>| {
            end.pass("before effect");
            match event.r#type.as_str() {
                // Not before others are at work beside it, if they may be.
                "fatal" => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    kill();
                }
                "slow" => tokio::time::sleep(Duration::from_millis(200)).await,
                "dead" => return Ok(Outcome::Dead("not for us".to_owned())),
                "broken" => return Err::<_, BoxError>("always".into()),
                "panicking" => panic!("at the payment"),
                // Nothing of its transaction will be there.
                "heedless" => drop(sqlx::query("select 1 / 0").execute(&mut **tx).await),
                "late" if event.attempt < 3 => return Ok(Outcome::Retry(short)),
                _ => {}
            }
            let write = sqlx::query(WRITE).bind(&event.id).bind(&event.key).bind(event.payload.amount);
            if let Err(error) = write.execute(&mut **tx).await
                && event.r#type != "heedless"
            {
                return Err(error.into());
            }
            end.pass("after effect");
            Ok(Outcome::Done)
        })
        .await
        .unwrap();
}
