//! The sink `rabbitmq`, against RabbitMQ 4, and where it matters against 3.10.

pub mod client;
mod faults;
mod grades;
mod headers;
mod routing;

use anyhow::Result;
use postrider_relay::sink::BoxFuture;
use postrider_relay::sinks::rabbitmq::{ExchangeKind, RabbitMqConfig, RabbitMqSink};
use postrider_relay::units::Span;
use postrider_relay::{Sink, Unavailable};
use postrider_testkit::conformance::{Control, Door, Subject, Test, WRONG_PASSWORD, Way, examine};
use postrider_testkit::{Authority, Broker, RabbitMq};
use tokio::sync::Mutex;
use uuid::Uuid;

use super::kills;
use client::{CLASSIC, Client, QUORUM, Table};

const LARGEST: usize = 1 << 20;
const QUEUE: &str = "tested";

struct Tested {
    server: Broker<RabbitMq>,
    right: Authority,
    wrong: Authority,
    /// What was read from the queue so far: reading takes it out.
    read: Mutex<Vec<Uuid>>,
    /// Only these; all of them if there are none.
    tests: &'static [Test],
}

impl Tested {
    /// With a queue of this kind.
    async fn new(server: RabbitMq, queue: Table, tests: &'static [Test]) -> Result<Self> {
        let (right, wrong) = (Authority::new()?, Authority::new()?);
        let server = server.set("max_message_size", LARGEST).with_tls(&right.issue("IP:127.0.0.1", 10)?);
        let server = Broker::private(server).await?;
        let client = Client::connect(&server.url()).await?;
        client.exchange("events", lapin::ExchangeKind::Topic).await?;
        client.queue(QUEUE, queue).await?;
        client.bind(QUEUE, "events", "conformance.#").await?;
        client.close().await;
        Ok(Self { server, right, wrong, read: Mutex::default(), tests })
    }

    fn config(&self, way: &Way) -> RabbitMqConfig {
        let port = way.port;
        let (url, ca) = match way.door {
            Door::Plain => (format!("amqp://guest:guest@127.0.0.1:{port}/%2f"), None),
            Door::WrongPassword => (format!("amqp://guest:{WRONG_PASSWORD}@127.0.0.1:{port}"), None),
            Door::Tls => (format!("amqps://guest:guest@127.0.0.1:{port}/"), Some(self.right.certificate())),
            Door::WrongAuthority => {
                (format!("amqps://guest:guest@127.0.0.1:{port}/"), Some(self.wrong.certificate()))
            }
        };
        let kind = ExchangeKind::Topic;
        RabbitMqConfig { ca, kind, timeout: Span(way.patience), ..RabbitMqConfig::new(url) }
    }
}

impl Subject for Tested {
    fn open<'a>(&'a self, way: &'a Way) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async move {
            let sink: Box<dyn Sink> = Box::new(RabbitMqSink::open(self.config(way)).await?);
            Ok(sink)
        })
    }

    fn upstream(&self, door: Door) -> Option<String> {
        match door {
            Door::Plain | Door::WrongPassword => Some(self.server.address()),
            Door::Tls | Door::WrongAuthority => self.server.tls_address(),
        }
    }

    fn destination(&self) -> String {
        "conformance.tested".to_owned()
    }

    fn stored(&self) -> BoxFuture<'_, Result<Vec<Uuid>>> {
        Box::pin(async {
            let mut read = self.read.lock().await;
            let client = Client::connect(&self.server.url()).await?;
            for message in client.drain(QUEUE).await? {
                read.push(message.id.parse()?);
            }
            client.close().await;
            Ok(read.clone())
        })
    }

    fn server(&self, what: Control) -> BoxFuture<'_, Result<()>> {
        Box::pin(what.done_to(&self.server))
    }

    fn oversize(&self) -> usize {
        LARGEST + 1
    }

    fn unroutable(&self) -> String {
        "elsewhere.tested".to_owned()
    }

    fn exempt(&self, test: Test) -> Option<&'static str> {
        let is_asked = self.tests.is_empty() || self.tests.contains(&test);
        (!is_asked).then_some("asked of RabbitMQ 4")
    }

    fn kills(&self) -> usize {
        kills(4)
    }
}

/// The kills of fault 65 are among it.
#[tokio::test]
async fn fault_65_rabbitmq_keeps_the_contract_through_kills() -> Result<()> {
    let tested = Tested::new(RabbitMq::new(), QUORUM, &[]).await?;
    let verdicts = examine(&tested).await;
    verdicts.assert_passed();
    assert!(verdicts.exempt().is_empty());
    Ok(())
}

/// Confirmations, returns and kills of the one that Debian 12 has, with a queue of the old kind.
#[tokio::test]
async fn fault_65_rabbitmq_3_keeps_what_it_confirmed_through_kills() -> Result<()> {
    let tests = &[
        Test::ConfirmedByTheServer,
        Test::LostConfirmations,
        Test::KilledServer,
        Test::Oversize,
        Test::Unroutable,
    ];
    examine(&Tested::new(RabbitMq::old(), CLASSIC, tests).await?).await.assert_passed();
    Ok(())
}
