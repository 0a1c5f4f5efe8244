//! Takes messages as there is room for them, and keeps listening where there is none: that is when partitions come and go.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::Message as _;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::error::KafkaError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::context::{Assignments, Context};
use super::link::KafkaReceipt;
use super::tracker::{Partition, Tracker};
use super::{message, trouble};
use crate::consumer::{Delivery, Message, Terms, Trouble};

/// How long there may be no room before the partitions are paused.
const PATIENCE: Duration = Duration::from_millis(500);

type Outlet = mpsc::Sender<Result<Delivery<KafkaReceipt>, Trouble>>;

/// What was received and has no room yet.
struct Received {
    /// Since when, among all assignments of partitions.
    assignment: u64,
    partition: Partition,
    offset: i64,
    message: Message,
}

pub(super) struct Pump {
    consumer: Arc<StreamConsumer<Context>>,
    tracker: Arc<Tracker>,
    assignments: Assignments,
    room: Arc<Semaphore>,
    outlet: Outlet,
    waiting: VecDeque<Received>,
}

impl Pump {
    pub(super) fn new(
        consumer: Arc<StreamConsumer<Context>>,
        tracker: Arc<Tracker>,
        assignments: Assignments,
        terms: &Terms,
        outlet: Outlet,
    ) -> Self {
        let room = Arc::clone(&terms.room);
        Self { consumer, tracker, assignments, room, outlet, waiting: VecDeque::new() }
    }

    pub(super) async fn run(mut self) {
        let outlet = self.outlet.clone();
        let trouble = tokio::select! {
            error = self.rounds() => trouble(error),
            () = outlet.closed() => return,
        };
        let _ = outlet.send(Err(trouble)).await;
    }

    async fn rounds(&mut self) -> KafkaError {
        loop {
            let received = match self.waiting.pop_front() {
                Some(received) => received,
                None => match receive(&self.consumer, &self.assignments).await {
                    Ok(received) => received,
                    Err(error) => return error,
                },
            };
            let room = match self.make_room(&received).await {
                Ok(room) => room,
                Err(error) => return error,
            };
            if received.assignment != self.assignments.count() {
                // Partitions have come and gone: it comes again from where the group stands. Taken now, it would be counted as if
                // everything before it had been.
                continue;
            }
            let Received { partition, offset, message, assignment } = received;
            let is_repeated = self.tracker.open(&partition, offset, assignment);
            let receipt = KafkaReceipt { partition, offset };
            // Where nobody listens any more, that is found out above.
            let _ = self.outlet.send(Ok(Delivery { message, receipt, is_repeated, room })).await;
        }
    }

    async fn make_room(&mut self, received: &Received) -> Result<OwnedSemaphorePermit, KafkaError> {
        let (room, tracker) = (Arc::clone(&self.room), Arc::clone(&self.tracker));
        let roomy = async {
            tracker.until_near(&received.partition, received.offset).await;
            room.acquire_owned().await
        };
        let mut roomy = std::pin::pin!(roomy);
        let closed = |_| KafkaError::Canceled;
        if let Ok(permit) = tokio::time::timeout(PATIENCE, &mut roomy).await {
            return permit.map_err(closed);
        }
        let paused = self.consumer.assignment()?;
        self.consumer.pause(&paused)?;
        let permit = loop {
            tokio::select! {
                permit = &mut roomy => break permit.map_err(closed)?,
                received = receive(&self.consumer, &self.assignments) => self.waiting.push_back(received?),
            }
        };
        self.consumer.resume(&paused)?;
        Ok(permit)
    }
}

async fn receive(
    consumer: &StreamConsumer<Context>,
    assignments: &Assignments,
) -> Result<Received, KafkaError> {
    let found = consumer.recv().await?;
    let assignment = assignments.count();
    let partition = (found.topic().to_owned(), found.partition());
    Ok(Received { assignment, partition, offset: found.offset(), message: message::message(&found) })
}
