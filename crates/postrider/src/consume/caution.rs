//! How to find the event that ends the process.
//!
//! A handler that aborts, or whose process is killed for its memory, says nothing and leaves nothing: its batch is rolled back, and the next
//! process gets the same events. So the first batch that a process takes of a lane is noted in the database before it is begun. Who finds
//! such a note comes after somebody who did not get to the end of that batch: it takes those events one by one, each of them counted before
//! it is begun, and with nothing else at work in the process, or the neighbours would be counted with the one that ends it.
//!
//! An event that succeeds leaves no note, and a process that has once got through a batch of a lane writes none there.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection as _, PgConnection};
use tokio::sync::{Mutex as AsyncMutex, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use uuid::Uuid;

use crate::log::error::Result;

/// How a batch is to be begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Care {
    /// As it is.
    Plain,
    /// Somebody may have died here: it is noted first.
    Noted,
    /// Its first event by itself, and counted first.
    Alone,
}

#[derive(Debug, Default)]
struct Seen {
    /// Lanes of which this process has committed a batch.
    lanes: HashSet<i32>,
    /// Its own notes, which it has lived through so far, and whether they count as tries.
    notes: HashMap<i32, (Uuid, bool)>,
}

/// What the workers of a process know together.
#[derive(Debug)]
pub(super) struct Caution {
    consumer: String,
    options: Arc<PgConnectOptions>,
    /// Not of the pool: whoever writes a note has a connection of that in hand, and so may all others.
    connection: AsyncMutex<Option<PgConnection>>,
    company: Arc<RwLock<()>>,
    seen: Mutex<Seen>,
}

impl Caution {
    pub(super) fn new(consumer: String, options: Arc<PgConnectOptions>) -> Self {
        let (connection, company, seen) = (AsyncMutex::default(), Arc::default(), Mutex::default());
        Self { consumer, options, connection, company, seen }
    }

    /// Held by who works on what is not suspected.
    pub(super) async fn in_company(&self) -> OwnedRwLockReadGuard<()> {
        Arc::clone(&self.company).read_owned().await
    }

    /// Held by who tries a suspect: nobody else is at work.
    pub(super) async fn alone(&self) -> OwnedRwLockWriteGuard<()> {
        Arc::clone(&self.company).write_owned().await
    }

    /// What is known of the lane whose first event this is.
    pub(super) fn about(&self, lane: i32, first: Uuid, is_suspect: bool) -> Care {
        let seen = self.seen();
        match (seen.notes.get(&lane), is_suspect) {
            (Some(note), _) if *note == (first, false) => Care::Plain,
            (_, true) => Care::Alone,
            (_, false) if seen.lanes.contains(&lane) => Care::Plain,
            (_, false) => Care::Noted,
        }
    }

    /// Notes that this event is about to be begun, with so many. Committed when this returns, and not made twice.
    pub(super) async fn note(&self, lane: i32, first: Uuid, events: usize, is_alone: bool) -> Result<()> {
        if self.has_noted(lane, first, is_alone) {
            return Ok(());
        }
        let mut place = self.connection.lock().await;
        // Whatever is left of one that failed is not used again.
        let mut connection = match place.take() {
            Some(connection) => connection,
            None => PgConnection::connect_with(&self.options).await?,
        };
        sqlx::query("select postrider.begin_try($1, $2, $3, $4, $5)")
            .bind(&self.consumer)
            .bind(lane)
            .bind(first)
            .bind(is_alone)
            .bind(i32::try_from(events).unwrap_or(i32::MAX))
            .execute(&mut connection)
            .await?;
        *place = Some(connection);
        self.seen().notes.insert(lane, (first, is_alone));
        Ok(())
    }

    pub(super) fn has_noted(&self, lane: i32, first: Uuid, is_alone: bool) -> bool {
        self.seen().notes.get(&lane) == Some(&(first, is_alone))
    }

    /// A batch of this lane was committed.
    pub(super) fn got_through(&self, lane: i32) {
        let mut seen = self.seen();
        seen.lanes.insert(lane);
        seen.notes.remove(&lane);
    }

    /// Its first event has failed in words, and the note is not in the database any more.
    pub(super) fn forget(&self, lane: i32) {
        self.seen().notes.remove(&lane);
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
