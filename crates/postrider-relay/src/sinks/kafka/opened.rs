//! The partitions that know the producer.

use std::collections::HashMap;
use std::future::Future;
use std::time::{Duration, Instant};

use rdkafka::types::RDKafkaErrorCode;

/// Brokers forget a producer that a partition has not heard of for a day, by default.
const REMEMBERED: Duration = Duration::from_hours(1);

/// The partitions that have confirmed something of this producer.
///
/// To a partition that has not, the first message goes alone. A broker that knows nothing of a producer takes whatever it sends first, also
/// the second of two sets that are on their way when it has refused the first: a later event of a key would be there without the earlier.
/// Of a producer that it knows it takes nothing out of order.
#[derive(Default)]
pub(super) struct Opened(HashMap<String, HashMap<i32, Instant>>);

/// Decides, message by message, what is sent at once.
pub(super) struct Opening<'a> {
    opened: &'a Opened,
    /// Sent to alone, in this round.
    openers: Vec<(&'a str, i32)>,
    /// Sent to no more, in this round.
    closed: Vec<(&'a str, i32)>,
}

impl Opened {
    pub(super) fn opening(&self) -> Opening<'_> {
        Opening { opened: self, openers: Vec::new(), closed: Vec::new() }
    }

    /// It has confirmed something.
    pub(super) fn open(&mut self, topic: &str, partition: i32, now: Instant) {
        match self.0.get_mut(topic) {
            Some(partitions) => _ = partitions.insert(partition, now),
            None => _ = self.0.insert(topic.to_owned(), HashMap::from([(partition, now)])),
        }
    }

    /// Another producer begins.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl<'a> Opening<'a> {
    /// Hands over the next message for this partition, unless it has to wait: then there is `None`.
    ///
    /// Behind one that the library did not take, all have to wait. It may take the next, as it learns of partitions at any time: that one
    /// must not be there first. One that is too large never comes, so nothing is there before it.
    pub(super) async fn pass(
        &mut self,
        topic: &'a str,
        partition: i32,
        now: Instant,
        hand_over: impl Future<Output = Result<(), RDKafkaErrorCode>>,
    ) -> Option<Result<(), RDKafkaErrorCode>> {
        if !self.may_send(topic, partition, now) {
            return None;
        }
        let handed_over = hand_over.await;
        if handed_over.is_err_and(|code| code != RDKafkaErrorCode::MessageSizeTooLarge) {
            self.closed.push((topic, partition));
        }
        Some(handed_over)
    }

    /// Whether the next message for this partition may be sent, with whatever was sent there before it.
    fn may_send(&mut self, topic: &'a str, partition: i32, now: Instant) -> bool {
        let there = (topic, partition);
        if self.closed.contains(&there) {
            return false;
        }
        let heard = self.opened.0.get(topic).and_then(|partitions| partitions.get(&partition));
        if heard.is_some_and(|heard| now.duration_since(*heard) < REMEMBERED) {
            return true;
        }
        let is_first = !self.openers.contains(&there);
        if is_first {
            self.openers.push(there);
        }
        is_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_message_to_a_partition_goes_alone() {
        let now = Instant::now();
        let mut opened = Opened::default();
        let mut opening = opened.opening();
        assert!(
            opening.may_send("a", 0, now) && opening.may_send("a", 1, now) && opening.may_send("b", 0, now)
        );
        assert!(!opening.may_send("a", 0, now) && !opening.may_send("b", 0, now));
        opened.open("a", 0, now);
        let mut opening = opened.opening();
        assert!(opening.may_send("a", 0, now) && opening.may_send("a", 0, now));
        let later = now + REMEMBERED;
        assert!(opening.may_send("a", 0, later) && !opening.may_send("a", 0, later));
        opened.clear();
        let mut opening = opened.opening();
        assert!(opening.may_send("a", 0, now) && !opening.may_send("a", 0, now));
    }

    #[tokio::test]
    async fn a_partition_that_did_not_take_a_message_gets_no_later_one() {
        let now = Instant::now();
        let mut opened = Opened::default();
        opened.open("a", 0, now);
        opened.open("a", 1, now);
        let mut opening = opened.opening();
        // What the library would say of each, if it were asked.
        let (large, unknown) = (RDKafkaErrorCode::MessageSizeTooLarge, RDKafkaErrorCode::UnknownPartition);
        for (partition, said, passed) in [
            (0, Ok(()), Some(Ok(()))),
            (0, Err(large), Some(Err(large))),
            (0, Ok(()), Some(Ok(()))),
            (0, Err(unknown), Some(Err(unknown))),
            (0, Ok(()), None),
            (1, Ok(()), Some(Ok(()))),
        ] {
            assert_eq!(opening.pass("a", partition, now, std::future::ready(said)).await, passed);
        }
        assert!(opened.opening().may_send("a", 0, now));
    }
}
