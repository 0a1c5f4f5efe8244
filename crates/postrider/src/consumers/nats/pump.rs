//! Asks for messages, as many as there is room for.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::AckKind;
use async_nats::jetstream::consumer::{Consumer, pull};
use async_nats::jetstream::context::Context;
use futures_util::StreamExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::link::{NatsReceipt, say};
use super::message;
use crate::consumer::{Delivery, Terms, Trouble};

/// How long a question stays open. Its room is not free for others that long.
const OPEN: Duration = Duration::from_secs(5);

type Outlet = mpsc::Sender<Result<Delivery<NatsReceipt>, Trouble>>;

pub(super) struct Pump {
    context: Context,
    consumer: Consumer<pull::Config>,
    prefetch: usize,
    room: Arc<Semaphore>,
    down: watch::Receiver<bool>,
    outlet: Outlet,
}

impl Pump {
    pub(super) fn new(
        context: Context,
        consumer: Consumer<pull::Config>,
        terms: &Terms,
        down: watch::Receiver<bool>,
        outlet: Outlet,
    ) -> Self {
        let (prefetch, room) = (terms.prefetch as usize, Arc::clone(&terms.room));
        Self { context, consumer, prefetch, room, down, outlet }
    }

    pub(super) async fn run(self) {
        let mut down = self.down.clone();
        let trouble = tokio::select! {
            _ = down.wait_for(|down| *down) => Trouble::away("the connection to NATS was lost"),
            trouble = self.rounds() => match trouble {
                Some(trouble) => trouble,
                None => return,
            },
        };
        let _ = self.outlet.send(Err(trouble)).await;
    }

    /// Until something is wrong, or nobody listens any more.
    async fn rounds(&self) -> Option<Trouble> {
        loop {
            let first = tokio::select! {
                permit = Arc::clone(&self.room).acquire_owned() => permit.ok()?,
                () = self.outlet.closed() => return None,
            };
            let mut permits = vec![first];
            while permits.len() < self.prefetch
                && let Ok(permit) = Arc::clone(&self.room).try_acquire_owned()
            {
                permits.push(permit);
            }
            if let Some(trouble) = self.round(permits).await? {
                return Some(trouble);
            }
        }
    }

    /// None when nobody listens any more.
    async fn round(&self, mut permits: Vec<OwnedSemaphorePermit>) -> Option<Option<Trouble>> {
        let asked = self.consumer.batch().max_messages(permits.len()).expires(OPEN).messages().await;
        let mut messages = match asked {
            Ok(messages) => messages,
            Err(error) => return Some(Some(Trouble::away(error))),
        };
        while let Some(found) = messages.next().await {
            let found = match found {
                Ok(found) => found,
                Err(error) => return Some(Some(Trouble::away(error))),
            };
            let Some(room) = permits.pop() else { continue };
            let is_repeated = found.info().is_ok_and(|info| info.delivered > 1);
            let Some(reply) = found.reply.clone() else { continue };
            let (found, _) = found.split();
            let receipt = NatsReceipt(reply);
            let delivery = Delivery { message: message::message(&found), receipt, is_repeated, room };
            if let Err(unwanted) = self.outlet.send(Ok(delivery)).await {
                if let Ok(delivery) = unwanted.0 {
                    let _ = say(&self.context, &delivery.receipt, AckKind::Nak(None)).await;
                }
                return None;
            }
        }
        Some(None)
    }
}
