//! Consumers as processes of their own, which kill themselves with SIGKILL at named points.

use std::io::Read as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use postrider::consume::{Backoff, BoxError, Message, Outcome, Subscription, Tx};
use postrider::inbox;
use postrider::log::Start;
use postrider_testkit::{Process, Signal};
use rand::RngExt as _;
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection as _, PgConnection, Row as _};
use tokio::io::AsyncReadExt as _;

const VARIABLE: &str = "POSTRIDER_TEST_CONSUMER";

/// How a consumer is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// `Subscription`.
    Rust,
    /// `next_batch` and `finish_batch`, as any language does.
    Sql,
    /// As `Rust`, but the effect is in a transaction of its own: the safety step is left out.
    EffectApart,
    /// A message from an at-least-once queue, with the inbox.
    Inbox,
    /// As `Inbox`, without asking it.
    NoInbox,
    /// `Subscription`, whose handler aborts the process at some events.
    Aborting,
    /// The same with whole batches.
    AbortingBatches,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Order {
    pub database: String,
    pub kind: Kind,
    /// Where it may die.
    pub points: Vec<String>,
}

/// All points.
pub const POINTS: [&str; 3] = ["before effect", "after effect", "after commit"];

/// Dies here, sometimes, and leaves word.
fn point(order: &Order, name: &str) {
    if order.points.iter().any(|wanted| wanted == name) && rand::rng().random_bool(0.1) {
        // The last word has to be out before the end.
        eprintln!("died {name}");
        let _ = Process::find(std::process::id().cast_signed()).map(|this| this.signal(Signal::KILL));
        loop {
            std::thread::park();
        }
    }
}

/// A consumer, when it is started as one.
#[tokio::test]
async fn consumer() {
    let Ok(order) = std::env::var(VARIABLE) else { return };
    let order: Order = serde_json::from_str(&order).unwrap();
    match order.kind {
        Kind::Rust | Kind::EffectApart => rust(order).await,
        Kind::Sql => sql(order).await,
        Kind::Inbox | Kind::NoInbox => queue(order).await,
        Kind::Aborting | Kind::AbortingBatches => aborting(order).await,
    }
}

async fn note(connection: &mut PgConnection, id: &str, amount: i64) -> sqlx::Result<()> {
    sqlx::query("insert into ledger (event, amount) values ($1, $2)")
        .bind(id)
        .bind(amount)
        .execute(connection)
        .await?;
    Ok(())
}

#[derive(Deserialize)]
struct Payload {
    amount: i64,
}

async fn rust(order: Order) {
    let pool = PgPoolOptions::new().max_connections(4).connect(&order.database).await.unwrap();
    let subscription = Subscription::new(pool.clone(), "ledger")
        .start(Start::Earliest)
        .batch(50)
        .workers(2)
        .idle(Duration::from_millis(1), Duration::from_millis(20))
        .observe({
            let order = order.clone();
            move |_| point(&order, "after commit")
        });
    let handler = async |tx: &mut Tx, events: &[Message]| {
        point(&order, "before effect");
        for event in events {
            let amount = event.json::<Payload>()?.amount;
            if order.kind == Kind::EffectApart {
                note(&mut *pool.acquire().await?, &event.id.to_string(), amount).await?;
            } else {
                note(tx, &event.id.to_string(), amount).await?;
            }
        }
        point(&order, "after effect");
        Ok::<_, BoxError>(Outcome::Done)
    };
    subscription.run_batches(std::future::pending(), handler).await.unwrap();
}

/// So often one event may end the process.
pub const MOST_ABORTS: u32 = 3;

async fn aborting(order: Order) {
    let pool = PgPoolOptions::new().max_connections(2).connect(&order.database).await.unwrap();
    let short = Duration::from_millis(5);
    let subscription = Subscription::new(pool, "ledger")
        .start(Start::Earliest)
        .batch(20)
        .workers(2)
        .retry(Backoff { first: short, factor: 1.0, max: short, max_attempts: MOST_ABORTS });
    let handler = async |tx: &mut Tx, event: &Message| {
        match event.r#type.as_str() {
            // Not before others are at work beside it, if they may be.
            "fatal" => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                std::process::abort();
            }
            "slow" => tokio::time::sleep(Duration::from_millis(200)).await,
            "panicking" => panic!("at the payment"),
            _ => {}
        }
        note(tx, &event.id.to_string(), event.json::<Payload>()?.amount).await?;
        Ok::<_, BoxError>(Outcome::Done)
    };
    let stop = async { drop(tokio::io::stdin().read_u8().await) };
    let ended = match order.kind {
        Kind::AbortingBatches => {
            let batch = async |tx: &mut Tx, events: &[Message]| {
                for event in events {
                    handler(tx, event).await?;
                }
                Ok::<_, BoxError>(Outcome::Done)
            };
            subscription.run_batches(stop, batch).await
        }
        _ => subscription.run(stop, handler).await,
    };
    ended.unwrap();
}

async fn sql(order: Order) {
    let mut connection = PgConnection::connect(&order.database).await.unwrap();
    loop {
        let mut transaction = connection.begin().await.unwrap();
        let batch = sqlx::query("select token, id::text, (payload ->> 'amount')::bigint as amount from postrider.next_batch('ledger', 50)")
            .fetch_all(&mut *transaction)
            .await
            .unwrap();
        if batch.is_empty() {
            transaction.rollback().await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        point(&order, "before effect");
        for event in &batch {
            note(&mut transaction, event.get("id"), event.get("amount")).await.unwrap();
        }
        point(&order, "after effect");
        let token: String = batch[0].get("token");
        sqlx::query("select postrider.finish_batch('ledger', $1)")
            .bind(token)
            .execute(&mut *transaction)
            .await
            .unwrap();
        transaction.commit().await.unwrap();
        point(&order, "after commit");
    }
}

/// A queue that forgets a message only when it is acknowledged, and gives it to anybody until then, also to two at once.
async fn queue(order: Order) {
    let mut connection = PgConnection::connect(&order.database).await.unwrap();
    loop {
        let message: Option<(String, i64)> =
            sqlx::query_as("select event, amount from queue order by random() limit 1")
                .fetch_optional(&mut connection)
                .await
                .unwrap();
        let Some((id, amount)) = message else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        point(&order, "before effect");
        let mut transaction = connection.begin().await.unwrap();
        if order.kind == Kind::NoInbox || inbox::first_time(&mut transaction, "ledger", &id).await.unwrap() {
            note(&mut transaction, &id, amount).await.unwrap();
        }
        point(&order, "after effect");
        transaction.commit().await.unwrap();
        point(&order, "after commit");
        sqlx::query("delete from queue where event = $1").bind(id).execute(&mut connection).await.unwrap();
    }
}

/// A process that consumes; killed when it is dropped.
pub struct Consumer {
    child: Child,
    /// What it says, read as it comes: one that nobody listens to would stand still.
    words: Option<JoinHandle<String>>,
}

impl Consumer {
    pub fn start(order: &Order) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "consume::child::consumer", "--nocapture"])
            .env(VARIABLE, serde_json::to_string(order).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let words = thread::spawn(move || {
            let mut words = String::new();
            stderr.read_to_string(&mut words).unwrap();
            words
        });
        Self { child, words: Some(words) }
    }

    /// How it ended, if it has.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Where it died, if it has.
    pub fn death(&mut self) -> Option<&'static str> {
        self.child.try_wait().unwrap()?;
        let words = self.words.take().unwrap().join().unwrap();
        let point = words.lines().filter_map(|line| line.strip_prefix("died ")).next_back();
        let point = point.and_then(|word| POINTS.into_iter().find(|known| *known == word));
        Some(point.unwrap_or_else(|| panic!("a consumer ended by itself: {words}")))
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
