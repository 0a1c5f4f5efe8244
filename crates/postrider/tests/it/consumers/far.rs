//! The far side of a consumer, as a test needs it.

use std::sync::Arc;

use postrider::consumer::{Link as _, Source, Terms};
use serde_json::json;
use tokio::sync::Semaphore;

/// A message to be published.
#[derive(Debug, Clone)]
pub struct Letter {
    pub key: String,
    pub content_type: &'static str,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Letter {
    /// As the relay's sinks write it by default.
    pub fn of(number: usize, key: &str, r#type: &str) -> Self {
        let body = json!({
            "specversion": "1.0", "source": "test", "id": Self::id(number), "type": r#type, "subject": key, "partitionkey": key,
            "datacontenttype": "application/json", "data": { "amount": number },
        });
        let content_type = "application/cloudevents+json";
        Self { key: key.to_owned(), content_type, headers: Vec::new(), body: body.to_string().into_bytes() }
    }

    /// The same payment with its attributes in headers, each behind this prefix: binary mode.
    pub fn binary(number: usize, key: &str, prefix: &str) -> Self {
        let id = Self::id(number);
        let attributes = [
            ("specversion", "1.0"),
            ("source", "test"),
            ("id", &id),
            ("type", "payment.made"),
            ("subject", key),
            ("partitionkey", key),
        ];
        let headers = attributes.map(|(name, value)| (format!("{prefix}{name}"), value.to_owned())).to_vec();
        let body = json!({ "amount": number }).to_string().into_bytes();
        Self { key: key.to_owned(), content_type: "application/json", headers, body }
    }

    pub fn payment(number: usize, key: &str) -> Self {
        Self::of(number, key, "payment.made")
    }

    pub fn id(number: usize) -> String {
        format!("event-{number}")
    }
}

/// What was found among the dead letters.
#[derive(Debug, Clone)]
pub struct Dead {
    pub reason: String,
    pub consumer: String,
    pub body: Vec<u8>,
}

/// A broker with one place for events.
pub trait Far: Send + Sync {
    type Source: Source;

    /// By which a child finds the same.
    fn kind(&self) -> &'static str;
    fn url(&self) -> String;
    fn source(&self) -> Self::Source;
    /// What stands before the attributes of an event in headers.
    fn prefix(&self) -> &'static str;
    /// Confirmed by the server when it returns.
    async fn publish(&self, letters: &[Letter]);
    async fn dead_letters(&self, consumer: &str) -> Vec<Dead>;
    /// Whether the server says of a message that it was delivered before. Where it does not, each is tried by itself at first.
    fn tells_repetitions(&self) -> bool {
        true
    }
    /// How much is not done with, as far as the server tells.
    async fn left(&self, consumer: &str) -> u64;
}

/// A name that nobody else has.
pub fn unique(what: &str) -> String {
    format!("{what}-{}", uuid::Uuid::now_v7().simple())
}

/// Makes what is the consumer's own, so that nothing is published before it is there.
pub async fn prepare<F: Far>(far: &F, consumer: &str) {
    make(&far.source(), consumer).await;
}

pub async fn make<S: Source>(source: &S, consumer: &str) {
    let (link, deliveries) = source.open(&terms(consumer)).await.unwrap();
    drop(deliveries);
    link.close().await;
}

/// For one message at a time.
pub fn terms(consumer: &str) -> Terms {
    Terms { consumer: consumer.to_owned(), prefetch: 1, room: Arc::new(Semaphore::new(1)) }
}
