//! A settling on its way: stored through a connection of its own, while the next round is read.

use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinHandle};
use uuid::Uuid;

use super::cursor::Cursor;
use super::driver::{Command, Settle, State};
use super::error::{Error, Result};
use super::lanes::{Lanes, Settling};
use super::lease;
use super::parking::{self, Holder, Parking};
use super::progress::{self, Tenure};
use super::reader::Settled;

/// The side of a link that settling needs, so that it can go on while the other side reads.
pub(super) struct Holding<'l> {
    pub(super) link: Uuid,
    pub(super) lanes: &'l mut Lanes,
    pub(super) tenure: &'l mut Tenure,
    pub(super) settler: &'l mut Option<PgConnection>,
    pub(super) lease_ends: &'l mut Instant,
}

impl Holding<'_> {
    /// Takes note of what is delivered, and says what is to be stored. Only one settling at a time is on its way.
    fn task(&mut self, delivered: &[(i16, Settling)]) -> Result<Task> {
        let mut lost = Vec::new();
        let mut events = 0;
        for (lane, settling) in delivered {
            match self.lanes.on_delivered(*lane, settling)? {
                Some(more) => events += more,
                None => lost.push(*lane),
            }
        }
        let lanes = delivered.iter().map(|(lane, _)| *lane).collect();
        let (sink, epoch) = (self.tenure.name.clone(), self.tenure.epoch);
        let connection = self.settler.take().ok_or(Error::LeaseLost { sink, epoch })?;
        let (tenure, cursors, rounds) = (self.tenure.clone(), self.lanes.settled(), self.lanes.rounds());
        Ok(Task { connection, tenure, cursors, rounds, events, lanes, lost })
    }

    /// A settling has ended well.
    pub(super) fn on_stored(&mut self, stored: Stored) {
        *self.settler = Some(stored.connection);
        self.tenure.number = stored.tenure.number;
        self.lanes.bound_by(stored.settled.bound, stored.rounds);
        // Whoever lost a lane was silent for longer than its lease, so a heartbeat is overdue, and sharing out would find the same before
        // anything more is read or handed out. But this is known now, and it costs nothing to heed it.
        self.lanes.keep_only(&stored.settled.lanes);
    }
}

/// What a reader may ask for while its driver reads.
pub(super) struct Meanwhile<'d> {
    pub(super) holder: Holder,
    pub(super) patience: Duration,
    pub(super) lease: Duration,
    /// How often in a row storing has failed.
    pub(super) failures: &'d mut u32,
    pub(super) commands: &'d mut mpsc::Receiver<Command>,
    /// A command that has to wait until the round is read.
    pub(super) pending: &'d mut Option<Command>,
    pub(super) settling: &'d mut Option<Running>,
    pub(super) ended: &'d mut Option<Ended>,
    pub(super) state: &'d watch::Sender<State>,
}

impl Meanwhile<'_> {
    /// Begins to store how far `holding` is delivered, and answers the reader when it is.
    pub(super) fn begin(&mut self, settle: Settle, holding: Option<&mut Holding<'_>>) {
        let Settle { sink, link, cursors, parking, reply } = settle;
        let task = match holding.filter(|holding| holding.link == link) {
            Some(holding) => holding.task(&cursors),
            None => Err(Error::ConnectionLost { sink }),
        };
        match task {
            Ok(task) => *self.settling = Some(task.begin(self.holder, parking, self.patience, reply)),
            // Nobody may be waiting for it any more.
            Err(error) => drop(reply.send(Err(error))),
        }
    }

    /// Waits for a round, and settles while it is read: a settling that waited for the round would hold up all delivery. Keeps the lease,
    /// too: a round of large events may take longer.
    pub(super) async fn during<T>(
        &mut self,
        reading: impl Future<Output = Result<T>>,
        holding: &mut Holding<'_>,
    ) -> Result<T> {
        let mut reading = pin!(reading);
        loop {
            let may_settle = self.pending.is_none() && self.settling.is_none() && self.ended.is_none();
            let left = holding.lease_ends.saturating_duration_since(Instant::now());
            // Once it has run out, whether anything is lost shows when the round is over.
            let may_renew = holding.settler.is_some() && !left.is_zero();
            tokio::select! {
                read = &mut reading => return read,
                () = tokio::time::sleep(left.saturating_sub(self.lease * 2 / 3)), if may_renew => {
                    let (renewed, read) = beside(self.renew(holding), reading.as_mut()).await;
                    renewed?;
                    if let Some(read) = read {
                        return read;
                    }
                }
                Some(command) = self.commands.recv(), if may_settle => match command {
                    Command::Settle(settle) => self.begin(settle, Some(holding)),
                    close @ Command::Close { .. } => *self.pending = Some(close),
                },
                ended = end_of(self.settling) => {
                    *self.settling = None;
                    match ended {
                        Ok(Ok(stored)) => {
                            *self.failures = 0;
                            holding.on_stored(stored);
                        }
                        failed => *self.ended = Some(failed),
                    }
                }
            }
        }
    }
}

impl Meanwhile<'_> {
    async fn renew(&self, holding: &mut Holding<'_>) -> Result<()> {
        let Some(connection) = holding.settler else { return Ok(()) };
        let now = Instant::now();
        if lease::renew(connection, self.holder.reader, self.lease).await? {
            *holding.lease_ends = now + self.lease;
            // What is delivered meanwhile depends on it.
            self.state.send_modify(|state| state.lease_ends = Some(*holding.lease_ends));
        }
        Ok(())
    }
}

/// Waits for one thing while another goes on, which may come to its end meanwhile.
async fn beside<T, U>(
    awaited: impl Future<Output = T>,
    mut other: Pin<&mut impl Future<Output = U>>,
) -> (T, Option<U>) {
    let mut awaited = pin!(awaited);
    let mut ended = None;
    loop {
        tokio::select! {
            done = &mut awaited => return (done, ended),
            end = other.as_mut(), if ended.is_none() => ended = Some(end),
        }
    }
}

/// The end of the settling that is on its way.
pub(super) async fn end_of(settling: &mut Option<Running>) -> Ended {
    match settling {
        Some(running) => running.await,
        None => std::future::pending().await,
    }
}

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

impl Task {
    /// Stores it, and tells the reader as soon as it is.
    pub(super) fn begin(
        self,
        holder: Holder,
        parking: Parking,
        patience: Duration,
        reply: oneshot::Sender<Result<Settled>>,
    ) -> Running {
        tokio::spawn(async move {
            let in_time = tokio::time::timeout(patience, self.store(holder, &parking)).await;
            match in_time.unwrap_or_else(|_| Err(Error::NoAnswer { seconds: patience.as_secs() })) {
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
            // Before progress, like everybody who needs both: who shares out lanes would wait for us, and we for them.
            parking::lock(&mut transaction, holder.sink).await?;
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
