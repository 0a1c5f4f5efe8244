//! A sink that keeps what it is given, as a consumer sees it.

use std::collections::BTreeMap;
use std::sync::Arc;

use postrider_relay::sink::BoxFuture;
use postrider_relay::sinks::{Custom, Target};
use postrider_relay::{Message, Report, Sink, Unavailable};
use serde_json::Value;
use tokio::sync::watch;

use super::tables;
use crate::support::PATIENCE;

/// A message as a consumer sees it.
#[derive(Debug, Clone)]
pub struct Letter {
    pub id: String,
    pub destination: String,
    /// Where the old poller had one.
    pub key: Option<String>,
    pub body: Value,
    pub headers: BTreeMap<String, String>,
    /// For the test alone: of which key, and the how manieth.
    pub record_key: Option<String>,
    pub number: i64,
}

impl Letter {
    /// Whatever a consumer of the old poller could look at is the same.
    pub fn assert_like(&self, old: &Self, context: &str) {
        assert_eq!(self.destination, old.destination, "{context}");
        assert_eq!(self.body, old.body, "{context}");
        if old.key.is_some() {
            assert_eq!(self.key, old.key, "{context}");
        }
        for (name, value) in &old.headers {
            assert_eq!(self.headers.get(name), Some(value), "{context}: {name}");
        }
    }
}

#[derive(Clone)]
pub struct Mailbox {
    letters: Arc<watch::Sender<Vec<Letter>>>,
}

impl Default for Mailbox {
    fn default() -> Self {
        Self { letters: Arc::new(watch::channel(Vec::new()).0) }
    }
}

impl Mailbox {
    pub fn target(&self) -> Target {
        let mailbox = self.clone();
        Target::Custom(Custom::new("mailbox", move || {
            let mailbox = mailbox.clone();
            Box::pin(async move { Ok(Box::new(mailbox) as Box<dyn Sink>) })
        }))
    }

    pub fn letters(&self) -> Vec<Letter> {
        self.letters.borrow().clone()
    }

    /// Waits until so many have come.
    pub async fn wait_for(&self, count: usize) -> Vec<Letter> {
        let mut letters = self.letters.subscribe();
        let came =
            tokio::time::timeout(PATIENCE, letters.wait_for(|letters| letters.len() >= count)).await.is_ok();
        assert!(came, "{} of {count} letters came", self.letters().len());
        self.letters()
    }
}

fn letter(message: &Message<'_>) -> Letter {
    Letter {
        id: message.id.to_string(),
        destination: message.destination.clone(),
        key: message.record.key.clone(),
        body: serde_json::from_slice(&message.body).unwrap(),
        headers: message.headers.iter().cloned().collect(),
        record_key: message.record.key.clone(),
        number: tables::number(&message.record.payload),
    }
}

impl Sink for Mailbox {
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report> {
        Box::pin(async move {
            self.letters.send_modify(|letters| letters.extend(batch.iter().map(letter)));
            Report::delivered(batch.len())
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        Box::pin(async { Ok(()) })
    }
}
