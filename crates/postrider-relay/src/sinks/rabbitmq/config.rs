//! What a RabbitMQ sink is told.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::address;
use crate::redact::redact;
use crate::units::Span;

/// `rabbitmq: { url: amqp://HOST:5672, exchange: events }`
#[derive(Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RabbitMqConfig {
    /// The server, as `amqp://USER:PASSWORD@HOST:PORT/VHOST`, or several of one cluster with commas between them; over TLS with `amqps://`.
    /// Without a virtual host it is `/`.
    #[schemars(extend("writeOnly" = true, "examples" = ["amqp://127.0.0.1:5672"]))]
    pub url: String,
    /// The exchange that events are published to. It is declared, durable, unless it is there; queues are bound by whoever consumes.
    #[serde(default = "exchange")]
    pub exchange: String,
    /// What kind of exchange it is.
    #[serde(default)]
    pub kind: ExchangeKind,
    /// What becomes of an event that no queue is bound for: `wait` until there is one, `park` the event, or let it go and count it,
    /// `drop-counted`. By default a fanout exchange waits, as nobody at all listens there, and the others park.
    #[serde(default)]
    pub unroutable: Option<Unroutable>,
    /// Over how many channels events are published. All events of a key take the same.
    #[serde(default = "channels")]
    pub channels: u16,
    /// The server's management, as `http://HOST:15672` or `https://HOST:15671`: `doctor` and `require_durability` ask it how queues keep what they
    /// get, with the user and the password of `url`.
    #[serde(default)]
    #[schemars(extend("examples" = ["http://127.0.0.1:15672"]))]
    pub management: Option<String>,
    /// A file with the certificates of the authorities that are trusted over TLS, in PEM. Without it, those of the system.
    #[serde(default)]
    pub ca: Option<PathBuf>,
    /// How long the server may take to connect, and to confirm anything at all.
    #[serde(default = "timeout")]
    pub timeout: Span,
}

/// What an exchange does with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExchangeKind {
    /// To every queue that is bound.
    #[default]
    Fanout,
    /// To the queues whose pattern the routing key has.
    Topic,
    /// To the queues that are bound with the routing key itself.
    Direct,
    /// To the queues that ask for headers it has.
    Headers,
}

/// What becomes of an event that no queue is bound for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Unroutable {
    /// The sink waits until there is one.
    Wait,
    /// The event is parked.
    Park,
    /// It is let go, and counted.
    DropCounted,
}

fn exchange() -> String {
    "events".to_owned()
}

fn channels() -> u16 {
    4
}

fn timeout() -> Span {
    Span(Duration::from_secs(10))
}

impl RabbitMqConfig {
    /// The defaults, for this server.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            exchange: exchange(),
            kind: ExchangeKind::default(),
            unroutable: None,
            channels: channels(),
            management: None,
            ca: None,
            timeout: timeout(),
        }
    }

    /// What becomes of an event that no queue is bound for.
    pub(crate) fn unroutable(&self) -> Unroutable {
        self.unroutable.unwrap_or(match self.kind {
            ExchangeKind::Fanout => Unroutable::Wait,
            ExchangeKind::Topic | ExchangeKind::Direct | ExchangeKind::Headers => Unroutable::Park,
        })
    }

    /// What can never work.
    pub(crate) fn objections(&self) -> Vec<(&'static str, String)> {
        let Self { url, exchange, channels, management, timeout, .. } = self;
        let mut wrong = Vec::new();
        if postrider::amqp::servers(url).is_none() {
            wrong.push((
                "url",
                "write amqp://HOST:PORT/VHOST, or amqps:// for TLS; several with commas".to_owned(),
            ));
        }
        // The first that answers is taken: whoever keeps one from answering would get user and password in the clear.
        let over_tls = |url: &str| url.starts_with("amqps://");
        let has_tls = url.split(',').map(str::trim).any(over_tls);
        if has_tls && !url.split(',').map(str::trim).all(over_tls) {
            let how = "some addresses are over TLS and some in the clear; write amqps:// for all of them, or amqp:// for all";
            wrong.push(("url", how.to_owned()));
        }
        if exchange.is_empty() || exchange.len() > 255 || exchange.contains(char::is_control) {
            wrong.push((
                "exchange",
                "a name has 1 to 255 bytes; the one without a name takes no bindings".to_owned(),
            ));
        }
        if !(1..=256).contains(channels) {
            wrong.push(("channels", "take 1 to 256".to_owned()));
        }
        match management.as_deref().map(address::management) {
            Some(None) => wrong.push((
                "management",
                "write http://HOST:PORT or https://HOST:PORT, without a user".to_owned(),
            )),
            Some(Some(asked)) if has_tls && !asked.is_secure && !asked.is_local() => {
                let why = "it gets the user and the password of `url`, which is over TLS, in the clear; write https://HOST:15671, or ask it on this machine";
                wrong.push(("management", why.to_owned()));
            }
            _ => {}
        }
        if timeout.0.is_zero() {
            wrong.push(("timeout", "no server answers in no time; take 1s or more".to_owned()));
        }
        wrong
    }
}

/// By hand: the address may hold a password.
impl fmt::Debug for RabbitMqConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, exchange, kind, unroutable, channels, management, ca, timeout } = self;
        let urls: Vec<String> = url.split(',').map(redact).collect();
        f.debug_struct("RabbitMqConfig")
            .field("url", &urls.join(","))
            .field("exchange", exchange)
            .field("kind", kind)
            .field("unroutable", unroutable)
            .field("channels", channels)
            .field("management", &management.as_deref().map(redact))
            .field("ca", ca)
            .field("timeout", timeout)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_never_work_is_said_by_its_key() {
        assert!(RabbitMqConfig::new("amqp://me:pw@a:5672/%2f, amqp://b").objections().is_empty());
        let wrong = RabbitMqConfig {
            exchange: String::new(),
            channels: 0,
            management: Some("amqp://h".to_owned()),
            timeout: Span(Duration::ZERO),
            ..RabbitMqConfig::new("amqp://a,http://me:c4n4ry@host")
        };
        let keys: Vec<&str> = wrong.objections().iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, ["url", "exchange", "channels", "management", "timeout"]);
        assert!(!format!("{wrong:?} {:?}", wrong.objections()).contains("c4n4ry"));
    }

    #[test]
    fn all_addresses_are_over_tls_or_none() {
        assert!(RabbitMqConfig::new("amqps://me:pw@a:5671/%2f, amqps://b").objections().is_empty());
        for mixed in ["amqps://me:c4n4ry@a,amqp://b", "amqp://a, amqps://me:c4n4ry@b"] {
            let objections = RabbitMqConfig::new(mixed).objections();
            let [("url", why)] = objections.as_slice() else { panic!("{objections:?}") };
            assert!(why.contains("write amqps:// for all") && !why.contains("c4n4ry"), "{why}");
        }
    }

    #[test]
    fn the_management_is_told_no_password_in_the_clear_that_goes_over_tls_elsewhere() {
        let objections = |url: &str, management: &str| {
            let management = Some(management.to_owned());
            RabbitMqConfig { management, ..RabbitMqConfig::new(url) }.objections()
        };
        for host in ["a", "10.0.0.1:15672", "localhost.example", "[2001:db8::1]:15672"] {
            let found = objections("amqps://me:c4n4ry@a", &format!("http://{host}"));
            let [("management", why)] = found.as_slice() else { panic!("{host}: {found:?}") };
            assert!(why.contains("https://") && !why.contains("c4n4ry"), "{why}");
            assert!(objections("amqps://a", &format!("https://{host}")).is_empty(), "{host}");
            assert!(objections("amqp://a", &format!("http://{host}")).is_empty(), "{host}");
        }
        for host in ["localhost", "127.0.0.1:15672", "127.1.2.3", "[::1]:15672"] {
            assert!(objections("amqps://a", &format!("http://{host}")).is_empty(), "{host}");
        }
    }

    #[test]
    fn only_a_fanout_exchange_waits_by_itself() {
        let config = RabbitMqConfig::new("amqp://a");
        assert_eq!(config.unroutable(), Unroutable::Wait);
        let topic = RabbitMqConfig { kind: ExchangeKind::Topic, ..config.clone() };
        assert_eq!(topic.unroutable(), Unroutable::Park);
        let told = RabbitMqConfig { unroutable: Some(Unroutable::DropCounted), ..config };
        assert_eq!(told.unroutable(), Unroutable::DropCounted);
    }
}
