//! Takes messages as there is room for them, and keeps listening where there is none: that is when partitions come and go.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::error::KafkaError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::link::KafkaReceipt;
use super::tap::{Partitions, Received, Tap as _, hold};
use super::tracker::Tracker;
use super::trouble;
use crate::consumer::{Delivery, Terms, Trouble};

/// How long there may be no room before the partitions are paused.
const PATIENCE: Duration = Duration::from_millis(500);

type Outlet = mpsc::Sender<Result<Delivery<KafkaReceipt>, Trouble>>;

pub(super) struct Pump {
    tap: Partitions,
    tracker: Arc<Tracker>,
    room: Arc<Semaphore>,
    outlet: Outlet,
    waiting: VecDeque<Received>,
}

impl Pump {
    pub(super) fn new(tap: Partitions, tracker: Arc<Tracker>, terms: &Terms, outlet: Outlet) -> Self {
        let room = Arc::clone(&terms.room);
        Self { tap, tracker, room, outlet, waiting: VecDeque::new() }
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
                None => match self.tap.receive().await {
                    Ok(received) => received,
                    Err(error) => return error,
                },
            };
            let room = match self.make_room(&received).await {
                Ok(room) => room,
                Err(error) => return error,
            };
            if received.assignment != self.tap.assignment() {
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
        let in_time = tokio::time::timeout(PATIENCE, &mut roomy).await;
        let permit = match in_time {
            Ok(permit) => permit,
            Err(_) => hold(&self.tap, roomy, &mut self.waiting).await?,
        };
        permit.map_err(|_| KafkaError::Canceled)
    }
}
