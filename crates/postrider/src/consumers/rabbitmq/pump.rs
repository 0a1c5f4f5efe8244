//! Takes what the server pushes, which is no more than there is room for.

use std::sync::Arc;

use futures_util::StreamExt as _;
use lapin::message::Delivery as Pushed;
use lapin::options::{BasicAckOptions, BasicCancelOptions};
use lapin::{Channel, Consumer};
use tokio::sync::{Semaphore, mpsc};

use super::{message, queue, trouble};
use crate::consumer::{Delivery, Terms, Trouble};

type Outlet = mpsc::Sender<Result<Delivery<u64>, Trouble>>;

pub(super) struct Pump {
    channel: Channel,
    consuming: Consumer,
    consumer: String,
    room: Arc<Semaphore>,
    outlet: Outlet,
}

impl Pump {
    pub(super) fn new(channel: Channel, consuming: Consumer, terms: &Terms, outlet: Outlet) -> Self {
        let (consumer, room) = (terms.consumer.clone(), Arc::clone(&terms.room));
        Self { channel, consuming, consumer, room, outlet }
    }

    pub(super) async fn run(mut self) {
        loop {
            let pushed = tokio::select! {
                pushed = self.consuming.next() => pushed,
                () = self.outlet.closed() => {
                    // So that what is given back does not come back here.
                    let _ = self.channel.basic_cancel(self.consuming.tag(), BasicCancelOptions::default()).await;
                    return;
                }
            };
            let result = match pushed {
                None => {
                    Err(Trouble::away("RabbitMQ has ended the delivery: the queue is gone, or its leader"))
                }
                Some(Err(error)) => Err(trouble(error)),
                Some(Ok(pushed)) => self.take(&pushed).await,
            };
            match result {
                Ok(()) => {}
                Err(trouble) => {
                    let _ = self.outlet.send(Err(trouble)).await;
                    return;
                }
            }
        }
    }

    async fn take(&self, pushed: &Pushed) -> Result<(), Trouble> {
        let is_repeated = message::is_repeated(pushed);
        let message = message::message(pushed);
        if message.place == queue::dead(&self.consumer)
            && message.header("postrider-dead-consumer") == Some(self.consumer.as_str())
        {
            // It is with the dead letters already, and their exchange leads back here. One that somebody publishes again comes another way.
            tracing::warn!(
                consumer = self.consumer,
                id = message.id,
                "a dead letter of this consumer came back to its queue; take the binding away that leads here"
            );
            let acknowledged = self.channel.basic_ack(pushed.delivery_tag, BasicAckOptions::default()).await;
            return acknowledged.map_err(trouble);
        }
        // Closed is what nobody does.
        let Ok(room) = Arc::clone(&self.room).acquire_owned().await else { return Ok(()) };
        let delivery = Delivery { message, receipt: pushed.delivery_tag, is_repeated, room };
        // Where nobody listens any more, the next turn finds out.
        let _ = self.outlet.send(Ok(delivery)).await;
        Ok(())
    }
}
