//! The brokers: each answers, survives `kill -9` with what it has, and freezes.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Result, ensure};
use postrider_testkit::{Broker, Kafka, Nats, RabbitMq, Redis, Service};

/// Whether it says anything to a question within a moment.
fn answers(port: u16, question: &[u8], patience: Duration) -> bool {
    let ask = || -> std::io::Result<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(patience))?;
        stream.write_all(question)?;
        stream.read_exact(&mut [0])
    };
    ask().is_ok()
}

/// Killed, it is gone; started again, it is there, at the same port. Frozen, it takes connections and says nothing.
async fn obeys<S: Service>(broker: &Broker<S>, question: &[u8]) -> Result<()> {
    let (port, long, short) = (broker.port(), Duration::from_secs(30), Duration::from_millis(300));
    ensure!(answers(port, question, long), "{}", broker.log_tail());
    broker.crash().await?;
    ensure!(!answers(port, question, long), "it was killed");
    broker.start().await?;
    ensure!(answers(port, question, long), "{}", broker.log_tail());
    broker.freeze()?;
    ensure!(!answers(port, question, short), "it was frozen");
    broker.thaw()?;
    ensure!(answers(port, question, long), "{}", broker.log_tail());
    broker.stop().await?;
    ensure!(!answers(port, question, long), "it was stopped");
    Ok(())
}

#[tokio::test]
async fn redis_keeps_its_file_through_a_kill() -> Result<()> {
    let redis = Broker::private(Redis::durable()).await?;
    redis.ask(["XADD", "events", "1-1", "id", "a"]).await?;
    redis.crash().await?;
    redis.start().await?;
    let stored = redis.ask(["XRANGE", "events", "-", "+"]).await?;
    assert_eq!(stored, serde_json::json!([["1-1", ["id", "a"]]]));
    obeys(&redis, b"PING\r\n").await
}

#[tokio::test]
async fn nats_obeys() -> Result<()> {
    // It speaks first.
    obeys(&Broker::private(Nats::new()).await?, b"").await
}

#[tokio::test]
async fn rabbitmq_obeys() -> Result<()> {
    for (rabbitmq, version) in [(RabbitMq::new(), "4."), (RabbitMq::old(), "3.10.")] {
        let rabbitmq = Broker::private(rabbitmq).await?;
        let said = rabbitmq.control(["version"]).await?;
        ensure!(said.starts_with(version), "{said}");
        obeys(&rabbitmq, b"AMQP\x00\x00\x09\x01").await?;
    }
    Ok(())
}

#[tokio::test]
async fn kafka_obeys() -> Result<()> {
    let metadata = b"\x00\x00\x00\x0e\x00\x03\x00\x01\x00\x00\x00\x01\xff\xff\x00\x00\x00\x00";
    obeys(&Broker::private(Kafka::new()).await?, metadata).await
}
