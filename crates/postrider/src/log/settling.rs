//! A settling on its way: stored through a connection of its own, while the next round is read.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::{Connection, PgConnection};
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle};

use super::cursor::Cursor;
use super::error::{Error, Result};
use super::parking::{self, Holder, Parking};
use super::progress::{self, Tenure};
use super::reader::Settled;

/// What is to be stored.
pub(super) struct Task {
    pub(super) connection: PgConnection,
    pub(super) tenure: Tenure,
    pub(super) cursors: BTreeMap<i16, Cursor>,
    /// How many rounds were read when it began.
    pub(super) rounds: u64,
    /// How many events it moves past.
    pub(super) events: u64,
    /// The lanes it speaks of.
    pub(super) lanes: Vec<i16>,
    /// Those of them that were lost before it began.
    pub(super) lost: Vec<i16>,
}

/// What was stored.
pub(super) struct Stored {
    pub(super) connection: PgConnection,
    pub(super) tenure: Tenure,
    pub(super) rounds: u64,
    pub(super) settled: progress::Settled,
}

/// A failure is answered by the driver, once it has given the connection up: what the reader takes next must not come from there.
pub(super) type Failure = (Error, oneshot::Sender<Result<Settled>>);

/// A settling that was begun.
pub(super) type Running = JoinHandle<std::result::Result<Stored, Failure>>;

/// A settling that has ended.
pub(super) type Ended = std::result::Result<std::result::Result<Stored, Failure>, JoinError>;

const PATIENCE: Duration = Duration::from_secs(20);

impl Task {
    /// Stores it, and tells the reader as soon as it is.
    pub(super) fn begin(
        self,
        holder: Holder,
        parking: Parking,
        reply: oneshot::Sender<Result<Settled>>,
    ) -> Running {
        tokio::spawn(async move {
            let in_time = tokio::time::timeout(PATIENCE, self.store(holder, &parking)).await;
            match in_time.unwrap_or_else(|_| Err(Error::NoAnswer { seconds: PATIENCE.as_secs() })) {
                Ok((stored, settled)) => {
                    // Nobody may be waiting for it any more; it is stored all the same.
                    let _ = reply.send(Ok(settled));
                    Ok(stored)
                }
                Err(error) => Err((error, reply)),
            }
        })
    }

    async fn store(mut self, holder: Holder, parking: &Parking) -> Result<(Stored, Settled)> {
        let (tenure, cursors) = (&mut self.tenure, &self.cursors);
        let mut lost = self.lost;
        let mut note_lost = |held: &[i16]| lost.extend(self.lanes.iter().filter(|lane| !held.contains(lane)));
        let settled = if parking.events.is_empty() {
            let settled = progress::append_past(&mut self.connection, tenure, cursors, self.events).await?;
            note_lost(&settled.lanes);
            settled
        } else {
            let mut transaction = self.connection.begin().await?;
            let settled = progress::append_past(&mut transaction, tenure, cursors, self.events).await?;
            note_lost(&settled.lanes);
            // What was lost is read again by somebody, who decides anew.
            parking::park(&mut transaction, holder, parking, &lost).await?;
            transaction.commit().await?;
            settled
        };
        lost.sort_unstable();
        lost.dedup();
        let stored =
            Stored { connection: self.connection, tenure: self.tenure, rounds: self.rounds, settled };
        Ok((stored, Settled { lost }))
    }
}
