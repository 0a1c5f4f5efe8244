//! Messages of a NATS `JetStream` stream.

mod config;
mod connection;
mod consumers;
mod durability;
mod error;
mod heard;
mod room;
mod subject;

pub use config::NatsConfig;
pub(super) use durability::durability;
pub(super) use subject::check_subject;

use std::str::FromStr as _;
use std::sync::atomic::{AtomicBool, Ordering};

use async_nats::header::{NATS_EXPECTED_STREAM, NATS_MESSAGE_ID};
use async_nats::jetstream::message::PublishMessage;
use async_nats::{HeaderMap, HeaderName, HeaderValue};
use futures_util::future::join_all;

use super::chains::chains;
use crate::sink::{BoxFuture, Message, Outcome, Refusal, RefusalKind, Report, Sink, Unavailable};
use connection::Connection;
use error::{Meaning, meaning};
use room::Room;

/// Where events go by default: what a stream takes that was made with `create`, under its default name.
pub(super) const ROUTE: &str = "events.{type}";

/// By which a consumer knows an event again, whatever the envelope; the same name as in Kafka.
const ID: &str = "event_id";
const CONTENT_TYPE: &str = "Content-Type";

/// Publishes each event and waits for the stream to confirm it.
///
/// Keys side by side, the events of one key one after the other: the server judges each message by itself, and would keep a later one
/// of a key where it has refused an earlier one.
pub struct NatsSink {
    config: NatsConfig,
    /// What this sink is called: it is not the only one that may fill the stream.
    name: String,
    connection: Option<Connection>,
}

impl NatsSink {
    /// Connects for the sink of this name, and looks for the stream.
    pub async fn open(config: NatsConfig, name: impl Into<String>) -> Result<Self, Unavailable> {
        let name = name.into();
        let connection = Connection::open(&config).await?;
        Ok(Self { config, name, connection: Some(connection) })
    }

    async fn deliver_all(
        &mut self,
        batch: &[Message<'_>],
        outcomes: &mut [Outcome],
    ) -> Result<(), Unavailable> {
        // It may have gone while there was nothing to deliver.
        self.connection.take_if(|connection| connection.is_lost());
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(Connection::open(&self.config).await?),
        };
        if batch.iter().any(|message| !connection.takes(&message.destination)) {
            // Perhaps it has learned of it since.
            connection.look(&self.config).await?;
        }
        let is_over = AtomicBool::new(false);
        let round = Round { config: &self.config, name: &self.name, connection, batch, is_over };
        let mut trouble = None;
        for (settled, why) in join_all(chains(batch).into_iter().map(|chain| round.carry(chain))).await {
            for (place, outcome) in settled {
                outcomes[place] = outcome;
            }
            trouble = trouble.or(why);
        }
        trouble.map_or(Ok(()), Err)
    }
}

/// One delivery.
struct Round<'a> {
    config: &'a NatsConfig,
    name: &'a str,
    connection: &'a Connection,
    batch: &'a [Message<'a>],
    /// Something is wrong with the whole: nothing more is sent.
    is_over: AtomicBool,
}

impl Round<'_> {
    /// The events of one key, until one is refused or something is wrong with the whole.
    async fn carry(&self, chain: Vec<usize>) -> (Vec<(usize, Outcome)>, Option<Unavailable>) {
        let mut settled = Vec::with_capacity(chain.len());
        for place in chain {
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            match self.publish(&self.batch[place]).await {
                Ok(()) => settled.push((place, Outcome::Delivered)),
                Err(Meaning::Refused(refusal)) => {
                    settled.push((place, Outcome::Refused(refusal)));
                    break;
                }
                Err(Meaning::Unavailable(why)) => {
                    self.is_over.store(true, Ordering::Relaxed);
                    return (settled, Some(why));
                }
            }
        }
        (settled, None)
    }

    async fn publish(&self, message: &Message<'_>) -> Result<(), Meaning> {
        let subject = message.destination.as_str();
        if !self.connection.takes(subject) {
            let (stream, subjects) = (&self.config.stream, self.connection.subjects());
            return Err(Meaning::Refused(Refusal {
                kind: RefusalKind::Unroutable,
                reason: format!(
                    "the stream `{stream}` does not take {subject:?}; its subjects are {subjects}"
                ),
            }));
        }
        let headers = headers(message, &self.config.stream, self.name)
            .map_err(|reason| Meaning::Refused(Refusal { kind: RefusalKind::Rejected, reason }))?;
        let refusal = |room: Room| room.refusal(subject, &headers, &message.body);
        if refusal(self.connection.room).is_some() {
            // Perhaps it holds more by now.
            let stream = self.connection.stream(self.config).await.map_err(Meaning::Unavailable)?;
            if let Some(refusal) = refusal(Room::of(&stream.config)) {
                return Err(Meaning::Refused(refusal));
            }
        }
        let published = PublishMessage::build().payload(message.body.clone().into()).headers(headers);
        let denials = self.connection.denials(subject);
        let confirmed = async {
            let confirmation = self.connection.context.send_publish(subject.to_owned(), published).await?;
            confirmation.await
        };
        tokio::select! {
            biased;
            confirmed = confirmed => match confirmed {
                // Also of a duplicate: no other event, and no other sink, has its id.
                Ok(_) => Ok(()),
                Err(error) => Err(meaning(error, subject)),
            },
            why = self.connection.no_answer(subject, denials) => Err(why),
        }
    }
}

/// The id by which the stream knows an event again, the stream that is meant, the id that consumers know, and what the envelope wants.
fn headers(message: &Message<'_>, stream: &str, sink: &str) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    // Not the id that consumers know: rows of two adopted tables may share one, and what the stream takes for a duplicate it does not keep. Nor
    // the log's alone: two sinks may fill one stream, by different routes.
    let known_by = format!("{}.{sink}", message.record.id);
    headers.insert(NATS_MESSAGE_ID, value("message id", &known_by)?);
    headers.insert(NATS_EXPECTED_STREAM, value("stream", stream)?);
    headers.insert(ID, value("id", &message.id.to_string())?);
    headers.insert(CONTENT_TYPE, message.content_type);
    for (name, text) in &message.headers {
        // The event's own headers may have one of these names. What tells events apart is not theirs to say.
        if [ID, CONTENT_TYPE].iter().any(|own| name.eq_ignore_ascii_case(own)) {
            continue;
        }
        // They are orders to the server: to forget an event again, to take one for another, to empty the stream.
        if name.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("nats-")) {
            return Err(format!("its header {name:?} would be an order to NATS"));
        }
        // One without a name is dropped by the server.
        let known = HeaderName::from_str(name).ok().filter(|_| !name.is_empty());
        let name_of = known.ok_or_else(|| format!("{name:?} is no name of a header in NATS"))?;
        headers.insert(name_of, value(name, text)?);
    }
    Ok(headers)
}

/// The library panics where a value has a line break.
fn value(name: &str, text: &str) -> Result<HeaderValue, String> {
    HeaderValue::from_str(text)
        .map_err(|_| format!("its {name} cannot be a header in NATS: it has a line break in it"))
}

impl Sink for NatsSink {
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report> {
        Box::pin(async move {
            let mut outcomes = vec![Outcome::NotSent; batch.len()];
            let unavailable = self.deliver_all(batch, &mut outcomes).await.err();
            if unavailable.is_some() {
                self.connection = None;
            }
            Report { outcomes, unavailable }
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        // Nothing is in flight between two batches. The client ends with its last handle.
        Box::pin(async { Ok(()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::planned::{batch, records};

    #[test]
    fn what_tells_events_apart_is_the_sinks_to_say() {
        let events = [(Some("a"), "x")];
        let mut records = records(&events);
        records[0].source_id = Some("7".to_owned());
        let mut batch = batch(&records, &events);
        batch[0].headers = [("content-type", "text/evil"), ("Event_ID", "8"), ("X-Origin", "web")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let headers = headers(&batch[0], "events", "bus").unwrap();
        for (name, expected) in [
            ("Nats-Msg-Id", "00000000-0000-0000-0000-000000000000.bus"),
            ("Nats-Expected-Stream", "events"),
            ("event_id", "7"),
            ("Content-Type", "application/json"),
            ("X-Origin", "web"),
        ] {
            assert_eq!(headers.get(name).map(HeaderValue::as_str), Some(expected), "{name}");
        }
        assert_eq!(headers.len(), 5, "{headers:?}");
    }

    #[test]
    fn a_header_that_nobody_would_get_is_refused() {
        let events = [(Some("a"), "x")];
        let records = records(&events);
        for name in ["", "two words", "Nats-Rollup"] {
            let mut batch = batch(&records, &events);
            batch[0].headers = vec![(name.to_owned(), "x".to_owned())];
            assert!(headers(&batch[0], "events", "bus").is_err(), "{name:?}");
        }
    }
}
