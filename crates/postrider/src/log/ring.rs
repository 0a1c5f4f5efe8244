//! Turning the rings: closing the slot that is written, emptying one that nobody needs any more.
//!
//! Slots are never created or dropped, so a dead maintenance job cannot fail a user's INSERT, and a reader's role needs no
//! right but TRUNCATE. A slot that owes an event to any cursor is passed over, whatever its age: it grows, and `slots` says
//! which sink holds it.

mod size;

use std::fmt;
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use super::error::Result;

pub use size::{Shortened, shorten};

/// How many tables the ring has. `emit` is compiled with the mask `& 7`.
pub const SLOTS: i16 = 8;
const PROGRESS_SLOTS: i16 = 4;
/// Rows in one table of the progress ring: at ten settlings a second, more than an hour of history each.
const PROGRESS_ROWS: i64 = 50_000;

const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(50);

/// How long events are kept after they were delivered.
#[derive(Debug, Clone, Copy)]
pub struct Retention {
    /// Every delivered event stays at least this long.
    pub keep: Duration,
    /// The current slot is also closed beyond this size, if another one is free.
    pub max_slot_bytes: Option<u64>,
    /// Above this size of all slots, delivered events do not stay for as long as `keep` says: see [`shorten`].
    pub max_log_bytes: Option<u64>,
}

impl Default for Retention {
    fn default() -> Self {
        Self { keep: Duration::from_hours(168), max_slot_bytes: None, max_log_bytes: None }
    }
}

/// Whether the current slot is to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    No,
    /// It has its share of what the log may have. That no other is free is no trouble before the log as a whole is too large.
    IfPossible,
    Yes,
}

/// What came of turning the ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// The current slot is young and small enough.
    NotDue,
    /// This slot is written now.
    To(i16),
    /// No other slot could be emptied; the current one grows.
    Held(Vec<HeldSlot>),
}

/// A slot that could not be emptied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldSlot {
    /// Which.
    pub slot: i16,
    /// Why.
    pub reason: Reason,
}

/// Why a slot could not be emptied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// Its events are younger than the retention.
    Young,
    /// These sinks have not settled all of it.
    Owed(Vec<String>),
    /// A transaction that wrote or reads it is still open.
    InUse,
    /// It became the current one meanwhile.
    Current,
    /// The transaction that asks is not read committed, and may not see what was committed last.
    OldSnapshot,
}

impl Reason {
    /// Whether it passes only when somebody does something. Slots that are merely young, or that another rotator has just begun, come by themselves.
    pub(super) fn needs_somebody(&self) -> bool {
        matches!(self, Self::Owed(_) | Self::InUse)
    }
}

impl fmt::Display for HeldSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {} ", self.slot)?;
        match &self.reason {
            Reason::Young => f.write_str("is younger than the retention"),
            Reason::Owed(sinks) => write!(f, "is owed to {}", sinks.join(", ")),
            Reason::InUse => f.write_str("is in use by an open transaction"),
            Reason::Current => f.write_str("has become the current one"),
            Reason::OldSnapshot => f.write_str("was looked at with an old snapshot"),
        }
    }
}

/// One behind the other.
pub(super) fn in_words(held: &[HeldSlot]) -> String {
    held.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Closes the current slot if it is due, and moves on to one that can be emptied.
pub async fn turn(connection: &mut PgConnection, retention: Retention) -> Result<Turn> {
    let mut transaction = connection.begin_with("begin isolation level read committed").await?;
    // Two rotators would skip a slot unemptied, or empty the one just begun.
    sqlx::query("lock table postrider.ring in exclusive mode").execute(&mut *transaction).await?;
    let current = current(&mut transaction).await?;
    come_back_from_the_future(&mut transaction).await?;
    let due = due(&mut transaction, current, retention).await?;
    if due == Due::No {
        // Not left to the drop, which lets go of the lock only with the next statement.
        transaction.commit().await?;
        return Ok(Turn::NotDue);
    }
    let mut held = Vec::new();
    for step in 1..SLOTS {
        let slot = (current + step) % SLOTS;
        if let Some(reason) = empty(&mut transaction, slot, retention).await? {
            held.push(HeldSlot { slot, reason });
        } else {
            // All that are not written any more: another rotator may have begun a slot that we passed over, because what we took for
            // the current one was read before it set the next.
            sqlx::query(
                "update postrider.ring set opened_at = case slot when $1 then clock_timestamp() else opened_at end,
                        closed_at = case when slot = $1 then '-infinity' when slot = $2 or closed_at = '-infinity' then clock_timestamp() else closed_at end",
            )
            .bind(slot)
            .bind(current)
            .execute(&mut *transaction)
            .await?;
            transaction.commit().await?;
            // Never nextval: it is logged 32 ahead, and a crash or promotion would jump slots.
            sqlx::query("select setval('postrider.slot', $1)")
                .bind(i64::from(slot))
                .execute(connection)
                .await?;
            return Ok(Turn::To(slot));
        }
    }
    transaction.rollback().await?;
    Ok(if due == Due::Yes { Turn::Held(held) } else { Turn::NotDue })
}

/// A clock that was ahead has left times that nothing is older than until it is that late: the ring would stand still. They are now.
async fn come_back_from_the_future(connection: &mut PgConnection) -> Result<()> {
    let mended = sqlx::query(
        "update postrider.ring set opened_at = least(opened_at, clock_timestamp()), closed_at = least(closed_at, clock_timestamp())
         where opened_at > clock_timestamp() or closed_at > clock_timestamp()",
    )
    .execute(connection)
    .await?;
    if mended.rows_affected() > 0 {
        tracing::warn!(
            slots = mended.rows_affected(),
            "slots of the log were opened or closed in the future: the server's clock was ahead. They count as opened and closed now"
        );
    }
    Ok(())
}

/// The slot that is written now.
pub async fn current(connection: &mut PgConnection) -> Result<i16> {
    Ok(sqlx::query_scalar("select (coalesce(pg_sequence_last_value('postrider.slot'), 0) & 7)::smallint")
        .fetch_one(connection)
        .await?)
}

async fn due(connection: &mut PgConnection, current: i16, retention: Retention) -> Result<Due> {
    let row = sqlx::query(
        "select coalesce(r.opened_at < clock_timestamp() - make_interval(secs => $2 / 7), false),
                pg_total_relation_size(format('postrider.events_%s', $1)::regclass)
         from (select) one left join postrider.ring r on r.slot = $1",
    )
    .bind(current)
    .bind(retention.keep.as_secs_f64())
    .fetch_one(connection)
    .await?;
    let bytes = row.try_get::<i64, _>(1)?.unsigned_abs();
    let share = retention.max_log_bytes.map(|limit| limit / u64::from(SLOTS.unsigned_abs()));
    Ok(if row.try_get(0)? || retention.max_slot_bytes.is_some_and(|limit| bytes > limit) {
        Due::Yes
    } else if share.is_some_and(|share| bytes > share) {
        Due::IfPossible
    } else {
        Due::No
    })
}

/// Empties the slot inside the caller's transaction, or says why not. That transaction must be read committed and hold `postrider.ring`.
pub async fn empty(connection: &mut PgConnection, slot: i16, retention: Retention) -> Result<Option<Reason>> {
    // Without any lock first: it is the rule that a slot is still owed or young, and readers should not notice our asking.
    if let Some(reason) = objection(connection, slot, retention).await? {
        return Ok(Some(reason));
    }
    let mut savepoint = connection.begin().await?;
    let refused = if lock(&mut savepoint, &format!("events_{slot}")).await? {
        // Again, as a statement of its own whose snapshot is younger than the lock: with it no open transaction has written there.
        objection(&mut savepoint, slot, retention).await?
    } else {
        Some(Reason::InUse)
    };
    if refused.is_some() {
        // The lock goes with it: readers are not to wait for it while the other slots are looked at.
        savepoint.rollback().await?;
    } else {
        truncate(&mut savepoint, &format!("events_{slot}")).await?;
        savepoint.commit().await?;
    }
    Ok(refused)
}

async fn objection(connection: &mut PgConnection, slot: i16, retention: Retention) -> Result<Option<Reason>> {
    let row = sqlx::query(
        "select current_setting('transaction_isolation') = 'read committed', (coalesce(pg_sequence_last_value('postrider.slot'), 0) & 7) = $1,
                coalesce(r.closed_at < clock_timestamp() - make_interval(secs => $2), true)
         from (select) one left join postrider.ring r on r.slot = $1",
    )
    .bind(slot)
    .bind(retention.keep.as_secs_f64())
    .fetch_one(&mut *connection)
    .await?;
    let (read_committed, is_current, old): (bool, bool, bool) =
        (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    // Whoever empties begins as it should, here in this file. A caller who does not would lose what committed since its snapshot.
    if !read_committed {
        return Ok(Some(Reason::OldSnapshot));
    }
    // A rotator sets the next slot only after its commit, so the one that the caller took for the current one may be the last.
    if is_current {
        return Ok(Some(Reason::Current));
    }
    let owed = owed(connection, slot).await?;
    if !owed.is_empty() {
        return Ok(Some(Reason::Owed(owed)));
    }
    let empty: bool =
        sqlx::query_scalar(AssertSqlSafe(format!("select not exists (select from postrider.events_{slot})")))
            .fetch_one(connection)
            .await?;
    if !(old || empty) {
        return Ok(Some(Reason::Young));
    }
    Ok(None)
}

/// The sinks that have not settled everything in this slot.
pub async fn owed(connection: &mut PgConnection, slot: i16) -> Result<Vec<String>> {
    let check = include_str!("sql/held.sql").replace("events_N", &format!("events_{slot}"));
    Ok(sqlx::query_scalar(AssertSqlSafe(check)).fetch_all(connection).await?)
}

/// NOWAIT with a few tries: a queued lock request makes every reader wait behind it.
async fn lock(connection: &mut PgConnection, table: &str) -> Result<bool> {
    for attempt in 0..TRIES {
        if attempt > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        let mut savepoint = connection.begin().await?;
        let statement = format!("lock table postrider.{table} in access exclusive mode nowait");
        match sqlx::query(AssertSqlSafe(statement)).execute(&mut *savepoint).await {
            Ok(_) => {
                savepoint.commit().await?;
                return Ok(true);
            }
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("55P03") => {
                savepoint.rollback().await?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

async fn truncate(connection: &mut PgConnection, table: &str) -> Result<()> {
    sqlx::query(AssertSqlSafe(format!("truncate postrider.{table}"))).execute(connection).await?;
    Ok(())
}

/// Moves the progress ring on when its current table is full. The new one starts with a copy of every cursor's newest row, so
/// that three turns later the oldest holds nothing that counts.
pub async fn turn_progress(connection: &mut PgConnection) -> Result<Option<i16>> {
    turn_progress_beyond(connection, PROGRESS_ROWS).await
}

/// As [`turn_progress`], beyond that many rows.
pub async fn turn_progress_beyond(connection: &mut PgConnection, rows: i64) -> Result<Option<i16>> {
    let mut transaction = connection.begin_with("begin isolation level read committed").await?;
    sqlx::query("lock table postrider.ring in exclusive mode").execute(&mut *transaction).await?;
    let current: i16 = sqlx::query_scalar(
        "select (coalesce(pg_sequence_last_value('postrider.progress_slot'), 0) & 3)::smallint",
    )
    .fetch_one(&mut *transaction)
    .await?;
    let full: bool = sqlx::query_scalar(AssertSqlSafe(format!(
        "select count(*) > $1 from (select from postrider.progress_{current} limit $1 + 1) few"
    )))
    .bind(rows)
    .fetch_one(&mut *transaction)
    .await?;
    let next = (current + 1) % PROGRESS_SLOTS;
    let table = format!("progress_{next}");
    if !full || !lock(&mut transaction, &table).await? {
        transaction.rollback().await?;
        return Ok(None);
    }
    // A settling that had read the slot's number long before it committed may have left the newest row in the table to be emptied.
    copy_newest(&mut transaction, current).await?;
    truncate(&mut transaction, &table).await?;
    copy_newest(&mut transaction, next).await?;
    transaction.commit().await?;
    sqlx::query("select setval('postrider.progress_slot', $1)")
        .bind(i64::from(next))
        .execute(connection)
        .await?;
    Ok(Some(next))
}

/// Copies every cursor's newest row into a table of the progress ring, unless it is there already.
async fn copy_newest(connection: &mut PgConnection, to: i16) -> Result<()> {
    sqlx::query(
        "insert into postrider.progress
         select $1, p.sink, p.epoch, p.number, p.lanes, p.positions, p.late_positions, p.snapshots, p.snapshot_of, p.target_of, p.bounds, p.settled_at, 0
         from (select distinct sink, epoch from postrider.leases) l
         cross join lateral (select * from postrider.progress p
             where p.sink = l.sink and p.epoch = l.epoch order by p.number desc limit 1) p
         on conflict do nothing",
    )
    .bind(to)
    .execute(connection)
    .await?;
    Ok(())
}
