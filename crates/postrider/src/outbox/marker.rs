//! Keeps the columns of an adopted table true: when every sink has a row, and why one refuses it.

use std::time::{Duration, Instant};

use sqlx::PgConnection;

use super::declaration::Outbox;
use super::failure::{Error, Result};
use super::functions;
use super::keeper::is_due;
use super::lifecycle::Lifecycle;
use super::mapping::Mapping;
use crate::capture;

/// How many rows of one lane are marked by one statement, and how many if one of them is locked.
const SET: i64 = 500;
const FEWER: [i64; 3] = [SET, 20, 1];
/// Less than a relay's session waits for any lock.
const PATIENCE: Duration = Duration::from_secs(4);
/// How often refusals are told of.
const REFUSALS: Duration = Duration::from_secs(1);

/// Marks the rows of a table, or of some of its lanes. Beside the table's [`Keeper`](super::Keeper), over a session of its own: moving and marking cost the
/// server about the same, and a row that somebody has locked when it is to be marked holds up no other's way into the log.
#[derive(Debug)]
pub struct Marker {
    table: String,
    oid: i64,
    function: String,
    lifecycle: Lifecycle,
    part: Part,
    lanes: i16,
    refusals: Option<Instant>,
}

/// Which lanes: one of so many equal parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// From 0.
    pub number: i16,
    /// How many there are.
    pub of: i16,
}

impl Part {
    /// All of them.
    pub const WHOLE: Self = Self { number: 0, of: 1 };
}

/// What a round came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Marked {
    /// Rows whose columns say now that every sink has them.
    pub settled: u64,
    /// There is more to do at once.
    pub has_more: bool,
}

impl Marker {
    /// Looks at the table. `None` if nothing in it could be kept.
    pub async fn open(connection: &mut PgConnection, outbox: &Outbox, part: Part) -> Result<Option<Self>> {
        let mapping = Mapping::of(connection, outbox).await?;
        let Some(lifecycle) = Lifecycle::of(connection, &mapping).await? else { return Ok(None) };
        Ok(Some(Self {
            table: mapping.shape.name.clone(),
            oid: mapping.shape.oid,
            function: functions::marker(connection, &mapping).await?,
            lifecycle,
            part,
            lanes: sqlx::query_scalar("select postrider.lanes()::smallint").fetch_one(connection).await?,
            refusals: None,
        }))
    }

    /// One round. It does no harm where another marks the same rows.
    pub async fn work(&mut self, connection: &mut PgConnection) -> Result<Marked> {
        let functions = std::slice::from_ref(&self.function);
        if let Some(function) = capture::not_callable(connection, functions, self.oid).await? {
            return Err(Error::NotCallable { table: self.table.clone(), function });
        }
        // One of them tells of all.
        if self.part.number == 0 && is_due(&mut self.refusals, REFUSALS) {
            // Of a row that somebody has locked it is told the next time.
            let begun = Instant::now();
            unless_locked(begun, self.lifecycle.tell_refusals(connection).await)?;
        }
        let begun = Instant::now();
        match unless_locked(begun, self.lifecycle.settle(connection, self.part, SET).await)? {
            // At least one lane had a full set.
            Some(settled) => Ok(Marked { settled, has_more: settled >= SET.unsigned_abs() }),
            None => self.settle_around(connection).await,
        }
    }

    /// Somebody has a row locked. What is behind it in its lane waits, what is before it and in other lanes does not.
    async fn settle_around(&self, connection: &mut PgConnection) -> Result<Marked> {
        let mut marked = Marked::default();
        for number in (0..self.lanes).filter(|lane| lane % self.part.of == self.part.number) {
            let lane = Part { number, of: self.lanes };
            for set in FEWER {
                let begun = Instant::now();
                let settled = self.lifecycle.settle(connection, lane, set).await;
                if let Some(settled) = unless_locked(begun, settled)? {
                    marked.settled += settled;
                    break;
                }
            }
        }
        Ok(marked)
    }
}

/// `None` if somebody has one of the rows locked. For a row nobody waits long; who has waited for as long as the session lets him has met a lock on a
/// table, and there is no way around that.
fn unless_locked<T>(begun: Instant, done: Result<T>) -> Result<Option<T>> {
    match done {
        Err(error) if error.is_locked() && begun.elapsed() < PATIENCE => Ok(None),
        done => done.map(Some),
    }
}
