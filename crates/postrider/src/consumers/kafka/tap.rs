//! Where messages come from, and how they are held back.

use std::collections::VecDeque;
use std::sync::Arc;

use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::error::KafkaError;
use rdkafka::{Message as _, TopicPartitionList};

use super::context::{Assignments, Context};
use super::message;
use super::tracker::Partition;
use crate::consumer::Message;

/// What was received and has no room yet.
pub(super) struct Received {
    /// Since when, among all assignments of partitions.
    pub(super) assignment: u64,
    pub(super) partition: Partition,
    pub(super) offset: i64,
    pub(super) message: Message,
}

/// The partitions that were assigned.
pub(super) trait Tap {
    /// How often partitions were assigned.
    fn assignment(&self) -> u64;
    async fn receive(&self) -> Result<Received, KafkaError>;
    /// All of them, as they are now.
    fn pause(&self) -> Result<TopicPartitionList, KafkaError>;
    fn resume(&self, partitions: &TopicPartitionList) -> Result<(), KafkaError>;
}

pub(super) struct Partitions {
    pub(super) consumer: Arc<StreamConsumer<Context>>,
    pub(super) assignments: Assignments,
}

impl Tap for Partitions {
    fn assignment(&self) -> u64 {
        self.assignments.count()
    }

    async fn receive(&self) -> Result<Received, KafkaError> {
        let found = self.consumer.recv().await?;
        let (assignment, offset) = (self.assignment(), found.offset());
        let partition = (found.topic().to_owned(), found.partition());
        Ok(Received { assignment, partition, offset, message: message::message(&found) })
    }

    fn pause(&self) -> Result<TopicPartitionList, KafkaError> {
        let partitions = self.consumer.assignment()?;
        self.consumer.pause(&partitions)?;
        Ok(partitions)
    }

    fn resume(&self, partitions: &TopicPartitionList) -> Result<(), KafkaError> {
        self.consumer.resume(partitions)
    }
}

/// Waits for room with the partitions paused, and listens meanwhile: that is when they come and go. What comes nevertheless waits.
pub(super) async fn hold<T: Tap, R>(
    tap: &T,
    mut room: impl Future<Output = R> + Unpin,
    waiting: &mut VecDeque<Received>,
) -> Result<R, KafkaError> {
    let mut assignment = tap.assignment();
    let mut paused = tap.pause()?;
    let room = loop {
        tokio::select! {
            room = &mut room => break room,
            received = tap.receive() => {
                let received = received?;
                // Partitions are not paused when they are assigned, and all that is in them would come.
                if received.assignment != assignment {
                    assignment = received.assignment;
                    paused = tap.pause()?;
                }
                waiting.push_back(received);
            }
        }
    };
    tap.resume(&paused)?;
    Ok(room)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use super::*;

    /// Has messages without end, unless it is paused.
    #[derive(Default)]
    struct Endless {
        assignment: Cell<u64>,
        is_paused: Cell<bool>,
    }

    impl Tap for Endless {
        fn assignment(&self) -> u64 {
            self.assignment.get()
        }

        async fn receive(&self) -> Result<Received, KafkaError> {
            poll_fn(|_| if self.is_paused.get() { Poll::Pending } else { Poll::Ready(()) }).await;
            let partition = ("t".to_owned(), 0);
            Ok(Received { assignment: self.assignment(), partition, offset: 0, message: Message::default() })
        }

        fn pause(&self) -> Result<TopicPartitionList, KafkaError> {
            self.is_paused.set(true);
            Ok(TopicPartitionList::new())
        }

        fn resume(&self, _: &TopicPartitionList) -> Result<(), KafkaError> {
            self.is_paused.set(false);
            Ok(())
        }
    }

    #[tokio::test]
    async fn partitions_that_come_while_there_is_no_room_are_held_back() {
        let (tap, mut waiting) = (Endless::default(), VecDeque::new());
        let room = async {
            for _ in 0..3 {
                tap.assignment.set(tap.assignment() + 1);
                tap.is_paused.set(false);
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
            }
        };
        hold(&tap, pin!(room), &mut waiting).await.unwrap();
        assert_eq!(waiting.len(), 3, "one of each assignment");
        assert!(!tap.is_paused.get());
    }
}
