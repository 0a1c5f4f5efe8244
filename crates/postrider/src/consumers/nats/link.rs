//! What is said to the server about messages in hand.

use std::time::Duration;

use async_nats::Subject;
use async_nats::jetstream::AckKind;
use async_nats::jetstream::context::Context;
use async_nats::jetstream::message::{Acker, PublishMessage};
use tokio::task::JoinHandle;

use super::{Nats, message, subject};
use crate::consumer::{Grave, Link, Message, Terms, Trouble};

/// By which a message is known: where its acknowledgement goes.
#[derive(Debug, Clone)]
pub struct NatsReceipt(pub(super) Subject);

/// A connection to NATS.
pub struct NatsLink {
    context: Context,
    dead_letters: String,
    ack_wait: Duration,
    /// How old a message of the stream may become.
    keeps: Duration,
    pump: JoinHandle<()>,
}

impl Drop for NatsLink {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

impl NatsLink {
    pub(super) fn new(
        context: Context,
        source: &Nats,
        terms: &Terms,
        max_age: Duration,
        pump: JoinHandle<()>,
    ) -> Self {
        // The server writes no limit as 0.
        let keeps = if max_age.is_zero() { Duration::MAX } else { max_age };
        Self { context, dead_letters: subject(&terms.consumer), ack_wait: source.ack_wait, keeps, pump }
    }
}

/// Sent, not confirmed: one that is lost brings the message again, and the inbox knows it.
pub(super) async fn say(context: &Context, receipt: &NatsReceipt, what: AckKind) -> Result<(), Trouble> {
    let acker = Acker::new(context.clone(), Some(receipt.0.clone()));
    acker.ack_with(what).await.map_err(Trouble::away)
}

impl Link for NatsLink {
    type Receipt = NatsReceipt;

    fn keeps(&self) -> Option<Duration> {
        Some(self.keeps)
    }

    async fn acknowledge(&self, receipt: &NatsReceipt) -> Result<(), Trouble> {
        say(&self.context, receipt, AckKind::Ack).await
    }

    async fn bury(&self, message: &Message, grave: &Grave<'_>) -> Result<(), Trouble> {
        let mut headers = message::headers(message);
        for (name, value) in grave.headers() {
            message::insert(&mut headers, name, &value);
        }
        message::insert(&mut headers, "postrider-dead-place", &message.place);
        // No `Nats-Msg-Id`: for two minutes the server takes another letter of that id for stored, also when somebody has moved the first one
        // back and it is gone. A letter may be there twice, as behind the other brokers, and is never lost.
        if let Some(id) = grave.event_id {
            message::insert(&mut headers, "postrider-dead-event", id);
        }
        let letter = PublishMessage::build().payload(message.body.clone().into()).headers(headers);
        let confirmation = self.context.send_publish(self.dead_letters.clone(), letter).await;
        confirmation.map_err(Trouble::away)?.await.map_err(Trouble::away)?;
        Ok(())
    }

    async fn discard(&self, receipt: &NatsReceipt) -> Result<(), Trouble> {
        say(&self.context, receipt, AckKind::Term).await
    }

    fn keep_every(&self) -> Option<Duration> {
        Some(self.ack_wait / 3)
    }

    async fn keep(&self, receipts: &[NatsReceipt]) -> Result<(), Trouble> {
        for receipt in receipts {
            say(&self.context, receipt, AckKind::Progress).await?;
        }
        Ok(())
    }

    async fn give_back(&self, receipts: &[NatsReceipt]) -> Result<(), Trouble> {
        for receipt in receipts {
            say(&self.context, receipt, AckKind::Nak(None)).await?;
        }
        Ok(())
    }

    async fn close(&self) {
        self.pump.abort();
        // What was said has to arrive.
        let _ = self.context.client().flush().await;
    }
}
