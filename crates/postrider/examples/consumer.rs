//! Keeps the sum of all payments, exactly, behind a broker: `consumer redis redis://127.0.0.1 events:payment`, with `DATABASE_URL`
//! set. The broker is one of `rabbitmq`, `kafka`, `nats` and `redis`, the place its exchange, topic, stream or stream.

use postrider::consume::{BoxError, Outcome, Tx};
use postrider::consumer::{Consumer, Event, Source};
use postrider::consumers::{kafka::Kafka, nats::Nats, rabbitmq::RabbitMq, redis::Redis};
use sqlx::PgPool;

#[derive(serde::Deserialize)]
struct Payment {
    amount: i64,
}

async fn book(tx: &mut Tx, event: Event<Payment>) -> Result<Outcome, BoxError> {
    let book = sqlx::query("update totals set payments = payments + 1, amount = amount + $1");
    book.bind(event.payload.amount).execute(&mut **tx).await?;
    Ok(Outcome::Done)
}

async fn run<S: Source>(pool: PgPool, source: S, stop: impl Future<Output = ()>) -> Result<(), BoxError> {
    Consumer::new(pool, "totals", source).concurrency(8).run(stop, book).await?;
    Ok(())
}

/// Until `stop` ends.
pub async fn keep_totals(
    pool: PgPool,
    [broker, url, place]: [&str; 3],
    stop: impl Future<Output = ()>,
) -> Result<(), BoxError> {
    match broker {
        "rabbitmq" => run(pool, RabbitMq::new(url, place), stop).await,
        "kafka" => run(pool, Kafka::new(url, [place]), stop).await,
        "nats" => run(pool, Nats::new(url, place), stop).await,
        "redis" => run(pool, Redis::new(url, [place]), stop).await,
        other => Err(format!("no broker is called {other}").into()),
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [broker, url, place] = arguments.as_slice() else {
        return Err("usage: consumer BROKER URL PLACE".into());
    };
    let pool = PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    keep_totals(pool, [broker, url, place], stop).await
}
