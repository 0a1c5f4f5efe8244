//! One round: what is sent together, what is confirmed, and what has to be sent again.

use std::collections::HashMap;
use std::time::Instant;

use rdkafka::error::RDKafkaErrorCode;

use super::KafkaSink;
use super::error::{Meaning, meaning, unavailable};
use super::headers::unfit;
use super::partition::partition_of;
use super::producer::Producer;
use super::tally::Answer;
use crate::sink::{Message, Outcome, Refusal, RefusalKind, Unavailable};
use crate::sinks::rounds::Stops;

/// The smallest set that is tried.
const LEAST: usize = 256;

/// What is left of a round after it was sent.
#[derive(Default)]
struct Left {
    /// To be sent again, in order.
    again: Vec<usize>,
    /// Of those, the ones that may have been refused, and as what.
    suspects: Vec<(usize, RefusalKind)>,
    /// Whether anything was settled.
    is_progress: bool,
    /// Nothing can be sent now; the rest does not count then.
    trouble: Option<Unavailable>,
}

impl KafkaSink {
    /// Sends a round, and what of it fell with its producer once more.
    pub(super) async fn carry<'a>(
        &mut self,
        batch: &'a [Message<'a>],
        places: &[usize],
        outcomes: &mut [Outcome],
        stops: &mut Stops<'a>,
    ) -> Result<(), Unavailable> {
        let mut left = self.send(batch, places, outcomes, stops).await?;
        let mut is_second = false;
        while !left.again.is_empty() {
            if is_second && !left.is_progress {
                return Err(twice());
            }
            is_second = !left.is_progress;
            let Some(&(suspect, kind)) = left.suspects.first() else {
                left = self.send(batch, &left.again, outcomes, stops).await?;
                continue;
            };
            if kind == RefusalKind::TooLarge
                && left.suspects.len() > 1
                && batch[suspect].body.len() < self.set
                && self.set > LEAST
            {
                // It was in a set with others: the set was too large.
                self.set = (self.set / 4).max(LEAST);
                self.give_up().await;
                left = self.send(batch, &left.again, outcomes, stops).await?;
                continue;
            }
            // What comes before it of its key has to be there first.
            let mut behind = left.again.split_off(left.again.partition_point(|&place| place < suspect));
            let mut suspects = left.suspects;
            left = self.send(batch, &left.again, outcomes, stops).await?;
            if left.again.is_empty() {
                self.send_alone(batch, suspect, outcomes, stops).await?;
                behind.retain(|&place| place != suspect);
                suspects.retain(|(place, _)| *place != suspect);
                left.is_progress = true;
            }
            left.again.extend(behind);
            left.suspects.extend(suspects);
            left.suspects.sort_unstable_by_key(|(place, _)| *place);
            left.suspects.dedup_by_key(|(place, _)| *place);
        }
        Ok(())
    }

    /// The one in a set of its own is the one that is meant.
    async fn send_alone<'a>(
        &mut self,
        batch: &'a [Message<'a>],
        place: usize,
        outcomes: &mut [Outcome],
        stops: &mut Stops<'a>,
    ) -> Result<(), Unavailable> {
        if stops.is_behind(&batch[place], place) {
            return Ok(());
        }
        let left = self.send(batch, &[place], outcomes, stops).await?;
        if let Some(&(place, kind)) = left.suspects.first() {
            outcomes[place] = Outcome::Refused(said(kind, &batch[place]));
            stops.stop(&batch[place], place);
        }
        // It fell once more, and not because of what it is.
        let is_fallen = left.suspects.is_empty() && !left.again.is_empty();
        if is_fallen { Err(twice()) } else { Ok(()) }
    }

    /// Sends these, waits for the answers, and settles what they settle.
    async fn send<'a>(
        &mut self,
        batch: &'a [Message<'a>],
        places: &[usize],
        outcomes: &mut [Outcome],
        stops: &mut Stops<'a>,
    ) -> Result<Left, Unavailable> {
        let routed = self.routed(batch, places, outcomes, stops).await?;
        let Some(producer) = &self.producer else { return Ok(Left::default()) };
        let now = Instant::now();
        let deadline = now + self.config.timeout.0;
        let mut left = Left::default();
        let mut sent = Vec::with_capacity(routed.len());
        let mut opening = self.opened.opening();
        producer.begin(batch.len());
        for (place, partition) in routed {
            let message = &batch[place];
            if stops.is_behind(message, place) {
                continue;
            }
            let hand_over = producer.hand_over(message, partition, place, deadline);
            match opening.pass(&message.destination, partition, now, hand_over).await {
                None => left.again.push(place),
                Some(Ok(())) => sent.push((place, partition)),
                Some(Err(RDKafkaErrorCode::MessageSizeTooLarge)) => {
                    left.is_progress = true;
                    outcomes[place] = Outcome::Refused(beyond_a_request(message));
                    stops.stop(message, place);
                }
                Some(Err(code)) => left.note(code, place, message, outcomes, stops, &mut self.topics),
            }
            if left.trouble.is_some() {
                break;
            }
        }
        let answers = producer.answers(deadline).await;
        for (place, partition) in sent {
            let message = &batch[place];
            match answers[place] {
                Answer::Confirmed => {
                    left.is_progress = true;
                    outcomes[place] = Outcome::Delivered;
                    self.opened.open(&message.destination, partition, now);
                }
                Answer::None if left.trouble.is_none() => left.trouble = Some(producer.why_unconfirmed()),
                Answer::None => {}
                Answer::Failed(code) => left.note(code, place, message, outcomes, stops, &mut self.topics),
            }
        }
        if let Some(why) = left.trouble.take() {
            return Err(why);
        }
        left.again.sort_unstable();
        if producer.is_fatal() {
            self.give_up().await;
        }
        Ok(left)
    }

    /// To which partition each goes. Refuses those for which there is no topic, and those that cannot be sent as they are.
    async fn routed<'a>(
        &mut self,
        batch: &'a [Message<'a>],
        places: &[usize],
        outcomes: &mut [Outcome],
        stops: &mut Stops<'a>,
    ) -> Result<Vec<(usize, i32)>, Unavailable> {
        if self.producer.is_none() {
            self.producer = Some(Producer::open(&self.config, self.set).await?);
        }
        let Some(producer) = &self.producer else { return Ok(Vec::new()) };
        let mut topics: HashMap<&str, Result<i32, Refusal>> = HashMap::new();
        let mut routed = Vec::with_capacity(places.len());
        for &place in places {
            let message = &batch[place];
            if stops.is_behind(message, place) {
                continue;
            }
            if let Some(refusal) = unfit(message) {
                outcomes[place] = Outcome::Refused(refusal);
                stops.stop(message, place);
                continue;
            }
            let topic = message.destination.as_str();
            if !topics.contains_key(topic) {
                topics.insert(topic, self.topics.partitions(topic, producer, &self.config).await?);
            }
            match topics.get(topic) {
                Some(Ok(partitions)) => routed.push((place, partition(message, *partitions, self.turn))),
                Some(Err(refusal)) => {
                    outcomes[place] = Outcome::Refused(refusal.clone());
                    stops.stop(message, place);
                }
                None => {}
            }
        }
        // Partition by partition, each in order: what is handed over in a moment goes to the broker in one set, and not in as many as there are
        // moments of `linger` in the whole batch. Each set is work for the broker.
        routed.sort_by(|(place, partition), (other, its)| {
            batch[*place].destination.cmp(&batch[*other].destination).then(partition.cmp(its))
        });
        Ok(routed)
    }
}

impl Left {
    /// This one failed.
    fn note<'a>(
        &mut self,
        code: RDKafkaErrorCode,
        place: usize,
        message: &'a Message<'a>,
        outcomes: &mut [Outcome],
        stops: &mut Stops<'a>,
        topics: &mut super::Topics,
    ) {
        match meaning(code) {
            Meaning::Refused(kind) => {
                topics.forget(&message.destination);
                if !stops.is_behind(message, place) {
                    self.is_progress = true;
                    let reason = format!("Kafka says of the topic `{}`: {code}", message.destination);
                    outcomes[place] = Outcome::Refused(Refusal { kind, reason });
                    stops.stop(message, place);
                }
            }
            Meaning::Suspected(kind) => {
                self.is_progress = true;
                self.suspects.push((place, kind));
                self.again.push(place);
            }
            Meaning::Moved => {
                topics.forget(&message.destination);
                self.again.push(place);
            }
            Meaning::Fallen => self.again.push(place),
            Meaning::Unavailable => {
                self.trouble =
                    Some(unavailable(code, &format!("Kafka, for the topic `{}`", message.destination)));
            }
        }
    }
}

fn twice() -> Unavailable {
    unavailable(RDKafkaErrorCode::Fatal, "the producer failed twice")
}

fn partition(message: &Message<'_>, partitions: i32, turn: u32) -> i32 {
    match message.record.key.as_deref() {
        Some(key) => partition_of(key.as_bytes(), partitions),
        None => (turn & 0x7fff_ffff).cast_signed() % partitions.max(1),
    }
}

/// The client library does not take it.
fn beyond_a_request(message: &Message<'_>) -> Refusal {
    let size = message.body.len();
    Refusal {
        kind: RefusalKind::TooLarge,
        reason: format!(
            "{size} bytes are more than a broker takes at once by default (its socket.request.max.bytes)"
        ),
    }
}

fn said(kind: RefusalKind, message: &Message<'_>) -> Refusal {
    let topic = &message.destination;
    let reason = match kind {
        RefusalKind::TooLarge => format!(
            "{} bytes are more than Kafka takes for the topic `{topic}` (its max.message.bytes)",
            message.body.len()
        ),
        _ => format!("Kafka takes no such message for the topic `{topic}`"),
    };
    Refusal { kind, reason }
}
