//! One round of reading: what one statement saw for a group of lanes, and the cursor after each of its rows.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;

use serde::Deserialize;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row, ValueRef as _};

use super::cursor::{Cursor, Snapshot};
use super::error::{Error, Result};
use super::record::Record;

/// The reading statement. Tests read with a rule taken out of it.
pub const READ: &str = include_str!("sql/read.sql");

/// Facts about the moment a round was read.
#[derive(Debug, Clone, Deserialize)]
pub struct Facts {
    /// The snapshot of the reading statement.
    pub snapshot: String,
    /// Every transaction below has ended.
    #[serde(deserialize_with = "from_text")]
    pub xmin: u64,
    /// The highest `seq` given out.
    pub last_seq: i64,
    /// End of the WAL written.
    pub inserted: u64,
    /// End of the WAL on disk when the last row had been read.
    #[serde(default)]
    pub flushed: u64,
}

fn from_text<'de, D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<u64, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

/// What a round brought for one lane, late rows first.
#[derive(Debug, Clone)]
pub struct Page {
    start: Cursor,
    /// The set the late rows belong to.
    target: Snapshot,
    /// How many of the records are late.
    late: usize,
    /// In delivery order.
    pub records: Vec<Record>,
    /// The cursor when all of it is delivered.
    pub end: Cursor,
    /// It has records, and none of them found room.
    pub is_starved: bool,
}

impl Page {
    /// One that found nothing.
    #[cfg(test)]
    pub(super) fn empty(end: Cursor) -> Self {
        let target = std::sync::Arc::clone(&end.snapshot);
        Self { start: end.clone(), target, late: 0, records: Vec::new(), end, is_starved: false }
    }

    /// The cursor when the first `delivered` records are, so that progress can stop anywhere.
    pub fn cursor_after(&self, delivered: usize) -> Cursor {
        if delivered >= self.records.len() {
            return self.end.clone();
        }
        let Some(last) = delivered.checked_sub(1).and_then(|index| self.records.get(index)) else {
            return self.start.clone();
        };
        if delivered <= self.late {
            return self.start.within_late(&self.target, last.seq);
        }
        Cursor::new(last.seq, Arc::clone(&self.target))
    }
}

/// What one statement saw.
#[derive(Debug, Clone)]
pub struct Round {
    /// When it was.
    pub facts: Facts,
    /// A page for every lane that was asked for, also those without a row.
    pub pages: BTreeMap<i16, Page>,
    /// A lane whose page ends before an event that is larger than any was wanted.
    pub withheld: Option<i16>,
}

impl Round {
    /// Number of records over all lanes.
    pub fn len(&self) -> usize {
        self.pages.values().map(|page| page.records.len()).sum()
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.pages.values().all(|page| page.records.is_empty())
    }
}

/// Reads one page for each of `cursors`, all of which [read with](Cursor::reads_with) one another.
pub async fn read(
    connection: &mut PgConnection,
    statement: &str,
    lanes: usize,
    cursors: &BTreeMap<i16, Cursor>,
    page: i64,
) -> Result<Round> {
    read_within(connection, statement, lanes, cursors, page, &mut Budget::default()).await
}

/// How many bytes reading may bring.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// To be kept, beyond the first record.
    room: usize,
    /// To be dropped: more than that ends the round with [`Error::RoundTooLarge`].
    waste: usize,
    /// Whether the first record was kept.
    is_begun: bool,
    /// A larger payload is not even sent.
    largest: Option<usize>,
}

impl Budget {
    /// So many to be kept, beyond the first record, and so many to be dropped.
    pub fn new(room: usize, waste: usize) -> Self {
        Self { room, waste, is_begun: false, largest: None }
    }

    /// The server keeps larger payloads to itself, and pages end before them.
    #[must_use]
    pub fn without_larger_than(self, bytes: usize) -> Self {
        Self { largest: Some(bytes), ..self }
    }

    /// Whether so many more may be kept.
    pub fn has(&self, bytes: usize) -> bool {
        !self.is_begun || bytes <= self.room
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(usize::MAX, usize::MAX)
    }
}

/// As [`read`], but keeps no more than the budget has room for, beyond the first record, and takes what it kept from it.
///
/// Rows without room are dropped as they come, and every page ends before them. That wastes their transfer once, when events
/// become large, and costs nothing otherwise: whoever reads asks for less then.
pub async fn read_within(
    connection: &mut PgConnection,
    statement: &str,
    lanes: usize,
    cursors: &BTreeMap<i16, Cursor>,
    page: i64,
    budget: &mut Budget,
) -> Result<Round> {
    let group = cursors.values().next().ok_or(Error::NoLanes)?;
    let late_page = page * i64::try_from(cursors.len()).unwrap_or(i64::MAX);
    let mut positions = vec![None; lanes];
    let mut late_positions = vec![None; lanes];
    for (&lane, cursor) in cursors {
        let place =
            usize::try_from(lane).ok().filter(|place| *place < lanes).ok_or(Error::UnknownLane { lane })?;
        positions[place] = Some(cursor.position);
        late_positions[place] = cursor.late.as_ref().map(|late| late.position);
    }
    let mut rows = sqlx::query(AssertSqlSafe(statement))
        .bind(&*group.snapshot)
        .bind(group.late.as_ref().map(|late| &*late.target))
        .bind(group.bound.map(|bound| bound.to_string()))
        .bind(positions)
        .bind(late_positions)
        .bind(page)
        .bind(late_page)
        .bind(budget.largest.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX)))
        .fetch(connection);
    // Row by row as they come, so that the server works on the next ones meanwhile.
    let mut received = Received::default();
    while let Some(row) = poll_fn(|context| rows.as_mut().poll_next(context)).await {
        received.take(&row?, budget)?;
    }
    if received.late_cut.is_some() || !received.cut.is_empty() {
        budget.room = 0;
    }
    received.assemble(cursors, page, late_page)
}

/// The rows of a round as they come.
#[derive(Default)]
struct Received {
    facts: Option<Facts>,
    flushed: u64,
    late: Vec<Record>,
    fresh: BTreeMap<i16, Vec<Record>>,
    /// The lowest late `seq` that was dropped.
    late_cut: Option<i64>,
    /// The lowest new `seq` that was dropped, by lane.
    cut: BTreeMap<i16, i64>,
    /// The first lane of which a payload was withheld.
    withheld: Option<i16>,
}

impl Received {
    fn take(&mut self, row: &PgRow, budget: &mut Budget) -> Result<()> {
        let kind = row.try_get_unchecked::<i16, _>(0)?;
        if kind == 0 {
            self.facts = Some(serde_json::from_str(row.try_get_unchecked(9)?).map_err(Error::Facts)?);
            return Ok(());
        }
        if kind == 3 {
            self.flushed = serde_json::from_str(row.try_get_unchecked(9)?).map_err(Error::Facts)?;
            return Ok(());
        }
        let (lane, seq) = (row.try_get_unchecked(1)?, row.try_get_unchecked(2)?);
        let is_late = kind == 1;
        let is_cut = self.late_cut.is_some() || !is_late && self.cut.contains_key(&lane);
        let payload = row.try_get_raw(9)?;
        if payload.is_null() && !is_cut {
            self.withheld.get_or_insert(lane);
        }
        let record = if is_cut || payload.is_null() { None } else { Some(record(row)?) };
        let Some(record) = record.filter(|record| budget.has(record.size())) else {
            let lowest =
                if is_late { self.late_cut.get_or_insert(seq) } else { self.cut.entry(lane).or_insert(seq) };
            *lowest = seq.min(*lowest);
            let bytes = payload.as_bytes().map_or(0, <[u8]>::len);
            budget.waste = budget.waste.checked_sub(bytes).ok_or(Error::RoundTooLarge { bytes })?;
            return Ok(());
        };
        budget.is_begun = true;
        budget.room = budget.room.saturating_sub(record.size());
        if is_late {
            self.late.push(record);
        } else {
            self.fresh.entry(record.lane).or_default().push(record);
        }
        Ok(())
    }

    fn assemble(self, cursors: &BTreeMap<i16, Cursor>, page: i64, late_page: i64) -> Result<Round> {
        let Self { facts, flushed, mut late, mut fresh, late_cut, cut, withheld } = self;
        // The statement reads nothing on a standby: its snapshots have no running transactions, late rows would be lost.
        let facts = Facts { flushed, ..facts.ok_or(Error::NotPrimary)? };
        let seen: Snapshot = Arc::from(facts.snapshot.as_str());

        late.sort_unstable_by_key(|record: &Record| record.seq);
        let mut more = usize::try_from(late_page).is_ok_and(|limit| late.len() > limit);
        if more {
            late.pop();
        }
        if let Some(cut) = late_cut {
            more = true;
            late.retain(|record| record.seq < cut);
        }
        let last_late = late.last().map(|record| record.seq);
        let mut late_by_lane: BTreeMap<i16, Vec<Record>> = BTreeMap::new();
        for record in late {
            late_by_lane.entry(record.lane).or_default().push(record);
        }

        let mut pages = BTreeMap::new();
        for (&lane, start) in cursors {
            let target =
                start.late.as_ref().map_or_else(|| Arc::clone(&seen), |late| Arc::clone(&late.target));
            let mut records = late_by_lane.remove(&lane).unwrap_or_default();
            let late = records.len();
            let end = match last_late {
                None if more => start.clone(),
                // The whole group has seen the late set up to here, lanes without a row in it too.
                Some(seq) if more => {
                    start.within_late(&target, start.late.as_ref().map_or(seq, |late| late.position.max(seq)))
                }
                _ if start.late.is_some() => start.past_late(&target),
                _ => {
                    let mut new = fresh.remove(&lane).unwrap_or_default();
                    new.sort_unstable_by_key(|record| record.seq);
                    if let Some(cut) = cut.get(&lane) {
                        new.retain(|record| record.seq < *cut);
                    }
                    let full = i64::try_from(new.len()).is_ok_and(|found| found >= page);
                    let position = match new.last() {
                        Some(last) if full || cut.contains_key(&lane) => last.seq,
                        None if cut.contains_key(&lane) => start.position,
                        // Whatever is at or below and not visible here is late by its xid.
                        _ => facts.last_seq.max(start.position),
                    };
                    records.append(&mut new);
                    Cursor::new(position, Arc::clone(&seen))
                }
            };
            let is_starved = records.is_empty() && cut.contains_key(&lane);
            pages.insert(lane, Page { start: start.clone(), target, late, records, end, is_starved });
        }
        Ok(Round { facts, pages, withheld })
    }
}

/// Unchecked: the statement casts every column to the type that is decoded here, and asking again for every value costs time. json
/// travels as its text; a checked decode would parse every payload once more.
fn record(row: &PgRow) -> Result<Record> {
    Ok(Record {
        lane: row.try_get_unchecked(1)?,
        seq: row.try_get_unchecked(2)?,
        id: row.try_get_unchecked(3)?,
        source_id: row.try_get_unchecked(4)?,
        r#type: row.try_get_unchecked(5)?,
        entity: row.try_get_unchecked(6)?,
        key: row.try_get_unchecked(7)?,
        tenant: row.try_get_unchecked(8)?,
        payload: row.try_get_unchecked(9)?,
        headers: row.try_get_unchecked(10)?,
        created_at: row.try_get_unchecked(11)?,
    })
}
