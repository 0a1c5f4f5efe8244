//! Brokers beside the screen and the file: private ones, each with a sink of its own.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result};
use postrider_testkit::{Broker, Kafka, Nats, RabbitMq, Redis, run_to_end};
use serde_json::Value;

/// What `--with` can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    RabbitMq,
    Kafka,
    Nats,
    Redis,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::RabbitMq, Self::Kafka, Self::Nats, Self::Redis];

    /// As the sink is called.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RabbitMq => "rabbitmq",
            Self::Kafka => "kafka",
            Self::Nats => "nats",
            Self::Redis => "redis",
        }
    }

    /// Of a list with commas; each once.
    pub(crate) fn list(words: &str) -> Result<Vec<Self>, String> {
        let mut kinds = Vec::new();
        for word in words.split(',').map(str::trim) {
            let kind = Self::ALL.into_iter().find(|kind| kind.name() == word);
            let kind = kind.ok_or_else(|| {
                format!(
                    "--with takes {}, with commas between them, not `{word}`",
                    Self::ALL.map(Self::name).join(", ")
                )
            })?;
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        Ok(kinds)
    }
}

/// One that runs. It ends with this.
pub(crate) enum Running {
    RabbitMq(Broker<RabbitMq>),
    Kafka(Broker<Kafka>),
    Nats(Broker<Nats>),
    Redis(Broker<Redis>),
}

/// A fanout exchange makes no queue: whoever wants the events binds one.
const QUEUE: &str = r#"{
    "exchanges": [{ "name": "events", "vhost": "/", "type": "fanout", "durable": true, "auto_delete": false, "internal": false, "arguments": {} }],
    "queues": [{ "name": "demo", "vhost": "/", "durable": true, "auto_delete": false, "arguments": {} }],
    "bindings": [{ "source": "events", "vhost": "/", "destination": "demo", "destination_type": "queue", "routing_key": "", "arguments": {} }]
}"#;

impl Running {
    pub(crate) async fn start(kind: Kind) -> Result<Self> {
        Ok(match kind {
            Kind::RabbitMq => {
                let broker = Broker::private(RabbitMq::old()).await?;
                let definitions = broker.place().write("demo.json", QUEUE)?;
                broker.control(["import_definitions", &definitions.to_string_lossy()]).await?;
                Self::RabbitMq(broker)
            }
            Kind::Kafka => Self::Kafka(Broker::private(Kafka::new()).await?),
            Kind::Nats => Self::Nats(Broker::private(Nats::new()).await?),
            Kind::Redis => Self::Redis(Broker::private(Redis::durable()).await?),
        })
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::RabbitMq(_) => Kind::RabbitMq,
            Self::Kafka(_) => Kind::Kafka,
            Self::Nats(_) => Kind::Nats,
            Self::Redis(_) => Kind::Redis,
        }
    }

    /// What stands in the configuration.
    pub(crate) fn sink(&self) -> String {
        let name = self.kind().name();
        let settings = match self {
            Self::RabbitMq(broker) => format!("rabbitmq: {{ url: '{}' }}", broker.url()),
            Self::Kafka(broker) => format!(
                "kafka: {{ url: 'kafka://{}', create_topics: {{ partitions: 4, replication: 1 }} }}, route: events",
                broker.bootstrap()
            ),
            Self::Nats(broker) => format!("nats: {{ url: '{}', create: true }}", broker.url()),
            Self::Redis(broker) => format!("redis: {{ url: '{}' }}, route: events", broker.url()),
        };
        format!("  {name}: {{ {settings}, start: earliest }}\n")
    }

    /// What to type to see its messages.
    pub(crate) fn look(&self) -> String {
        match self {
            Self::RabbitMq(broker) => format!("{} list_queues", broker.control_line()),
            Self::Kafka(broker) => {
                format!("kcat -C -b {} -t events -o -5 -e -f '%k %s\\n'", broker.bootstrap())
            }
            Self::Nats(broker) => {
                format!("curl 'http://127.0.0.1:{}/jsz?streams=true'", broker.place().ports[1])
            }
            Self::Redis(broker) => {
                format!("redis-cli -p {} XREVRANGE events + - COUNT 5", broker.port())
            }
        }
    }

    /// How many messages it has, by its own word.
    pub(crate) async fn count(&self) -> Result<u64> {
        match self {
            Self::RabbitMq(broker) => {
                let said = broker.control(["list_queues", "messages", "--no-table-headers"]).await?;
                said.trim().parse().with_context(|| format!("rabbitmqctl says {said:?}"))
            }
            Self::Kafka(broker) => {
                let mut kcat = std::process::Command::new("kcat");
                kcat.args(["-C", "-b", &broker.bootstrap(), "-t", "events", "-o", "beginning"]);
                kcat.args(["-e", "-q", "-f", "%o\n"]);
                let said = tokio::task::spawn_blocking(move || run_to_end(&mut kcat)).await??;
                Ok(u64::try_from(String::from_utf8_lossy(&said.stdout).lines().count())?)
            }
            Self::Nats(broker) => {
                let said = monitor(broker.place().ports[1])?;
                said["messages"].as_u64().context("/jsz has no messages")
            }
            Self::Redis(broker) => broker.ask(["XLEN", "events"]).await?.as_u64().context("XLEN is a number"),
        }
    }
}

/// What NATS says of itself.
fn monitor(port: u16) -> Result<Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(b"GET /jsz HTTP/1.0\r\n\r\n")?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    let (_, body) = said.split_once("\r\n\r\n").context("an answer without a body")?;
    Ok(serde_json::from_str(body)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brokers_are_named_once_and_rightly() {
        assert_eq!(Kind::list("redis, nats,redis"), Ok(vec![Kind::Redis, Kind::Nats]));
        let wrong = Kind::list("redis,rabbit").unwrap_err();
        assert!(wrong.contains("rabbitmq, kafka, nats, redis") && wrong.contains("`rabbit`"), "{wrong}");
        assert!(Kind::list("").is_err());
    }
}
