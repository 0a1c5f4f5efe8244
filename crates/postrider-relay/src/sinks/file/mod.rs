//! Lines of JSON at the end of a file.

mod config;
mod error;
mod holder;
mod rotation;
mod tail;
mod writer;

pub use config::{FileConfig, Fsync};
pub use tail::ends_foreign;

use std::time::Duration;

use tokio::time;

use super::hand::Hand;
use super::lines::Lines;
use crate::sink::{BoxFuture, Message, Outcome, Report, Sink, Unavailable, UnavailableKind};
use writer::Writer;

/// A local disk answers sooner; a network file system that is gone may never.
const PATIENCE: Duration = Duration::from_secs(30);

/// Appends to one file, and holds a lock on it so that nobody else does.
///
/// A batch is one write and, by the policy, one fsync. What fails half-way is cut off again, so a line is in the file whole or not at
/// all, and is not there twice because of a full disk.
pub struct FileSink {
    hand: Hand<Writer>,
    lines: Lines,
}

impl FileSink {
    /// Opens and locks the file, makes it if there is none, and cuts off what a crash left of a line. A file that ends with what
    /// can be no line of ours is left as it is.
    pub async fn open(config: FileConfig) -> Result<Self, Unavailable> {
        let hand = Hand::start("file sink", Writer::new(config))
            .map_err(|error| Unavailable::new(UnavailableKind::Blocked, error))?;
        answer(hand.run(Writer::open)).await??;
        Ok(Self { hand, lines: Lines::default() })
    }
}

impl Sink for FileSink {
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report> {
        Box::pin(async move {
            let mut lines = std::mem::take(&mut self.lines);
            lines.fill(batch);
            let write = self.hand.run(move |writer| (writer.append(&lines), lines));
            let ((delivered, result), lines) = match answer(write).await {
                Ok(answer) => answer,
                Err(why) => return Report::unavailable(batch.len(), why),
            };
            self.lines = lines.emptied();
            let mut outcomes = vec![Outcome::Delivered; delivered];
            outcomes.resize(batch.len(), Outcome::NotSent);
            Report { outcomes, unavailable: result.err() }
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        Box::pin(async move { answer(self.hand.run(Writer::close)).await })
    }
}

async fn answer<T>(work: impl Future<Output = Option<T>>) -> Result<T, Unavailable> {
    match time::timeout(PATIENCE, work).await {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err(Unavailable::new(UnavailableKind::Connection, "the writing thread has died")),
        Err(_) => {
            Err(Unavailable::new(UnavailableKind::Timeout, "the file system has not answered for 30 seconds"))
        }
    }
}
