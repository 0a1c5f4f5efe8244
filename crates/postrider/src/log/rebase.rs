//! Making a log readable again after its database has become another one.
//!
//! Positions, xids and snapshots belong to one cluster and one run of the sequence. After a restore, a switchover or a reset of the
//! sequence [`identity::check`] refuses to read, because it would miss events or send every one again. A rebase gives the cursors a
//! meaning in the present cluster, and loses nothing: what is not known to be delivered is read again.
//!
//! No position moves. Instead, rows that a cursor has passed without proof that they were delivered become *late*: they get the xid
//! [`LATE`], which no real transaction has, and the cursors that owe them a snapshot that ends just below it. So a lane sends again
//! what is uncertain and not all that followed it. (Moving positions back to the first such row would, after a switchover
//! whose sequence was not carried over, send the whole log again: the new rows have the lowest seqs of all.)

mod replica_identity;
mod writers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use super::cursor::{Cursor, Snapshot};
use super::error::{Error, Result};
use super::identity;
use super::progress::{self, Tenure};
use replica_identity::ReplicaIdentities;

/// The xid of rows that may not have been delivered; that of the others is one less. A real one is in the hundreds after initdb.
const LATE: u64 = 4;
/// Sees everything that was there, except what is late.
const WITHOUT_LATE: &str = "4:4:";
/// Sees everything that was there.
const WITH_LATE: &str = "5:5:";

const ROWS: &str = include_str!("sql/rebase_rows.sql");
const UPDATE: &str = include_str!("sql/rebase_update.sql");
const AGAIN: &str = include_str!("sql/rebase_again.sql");

/// What a rebase would do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Which check refuses to read this log; `None`: it can be read as it is, and there is no need for a rebase.
    pub reason: Option<String>,
    /// Readers whose heartbeat is in time. They have to be stopped first.
    pub alive: Vec<String>,
    /// What would be sent (again), for every sink.
    pub sinks: Vec<Again>,
}

/// What a sink is sent from the part of the log that it has passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Again {
    /// The sink.
    pub sink: String,
    /// How many events are not known to be delivered. Each is sent; those that had been are sent twice.
    pub events: u64,
    /// The `seq` of the first of them.
    pub first: Option<i64>,
    /// The `seq` of the last of them.
    pub last: Option<i64>,
}

/// What a rebase did.
#[derive(Debug, Clone)]
pub struct Applied {
    /// What will be sent (again), for every sink.
    pub sinks: Vec<Again>,
    /// Events that got a new `seq`, because theirs came from a sequence that had been set back.
    pub moved: u64,
    /// The next events have a higher `seq`.
    pub last_seq: i64,
}

/// What to do about a reader that is at work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Alive {
    /// Refuse to rebase.
    #[default]
    Refuse,
    /// Take its lanes away. What it has in flight will be sent again.
    Overrule,
}

/// How long transactions that have written events may take to end, unless told otherwise.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Says what is wrong and what [`apply`] would do about it. Changes nothing.
pub async fn plan(connection: &mut PgConnection) -> Result<Plan> {
    let reason = match identity::check(connection).await {
        Ok(_) => None,
        Err(Error::Rebase { what }) => Some(what),
        Err(other) => return Err(other),
    };
    let alive = alive(connection).await?;
    let numbers = Numbers::of(connection).await?;
    let cursors = again(connection, &[ROWS, AGAIN], &numbers).await?;
    Ok(Plan { reason, alive, sinks: by_sink(&cursors) })
}

/// Makes the log readable in the present cluster. Needs the owner of the schema. Writers go on meanwhile; no reader can start.
///
/// It can be run again after it failed, at whatever point that was.
pub async fn apply(connection: &mut PgConnection, readers: Alive) -> Result<Applied> {
    apply_within(connection, readers, PATIENCE).await
}

/// As [`apply`], but waits for open transactions for so long.
pub async fn apply_within(
    connection: &mut PgConnection,
    readers: Alive,
    patience: Duration,
) -> Result<Applied> {
    let numbers = begin(connection, readers).await?;
    // Outside MVCC, at once and for good: from here on no new event has a seq below a cursor. Should the rest fail, the mark
    // that `begin` left is still there to refuse every reader, though the numbers look right.
    let numbers = numbers.move_sequence(connection).await?;
    writers::wait_until_done(connection, patience).await?;
    let replica_identities = ReplicaIdentities::set_full(connection).await?;
    let applied = renew(connection, &numbers).await;
    replica_identities.set_back(connection).await?;
    applied
}

/// Where the log's numbers end.
#[derive(Debug, Clone, Copy)]
struct Numbers {
    /// Where the sequence stands.
    last: i64,
    /// Nothing is above: no event, no cursor, nor the sequence.
    highest: i64,
    /// How many events may need a new seq.
    room: i64,
}

impl Numbers {
    async fn of(connection: &mut PgConnection) -> Result<Self> {
        // A new seq is for copies and, if the sequence was set back, for all that was written since, also by transactions that are
        // still open: it has given out no more than `last`.
        let (last, highest, room) = sqlx::query_as(
            "select last, highest, copies + case when highest > last then low + last else 0 end
             from (select coalesce(pg_sequence_last_value('postrider.seq'), 0) as last) s
             cross join lateral (
                 select greatest(last, max(seq), (select max(position) from postrider.cursors)) as highest,
                        count(*) - count(distinct (lane, seq)) as copies, count(*) filter (where seq <= last) as low
                 from postrider.events) e",
        )
        .fetch_one(connection)
        .await?;
        Ok(Self { last, highest, room })
    }

    /// Moves the sequence above everything, leaving room. Answers the numbers of that moment.
    async fn move_sequence(self, connection: &mut PgConnection) -> Result<Self> {
        // Writers take numbers all the time, and between our reading the last one and our setting it too.
        const SLACK: i64 = 10_000;
        let (last, highest, _) = sqlx::query_as::<_, (i64, i64, i64)>(
            "select last, base, setval('postrider.seq', base + $2)
             from (select last, greatest($1, last + $3) as base
                   from (select coalesce(pg_sequence_last_value('postrider.seq'), 0) as last offset 0) s offset 0) b",
        )
        .bind(self.highest)
        .bind(self.room + SLACK)
        .bind(SLACK)
        .fetch_one(connection)
        .await?;
        Ok(Self { last, highest, room: self.room + SLACK })
    }
}

/// Takes the log away from its readers: marks it, so that none can start until the end.
async fn begin(connection: &mut PgConnection, readers: Alive) -> Result<Numbers> {
    let mut transaction = connection.begin_with("begin isolation level read committed read write").await?;
    prepare(&mut transaction).await?;
    let alive = alive(&mut transaction).await?;
    if readers == Alive::Refuse && !alive.is_empty() {
        return Err(Error::ReadersAlive { names: alive.join(", ") });
    }
    identity::mark_unfinished(&mut transaction).await?;
    let numbers = Numbers::of(&mut transaction).await?;
    transaction.commit().await?;
    Ok(numbers)
}

/// The locks of everything that rebases, and time for a large log.
async fn prepare(connection: &mut PgConnection) -> Result<()> {
    sqlx::raw_sql(
        "set local statement_timeout = 0; set local idle_in_transaction_session_timeout = 0; set local lock_timeout = '10s';
         lock table postrider.ring in exclusive mode",
    )
    .execute(connection)
    .await?;
    Ok(())
}

async fn alive(connection: &mut PgConnection) -> Result<Vec<String>> {
    Ok(sqlx::query_scalar(
        "select name from postrider.readers where expires_at > clock_timestamp() and state <> 'failed' order by name",
    )
    .fetch_all(connection)
    .await?)
}

/// Rows, cursors, leases and identity, all or nothing.
async fn renew(connection: &mut PgConnection, numbers: &Numbers) -> Result<Applied> {
    let mut transaction = connection.begin_with("begin isolation level read committed read write").await?;
    prepare(&mut transaction).await?;
    // A reader that passed the check before the mark was there may be taking lanes right now.
    let sinks: Vec<(i32, String)> =
        sqlx::query_as("select sink, name from postrider.sinks order by sink for update")
            .fetch_all(&mut *transaction)
            .await?;
    let mut old = BTreeMap::new();
    for (sink, name) in &sinks {
        old.insert(name.clone(), stored(&mut transaction, *sink, name).await?);
    }
    let cursors = again(&mut transaction, &[ROWS, UPDATE, AGAIN], numbers).await?;
    let (late, rest): (Snapshot, Snapshot) = (Arc::from(WITHOUT_LATE), Arc::from(WITH_LATE));
    for (sink, name) in sinks {
        let cursors = old[&name]
            .iter()
            .map(|(&lane, &position)| {
                let is_late = cursors.iter().any(|c| c.sink == name && c.lane == lane && c.is_late);
                let snapshot = if is_late { &late } else { &rest };
                let cursor = Cursor { bound: Some(LATE + 1), ..Cursor::new(position, Arc::clone(snapshot)) };
                (lane, cursor)
            })
            .collect();
        hand_over(&mut transaction, sink, name, &cursors).await?;
    }
    // Slots that were being written when the sequence of slots was lost, and tickets that nobody holds any more.
    sqlx::raw_sql(
        "update postrider.ring set closed_at = clock_timestamp()
         where closed_at = '-infinity' and slot <> coalesce(pg_sequence_last_value('postrider.slot'), 0) & 7;
         select setval('postrider.disarmed', 0);
         -- An xid of the cluster before.
         update postrider.inbox_ring set turning = null where turning is not null",
    )
    .execute(&mut *transaction)
    .await?;
    identity::replace(&mut transaction).await?;
    let moved: i64 = sqlx::query_scalar("select count(*) from postrider.events where seq > $1 and seq <= $2")
        .bind(numbers.highest)
        .bind(numbers.highest + numbers.room)
        .fetch_one(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(Applied {
        sinks: by_sink(&cursors),
        moved: moved.unsigned_abs(),
        last_seq: numbers.highest + numbers.room,
    })
}

/// The positions of a sink's lanes, all of them.
async fn stored(connection: &mut PgConnection, sink: i32, name: &str) -> Result<BTreeMap<i16, i64>> {
    let stored = progress::load(connection, sink, name).await?;
    let lanes: i32 = sqlx::query_scalar("select postrider.lanes()").fetch_one(connection).await?;
    if let Some(lane) = (0..i16::try_from(lanes).unwrap_or(i16::MAX)).find(|lane| !stored.contains_key(lane))
    {
        return Err(Error::CursorMissing { sink: name.to_owned(), lane });
    }
    Ok(stored.into_iter().map(|(lane, stored)| (lane, stored.cursor.position)).collect())
}

/// A new epoch that nobody holds: what a reader of before still settles counts for nothing.
async fn hand_over(
    connection: &mut PgConnection,
    sink: i32,
    name: String,
    cursors: &BTreeMap<i16, Cursor>,
) -> Result<()> {
    let epoch: i64 = sqlx::query_scalar(
        "select greatest((select max(epoch) from postrider.leases where sink = $1),
                         (select max(epoch) from postrider.progress where sink = $1)) + 1",
    )
    .bind(sink)
    .fetch_one(&mut *connection)
    .await?;
    sqlx::query("update postrider.leases set owner = null, epoch = $2 where sink = $1")
        .bind(sink)
        .bind(epoch)
        .execute(&mut *connection)
        .await?;
    let mut tenure = Tenure { sink, name, epoch, number: 0 };
    progress::append(connection, &mut tenure, cursors).await?;
    Ok(())
}

/// One cursor's share of what is read again.
struct LaneAgain {
    sink: String,
    lane: i16,
    events: i64,
    first: Option<i64>,
    last: Option<i64>,
    is_late: bool,
}

async fn again(
    connection: &mut PgConnection,
    statement: &[&str],
    numbers: &Numbers,
) -> Result<Vec<LaneAgain>> {
    let statement = statement.concat();
    let mut query = sqlx::query(AssertSqlSafe(statement.as_str())).bind(numbers.last).bind(numbers.highest);
    if statement.contains("$3") {
        query = query.bind(numbers.room);
    }
    let rows = query.fetch_all(connection).await?;
    rows.iter()
        .map(|row| {
            Ok(LaneAgain {
                sink: row.try_get("sink")?,
                lane: row.try_get("lane")?,
                events: row.try_get("events")?,
                first: row.try_get("first")?,
                last: row.try_get("last")?,
                is_late: row.try_get("is_late")?,
            })
        })
        .collect()
}

fn by_sink(cursors: &[LaneAgain]) -> Vec<Again> {
    let mut sinks: Vec<Again> = Vec::new();
    for cursor in cursors {
        let events = cursor.events.unsigned_abs();
        match sinks.last_mut().filter(|last| last.sink == cursor.sink) {
            Some(again) => {
                again.events += events;
                again.first = again.first.into_iter().chain(cursor.first).min();
                again.last = again.last.max(cursor.last);
            }
            None => sinks.push(Again {
                sink: cursor.sink.clone(),
                events,
                first: cursor.first,
                last: cursor.last,
            }),
        }
    }
    sinks
}
