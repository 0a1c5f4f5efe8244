//! One batch through a handler, event by event or as a whole.

use std::time::Duration;

use uuid::Uuid;

use super::words::caught;
use super::{BoxError, Message, Outcome, Tx};

/// An event that is given up.
pub(super) type Dead = (Uuid, String);

/// Why a batch cannot be committed.
pub(super) struct Failure {
    /// The event it failed at, by its place in the batch.
    pub(super) at: usize,
    /// Whether that is known, or any of them may be it.
    pub(super) is_known: bool,
    /// When to try again, if the handler said so.
    pub(super) pause: Option<Duration>,
    pub(super) why: BoxError,
}

/// Hands batches to whatever kind of handler it is.
pub(super) trait Process {
    async fn process(&self, transaction: &mut Tx, messages: &[Message]) -> Result<Vec<Dead>, Failure>;
}

/// A handler that gets one event at a time.
pub(super) struct EachEvent<H>(pub(super) H);

impl<H, E> Process for EachEvent<H>
where
    H: AsyncFn(&mut Tx, &Message) -> Result<Outcome, E>,
    E: Into<BoxError>,
{
    async fn process(&self, transaction: &mut Tx, messages: &[Message]) -> Result<Vec<Dead>, Failure> {
        let mut dead = Vec::new();
        for (at, message) in messages.iter().enumerate() {
            let failed = |pause, why| Failure { at, is_known: true, pause, why };
            match caught((self.0)(transaction, message)).await {
                Ok(Ok(Outcome::Done)) => {}
                Ok(Ok(Outcome::Dead(reason))) => dead.push((message.id, reason)),
                Ok(Ok(Outcome::Retry(pause))) => {
                    return Err(failed(Some(pause), "the handler asked for another attempt".into()));
                }
                Ok(Err(error)) => return Err(failed(None, error.into())),
                Err(panic) => return Err(failed(None, panic.into())),
            }
        }
        Ok(dead)
    }
}

/// A handler that gets the events of one lane together.
pub(super) struct WholeBatch<H>(pub(super) H);

impl<H, E> Process for WholeBatch<H>
where
    H: AsyncFn(&mut Tx, &[Message]) -> Result<Outcome, E>,
    E: Into<BoxError>,
{
    async fn process(&self, transaction: &mut Tx, messages: &[Message]) -> Result<Vec<Dead>, Failure> {
        let failed = |pause, why| Failure { at: 0, is_known: messages.len() == 1, pause, why };
        match (caught((self.0)(transaction, messages)).await, messages) {
            (Ok(Ok(Outcome::Done)), _) => Ok(Vec::new()),
            (Ok(Ok(Outcome::Dead(reason))), [only]) => Ok(vec![(only.id, reason)]),
            // Which of them it means shows when they come one by one.
            (Ok(Ok(Outcome::Dead(reason))), _) => Err(failed(None, reason.into())),
            (Ok(Ok(Outcome::Retry(pause))), _) => {
                Err(failed(Some(pause), "the handler asked for another attempt".into()))
            }
            (Ok(Err(error)), _) => Err(failed(None, error.into())),
            (Err(panic), _) => Err(failed(None, panic.into())),
        }
    }
}
