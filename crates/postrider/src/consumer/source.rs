//! What a broker has to be able to do for a consumer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::consume::BoxError;

/// A message as a broker hands it out.
#[derive(Debug, Clone, Default)]
pub struct Message {
    /// Where it was found: an exchange, a topic, a subject, a stream.
    pub place: String,
    /// What the broker, or a field beside the body, says of it.
    pub id: Option<String>,
    /// Likewise.
    pub r#type: Option<String>,
    /// Likewise.
    pub key: Option<String>,
    /// Of the body.
    pub content_type: Option<String>,
    /// What else stands beside the body.
    pub headers: Vec<(String, String)>,
    /// As it came.
    pub body: Vec<u8>,
}

impl Message {
    /// The header of this name, in whatever case it is written.
    pub fn header(&self, name: &str) -> Option<&str> {
        let named = self.headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_str())
    }
}

/// A message in the hands of a consumer.
#[derive(Debug)]
pub struct Delivery<R> {
    /// What it is.
    pub message: Message,
    /// By which the broker knows it.
    pub receipt: R,
    /// Whether it may have been delivered before: then somebody may have died of it.
    pub is_repeated: bool,
    /// The room that it takes among those a consumer has in hand; free again when it is settled.
    pub room: OwnedSemaphorePermit,
}

/// Why a message is given up.
#[derive(Debug, Clone)]
pub struct Grave<'a> {
    /// Who gives it up.
    pub consumer: &'a str,
    /// The event, where one could be made out.
    pub event_id: Option<&'a str>,
    /// In words.
    pub reason: &'a str,
    /// How often it was tried.
    pub attempts: u32,
}

impl Grave<'_> {
    /// As headers of the dead letter, by names that no sink uses.
    pub fn headers(&self) -> [(&'static str, String); 3] {
        // A header has one line.
        let reason = self.reason.replace(['\r', '\n'], " ");
        [
            ("postrider-dead-reason", reason),
            ("postrider-dead-consumer", self.consumer.to_owned()),
            ("postrider-dead-attempts", self.attempts.to_string()),
        ]
    }
}

/// A broker that does not do its part.
#[derive(Debug)]
pub struct Trouble {
    /// Whether it may be over by itself. What is not, ends the consumer.
    pub is_passing: bool,
    /// What was said.
    pub source: BoxError,
}

impl Trouble {
    /// Lost, silent, not ready: connecting again may help.
    pub fn away(source: impl Into<BoxError>) -> Self {
        Self { is_passing: true, source: source.into() }
    }

    /// A wrong address or password, something that is not there: a person has to help.
    pub fn wrong(source: impl Into<BoxError>) -> Self {
        Self { is_passing: false, source: source.into() }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl std::error::Error for Trouble {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.source()
    }
}

/// What a consumer asks of a broker.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Its name, for queues, groups and dead letters.
    pub consumer: String,
    /// The most messages that it has in hand.
    pub prefetch: u32,
    /// Each message in hand takes one.
    pub room: Arc<Semaphore>,
}

/// The messages of one connection, until the trouble that ends it.
pub type Deliveries<R> = mpsc::Receiver<Result<Delivery<R>, Trouble>>;

/// A connection and its messages, or why there is none.
pub type Opened<L> = Result<(L, Deliveries<<L as Link>::Receipt>), Trouble>;

/// A broker, and where in it the events are.
///
/// # The contract
/// - `open` connects, makes what is the consumer's own (its queue or group, the place of its dead letters), and begins to deliver. What
///   belongs to the publisher is left alone.
/// - A message is delivered with a permit of `Terms::room`, so no more of them are in hand than was asked for.
/// - A message that was not acknowledged comes again after the connection or the process has ended, marked as repeated. One that may have
///   come before and is not known to have is marked, too.
/// - Order per key is the order of delivery; two messages of one key that a broker hands to two processes have none.
pub trait Source: Send + Sync {
    /// A connection.
    type Link: Link;

    /// `redis`, for logs and metrics.
    fn kind(&self) -> &'static str;

    /// For how long a message may wait where this consumer has said so itself: it may come again until then, and the inbox has to remember it.
    fn keeps(&self) -> Option<Duration> {
        None
    }

    /// Connects.
    fn open(&self, terms: &Terms) -> impl Future<Output = Opened<Self::Link>> + Send;
}

/// A connection to a broker. When it is dropped no more is delivered.
pub trait Link: Send + Sync + 'static {
    /// By which the broker knows a message.
    type Receipt: Clone + Send + Sync + 'static;

    /// For how long a message may wait where that is for others to say, and the broker tells: it may come again until then, and the inbox has to
    /// remember it. `Duration::MAX` where there is no limit.
    fn keeps(&self) -> Option<Duration> {
        None
    }

    /// It is done with, and must not come again. Called after the commit.
    fn acknowledge(&self, receipt: &Self::Receipt) -> impl Future<Output = Result<(), Trouble>> + Send;

    /// Keeps the message, its body as it came, where the dead letters are, and returns when the broker has confirmed that. It is
    /// acknowledged afterwards.
    fn bury(&self, message: &Message, grave: &Grave<'_>) -> impl Future<Output = Result<(), Trouble>> + Send;

    /// It is dead, and buried: it must not come again. As for one that is done with, unless the broker tells them apart.
    fn discard(&self, receipt: &Self::Receipt) -> impl Future<Output = Result<(), Trouble>> + Send {
        self.acknowledge(receipt)
    }

    /// How often the broker wants to hear of messages that are still being worked on.
    fn keep_every(&self) -> Option<Duration> {
        None
    }

    /// These are still being worked on, or wait for their next attempt.
    fn keep(&self, _receipts: &[Self::Receipt]) -> impl Future<Output = Result<(), Trouble>> + Send {
        std::future::ready(Ok(()))
    }

    /// These were not begun: somebody else may have them, at once.
    fn give_back(&self, receipts: &[Self::Receipt]) -> impl Future<Output = Result<(), Trouble>> + Send;

    /// Says goodbye. Nothing is in hand any more.
    fn close(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}
