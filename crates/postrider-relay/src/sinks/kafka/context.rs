//! What the client library tells us, from threads of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{DeliveryResult, ProducerContext};
use tokio::sync::Notify;

use super::error::{Trouble, trouble};
use super::tally::{Answer, Tally, Ticket};

/// Shared between a producer's threads and whoever waits for answers.
#[derive(Default)]
pub(super) struct Context {
    tally: Mutex<Tally>,
    /// The last thing that went wrong with the connections.
    trouble: Mutex<Option<Trouble>>,
    /// The producer has stopped for good.
    is_fatal: AtomicBool,
    /// Something of the above is new.
    pub(super) news: Notify,
}

impl Context {
    pub(super) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_fatal(&self) -> bool {
        self.is_fatal.load(Ordering::Acquire)
    }

    /// What has gone wrong since this was last asked.
    pub(super) fn take_trouble(&self) -> Option<Trouble> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether what has gone wrong since then is of this sort.
    pub(super) fn has_trouble(&self, is_meant: impl FnOnce(&Trouble) -> bool) -> bool {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(is_meant)
    }

    fn note(&self, new: Trouble) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        // "All brokers are down" comes behind the reason why.
        *trouble = Some(new.behind(trouble.take()));
        drop(trouble);
        self.news.notify_one();
    }
}

impl ClientContext for Context {
    /// It tells everything twice, and the relay says what matters.
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(target: "postrider_relay::kafka", facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "postrider_relay::kafka", %error, reason);
        let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
        if code == RDKafkaErrorCode::Fatal {
            self.is_fatal.store(true, Ordering::Release);
        }
        self.note(trouble(code, reason));
    }
}

impl ProducerContext for Context {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: usize) {
        let answer = match result {
            Ok(_) => Answer::Confirmed,
            Err((error, _)) => {
                Answer::Failed(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown))
            }
        };
        let is_awaited = self.tally().answer(Ticket::from_number(ticket), answer);
        if is_awaited {
            self.news.notify_one();
        }
    }
}
