//! Keeps the columns of an adopted table true: when every sink has a row, and why one refuses it.

use std::time::{Duration, Instant};

use sqlx::PgConnection;
use uuid::Uuid;

use super::declaration::Outbox;
use super::failure::{Error, Result};
use super::functions;
use super::lifecycle::{Lifecycle, Say};
use super::mapping::Mapping;
use crate::capture;

/// How many rows of one lane are marked by one statement, and how many if one of them is locked.
const SET: i64 = 500;
const FEWER: [i64; 3] = [SET, 20, 1];
/// Less than a relay's session waits for any lock.
const PATIENCE: Duration = Duration::from_secs(4);
/// How often refusals are told of, of how many, and how many times as long as that takes it rests at least.
const REFUSALS: (Duration, i64, u32) = (Duration::from_secs(1), 50_000, 5);
/// So many rows are passed over because the table does not let them be marked, and for so long. Of more it is the table, and not the rows.
const PASSED: (usize, Duration) = (100, Duration::from_mins(10));

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
    /// When it looks for refusals again.
    tells_at: Option<Instant>,
    /// The events of rows that cannot be marked, since the first of them, and what is wrong with the last.
    passed: Vec<Uuid>,
    passed_since: Option<Instant>,
    trouble: Option<String>,
}

/// What came of telling some rows.
enum Said {
    /// So many.
    Rows(u64),
    /// Somebody has one of them locked.
    Locked,
    /// The table does not take what is said of one of them.
    Refused(Error),
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
    /// Somebody has the next row of a lane locked, or what its triggers want: it is tried again.
    pub is_locked: bool,
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
            tells_at: None,
            passed: Vec::new(),
            passed_since: None,
            trouble: None,
        }))
    }

    /// One round. It does no harm where another marks the same rows.
    pub async fn work(&mut self, connection: &mut PgConnection) -> Result<Marked> {
        let functions = std::slice::from_ref(&self.function);
        if let Some(function) = capture::not_callable(connection, functions, self.oid).await? {
            return Err(Error::NotCallable { table: self.table.clone(), function });
        }
        let begun = Instant::now();
        if self.passed_since.is_some_and(|since| since.elapsed() > PASSED.1) {
            // They may have been mended.
            self.passed.clear();
            (self.passed_since, self.trouble) = (None, None);
        }
        // Each of its own lanes: what another one tells of a row could come behind its mark.
        if self.tells_at.is_none_or(|tells_at| begun >= tells_at) {
            let (pause, set, times) = REFUSALS;
            for say in [Say::Refused, Say::Freed] {
                if !matches!(self.say(connection, say, self.part, set).await?, Said::Rows(_)) {
                    self.say_around(connection, say).await?;
                }
            }
            self.tells_at = Some(begun + pause.max(begun.elapsed() * times));
        }
        Ok(match self.say(connection, Say::Settled, self.part, SET).await? {
            // At least one lane had a full set.
            Said::Rows(settled) => {
                Marked { settled, has_more: settled >= SET.unsigned_abs(), is_locked: false }
            }
            Said::Locked | Said::Refused(_) => self.say_around(connection, Say::Settled).await?,
        })
    }

    /// Why some rows cannot be marked, if there are any.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Some rows are not to be had together. What is behind one that somebody has locked waits in its lane, what is before it and in other lanes
    /// does not; one that the table does not let be marked is passed over.
    async fn say_around(&mut self, connection: &mut PgConnection, say: Say) -> Result<Marked> {
        let mut marked = Marked::default();
        let mine = self.part;
        for number in (0..self.lanes).filter(|lane| lane % mine.of == mine.number) {
            let lane = Part { number, of: self.lanes };
            let mut said = Said::Locked;
            for set in FEWER {
                said = self.say(connection, say, lane, set).await?;
                if matches!(said, Said::Rows(_)) {
                    break;
                }
            }
            match said {
                Said::Rows(rows) => marked.settled += rows,
                Said::Locked => marked.is_locked = true,
                Said::Refused(error) => {
                    self.pass_over(connection, say, lane, error).await?;
                    marked.has_more = true;
                }
            }
        }
        Ok(marked)
    }

    /// The next row of a lane stays as it is for a while.
    async fn pass_over(
        &mut self,
        connection: &mut PgConnection,
        say: Say,
        lane: Part,
        error: Error,
    ) -> Result<()> {
        if self.passed.len() >= PASSED.0 {
            return Err(error);
        }
        let Some((event, id)) = self.lifecycle.next(connection, say, lane, &self.passed).await? else {
            return Ok(());
        };
        tracing::warn!(
            outbox = self.table,
            row = id,
            reason = %error,
            "the outbox table does not let a row be marked, which is passed over; it is tried again in ten minutes"
        );
        self.passed.push(event);
        self.passed_since.get_or_insert_with(Instant::now);
        self.trouble = Some(format!("row {id} is delivered and cannot be marked: {error}"));
        Ok(())
    }

    /// Of how many rows. For a row nobody waits long; who has waited for as long as the session lets him has met a lock on a table, and there is
    /// no way around that.
    async fn say(&self, connection: &mut PgConnection, say: Say, part: Part, set: i64) -> Result<Said> {
        let begun = Instant::now();
        match self.lifecycle.say(connection, say, part, set, &self.passed).await {
            Err(error) if error.is_locked() && begun.elapsed() < PATIENCE => Ok(Said::Locked),
            Err(error) if error.is_of_a_row() => Ok(Said::Refused(error)),
            said => said.map(Said::Rows),
        }
    }
}
