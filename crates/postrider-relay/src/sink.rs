//! The contract of a sink.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use postrider::log::Record;
use uuid::Uuid;

use crate::json;

/// A future that a trait object can return.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where events go.
///
/// # What a sink promises
///
/// - **Confirmation.** [`Outcome::Delivered`] means that the far side has said so itself. Not "written to a socket".
/// - **Order.** Events of one key arrive in the order of the batch. Once an event of a key is refused or not confirmed, no later event
///   of that key from this batch is sent: it is answered [`Outcome::NotSent`]. Events without a key promise nothing to each other.
/// - **Deadline.** `deliver` returns. A far side that says nothing is [`Unavailable`] after a time of the sink's own.
/// - **Connection.** A sink reconnects by itself, inside `deliver`, once per call; the engine does the waiting between calls.
/// - **Identity.** The same event carries the same id every time it is sent.
/// - **Memory.** A sink keeps nothing of a batch after it returned.
///
/// # What the engine promises
///
/// One `deliver` at a time, never an empty batch, never a batch beyond the size that was configured. What was answered `NotSent` comes
/// again, in order. What was refused is parked and comes again on its own schedule, later events of its key behind it unless the sink
/// is configured `ordering: relaxed`. `deliver` may be dropped at any await when the relay is told to stop at once; what was in flight
/// then is delivered again by whoever takes over, with the same id. `close` is called once, after the last `deliver`.
pub trait Sink: Send {
    /// Delivers a batch, and answers for each of its events.
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report>;

    /// How many of the events that the last `deliver` called delivered were let go, because nobody was there to take them and the
    /// configuration wants it so.
    fn dropped(&self) -> u64 {
        0
    }

    /// Flushes and lets go of everything.
    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>>;
}

/// An event ready to leave: filtered, transformed, routed, in its envelope.
#[derive(Debug, Clone)]
pub struct Message<'a> {
    /// As it stands in the log.
    pub record: &'a Record,
    /// The id that leaves: the record's `source_id`, else its `id`.
    pub id: EventId<'a>,
    /// What the sink's routing template rendered (a routing key, topic, subject, stream); empty where the sink has none.
    pub destination: String,
    /// Of the body.
    pub content_type: &'static str,
    /// What the envelope wants beside the body, where the protocol has headers.
    pub headers: Vec<(String, String)>,
    /// The bytes to send.
    pub body: Vec<u8>,
}

/// The id that leaves. It displays as the text that consumers see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventId<'a> {
    /// The log's own.
    Own(Uuid),
    /// The one that the consumers of an adopted outbox table already know.
    Source(&'a str),
}

impl<'a> EventId<'a> {
    /// Of this record.
    pub fn of(record: &'a Record) -> Self {
        record.source_id.as_deref().map_or(Self::Own(record.id), Self::Source)
    }

    /// Whether there is nothing in it, which only an adopted table can bring about.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Source(""))
    }

    /// Appends it as a JSON string.
    pub(crate) fn push_json(self, out: &mut Vec<u8>) {
        match self {
            Self::Own(id) => {
                let mut text = Uuid::encode_buffer();
                out.push(b'"');
                out.extend_from_slice(id.hyphenated().encode_lower(&mut text).as_bytes());
                out.push(b'"');
            }
            Self::Source(id) => json::push_string(out, id),
        }
    }
}

impl fmt::Display for EventId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own(id) => id.fmt(f),
            Self::Source(id) => f.write_str(id),
        }
    }
}

/// What became of a batch: one outcome for each event, in order, and why the rest was not sent.
#[derive(Debug)]
pub struct Report {
    /// As many as the batch has events.
    pub outcomes: Vec<Outcome>,
    /// Set if the sink could not go on: the engine waits and comes again with what was [`Outcome::NotSent`].
    pub unavailable: Option<Unavailable>,
}

impl Report {
    /// All of a batch was delivered.
    pub fn delivered(events: usize) -> Self {
        Self { outcomes: vec![Outcome::Delivered; events], unavailable: None }
    }

    /// Nothing of a batch could be delivered.
    pub fn unavailable(events: usize, why: Unavailable) -> Self {
        Self { outcomes: vec![Outcome::NotSent; events], unavailable: Some(why) }
    }
}

/// What became of one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The far side has it, by its own word.
    Delivered,
    /// The far side, or something on the way there, will not have this event. Others may pass.
    Refused(Refusal),
    /// Not sent, or sent and not confirmed.
    NotSent,
}

/// Why one event was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// For machines.
    pub kind: RefusalKind,
    /// For people: what was said, and by whom.
    pub reason: String,
}

/// Kinds of refusal. What is done about each is in [`policy`](crate::policy).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalKind {
    /// Beyond what the far side takes.
    TooLarge,
    /// Nobody there listens, or there is no such place.
    Unroutable,
    /// Said no for a reason of its own.
    Rejected,
    /// The `filter` or `transform` failed on it.
    Transform,
    /// Too large, nested too deeply or no JSON: no `filter` or `transform` can be asked about it.
    BeyondJq,
    /// The routing template rendered something that is no legal name.
    Route,
    /// The envelope could not be built from it.
    Envelope,
}

/// The sink as a whole cannot take events now.
#[derive(Debug)]
pub struct Unavailable {
    /// For machines.
    pub kind: UnavailableKind,
    /// What happened.
    pub source: Box<dyn Error + Send + Sync>,
    /// If the far side named a time.
    pub retry_after: Option<Duration>,
}

impl Unavailable {
    /// Of this kind, because of this.
    pub fn new(kind: UnavailableKind, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { kind, source: source.into(), retry_after: None }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)
    }
}

impl Error for Unavailable {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

/// Kinds of unavailability. What an operator is advised about each is in [`policy`](crate::policy).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnavailableKind {
    /// Cannot be reached, or went away.
    Connection,
    /// Said nothing in time.
    Timeout,
    /// Asks for patience: an alarm, a quota, a lost quorum.
    Blocked,
    /// Somebody else has what only one can have.
    InUse,
    /// Does not know us or does not let us.
    Forbidden,
    /// What the configuration names is not there, or is not what it should be.
    Missing,
    /// The disk or memory of the far side is full.
    Full,
    /// It keeps events worse than the configuration requires.
    Weak,
    /// Whoever took the events is gone and cannot come back to this process: the relay ends.
    Gone,
}
