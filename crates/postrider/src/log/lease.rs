//! Leases on lanes: who reads what. Held by heartbeat, taken over when the heartbeat stops, fenced by epoch.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::bell;
use super::cursor::Cursor;
use super::error::Result;
use super::progress::{self, Tenure};
use super::report::Report;
use super::share;

/// Says that this reader is alive for another `lease`, by the server's clock.
pub async fn heartbeat(
    connection: &mut PgConnection,
    reader: Uuid,
    name: &str,
    sink: i32,
    lease: Duration,
) -> Result<()> {
    heartbeat_with(connection, reader, name, sink, lease, &Report::default()).await
}

/// As [`heartbeat`], and how it is.
pub async fn heartbeat_with(
    connection: &mut PgConnection,
    reader: Uuid,
    name: &str,
    sink: i32,
    lease: Duration,
    report: &Report,
) -> Result<()> {
    sqlx::query(include_str!("sql/heartbeat.sql"))
        .bind(reader)
        .bind(name)
        .bind(sink)
        .bind(lease.as_secs_f64())
        .bind(report.mood.word())
        .bind(age(report.since).unwrap_or_default())
        .bind(&report.trouble)
        .execute(connection)
        .await?;
    Ok(())
}

/// Says which events this reader has in flight.
pub async fn tell_in_flight(connection: &mut PgConnection, reader: Uuid, report: &Report) -> Result<()> {
    let first = |seqs: &[i64]| seqs[..seqs.len().min(Report::MOST)].to_vec();
    sqlx::query(
        "insert into postrider.in_flight (reader, sending, sending_since, unsettled)
         values ($1, $2, clock_timestamp() - make_interval(secs => $3), $4)
         on conflict (reader) do update
         set sending = excluded.sending, sending_since = excluded.sending_since, unsettled = excluded.unsettled",
    )
    .bind(reader)
    .bind(first(&report.sending))
    .bind(age(report.sending_since))
    .bind(first(&report.unsettled))
    .execute(connection)
    .await?;
    Ok(())
}

fn age(since: Option<Instant>) -> Option<f64> {
    since.map(|since| since.elapsed().as_secs_f64())
}

/// As [`heartbeat`], if the last one has not run out: whoever was silent for longer has to see first what is left of its lanes. Answers
/// whether it was in time.
pub async fn renew(connection: &mut PgConnection, reader: Uuid, lease: Duration) -> Result<bool> {
    let done = sqlx::query(
        "update postrider.readers set expires_at = clock_timestamp() + make_interval(secs => $2)
         where reader = $1 and expires_at > clock_timestamp()",
    )
    .bind(reader)
    .bind(lease.as_secs_f64())
    .execute(connection)
    .await?;
    Ok(done.rows_affected() > 0)
}

/// Brings this reader's lanes to its fair share. `held` are those it believes to hold; `busy` ones among them have something in
/// flight and are kept for now.
///
/// Answers the cursors of all lanes it holds now, under a new epoch, or `None` if nothing changed; and the busy lanes beyond its
/// share, which are to be read no further so that they can be given up next time.
pub async fn balance(
    connection: &mut PgConnection,
    reader: Uuid,
    tenure: &Tenure,
    held: &[i16],
    busy: &[i16],
) -> Result<(Option<(Tenure, BTreeMap<i16, Cursor>)>, Vec<i16>)> {
    balance_by(connection, reader, tenure, held, busy, share::decide, Silence::No).await
}

/// Whether a reader was silent for longer than its lease before its last heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    /// Nobody can have missed it.
    No,
    /// Somebody may be taking its lanes just now.
    Perhaps,
}

/// How a reader decides which lanes should be its own.
pub type Sharing = fn(Uuid, &BTreeMap<i16, Option<Uuid>>, &[Uuid]) -> share::Decision;

/// As [`balance`], sharing in another way, and after a silence.
pub async fn balance_by(
    connection: &mut PgConnection,
    reader: Uuid,
    tenure: &Tenure,
    held: &[i16],
    busy: &[i16],
    sharing: Sharing,
    silence: Silence,
) -> Result<(Option<(Tenure, BTreeMap<i16, Cursor>)>, Vec<i16>)> {
    // Without a lock first: nearly always nothing changes, and a lock leaves WAL behind that somebody has to flush before the next
    // event may be handed out. Not after a silence: who takes the lanes has the lock and has not committed, and two would send their events.
    if silence == Silence::No {
        let planned = plan(connection, reader, tenure, held, busy, sharing).await?;
        if planned.is_unchanged {
            return Ok((None, planned.surplus));
        }
    }
    let mut transaction = connection.begin().await?;
    // Leases of one sink change one after another.
    sqlx::query("select from postrider.sinks where sink = $1 for update")
        .bind(tenure.sink)
        .execute(&mut *transaction)
        .await?;
    let Plan { lanes, released, surplus, is_unchanged, epoch } =
        plan(&mut transaction, reader, tenure, held, busy, sharing).await?;
    if is_unchanged {
        transaction.rollback().await?;
        return Ok((None, surplus));
    }
    // The present holder may be settling right now. Waiting for it, and reading the cursors only then, means that whoever was told
    // "settled" has settled: what it did is not done again. Settlings take milliseconds, and so do we.
    sqlx::query("lock table postrider.progress in share row exclusive mode")
        .execute(&mut *transaction)
        .await?;
    let mut cursors: BTreeMap<i16, Cursor> = progress::load(&mut transaction, tenure.sink, &tenure.name)
        .await?
        .into_iter()
        .map(|(lane, stored)| (lane, stored.cursor))
        .collect();
    cursors.retain(|lane, _| lanes.contains(lane));
    sqlx::query(
        "update postrider.leases set owner = case when lane = any ($3) then $2 end, epoch = case when lane = any ($3) then $4 else epoch end
         where sink = $1 and (lane = any ($3) or lane = any ($5))",
    )
    .bind(tenure.sink)
    .bind(reader)
    .bind(&lanes)
    .bind(epoch)
    .bind(&released)
    .execute(&mut *transaction)
    .await?;
    let mut new = Tenure { epoch, number: 0, ..tenure.clone() };
    if !cursors.is_empty() {
        // Cursors are complete from birth: the first row of an epoch holds all its lanes.
        progress::append(&mut transaction, &mut new, &cursors).await?;
    }
    if !released.is_empty() {
        bell::say_freed(&mut transaction).await?;
    }
    transaction.commit().await?;
    Ok((Some((new, cursors)), surplus))
}

/// How long until the next heartbeat of somebody else who holds lanes of the sink is overdue, if none comes.
pub async fn next_overdue(
    connection: &mut PgConnection,
    reader: Uuid,
    sink: i32,
) -> Result<Option<Duration>> {
    let seconds: Option<f64> = sqlx::query_scalar(
        "select extract(epoch from min(r.expires_at) - clock_timestamp())::double precision
         from postrider.readers r
         where r.reader <> $1 and r.expires_at > clock_timestamp()
           and exists (select from postrider.leases l where l.sink = $2 and l.owner = r.reader)",
    )
    .bind(reader)
    .bind(sink)
    .fetch_one(connection)
    .await?;
    Ok(seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default()))
}

/// What a reader is going to do about its lanes.
struct Plan {
    /// Those it holds then.
    lanes: Vec<i16>,
    /// Those it gives up.
    released: Vec<i16>,
    /// Those it would give up if nothing of theirs were in flight.
    surplus: Vec<i16>,
    is_unchanged: bool,
    /// The next one.
    epoch: i64,
}

async fn plan(
    connection: &mut PgConnection,
    reader: Uuid,
    tenure: &Tenure,
    held: &[i16],
    busy: &[i16],
    sharing: Sharing,
) -> Result<Plan> {
    let stored = progress::load(connection, tenure.sink, &tenure.name).await?;
    let alive: Vec<Uuid> = sqlx::query_scalar(
        "select reader from postrider.readers
         where $1 = any (sinks) and expires_at > clock_timestamp() and state <> 'failed'",
    )
    .bind(tenure.sink)
    .fetch_all(connection)
    .await?;
    let holders =
        stored.iter().map(|(&lane, stored)| (lane, stored.owner.filter(|_| stored.alive))).collect();
    let decision = sharing(reader, &holders, &alive);
    let (surplus, released): (Vec<i16>, Vec<i16>) =
        decision.release.iter().partition(|lane| busy.contains(lane));
    // Somebody may have taken lanes while this reader was silent: then what it holds in memory is more than what it holds. The owner alone
    // would tell, as long as nobody but the reader itself makes it the owner and it knows of every time it did. With the epoch this need not
    // be so: nothing is read from memory that could not be settled.
    let mine = |lane: &i16| {
        stored.get(lane).is_some_and(|stored| stored.owner == Some(reader) && stored.epoch == tenure.epoch)
    };
    // Lost and free again: it must be let go of before it can be taken, or reading would go on from the cursor in memory and send
    // again all that others have settled meanwhile.
    let stale = |lane: &i16| held.contains(lane) && !mine(lane);
    let kept = |lane: i16, owner: Option<Uuid>| owner == Some(reader) && !released.contains(&lane);
    let lanes: Vec<i16> = stored
        .iter()
        .filter(|(lane, _)| !stale(lane))
        .filter(|(lane, stored)| kept(**lane, stored.owner) || decision.claim.contains(lane))
        .map(|(&lane, _)| lane)
        .collect();
    let is_unchanged = decision.claim.is_empty()
        && released.is_empty()
        && held.iter().all(mine)
        && stored
            .iter()
            .filter(|(_, stored)| stored.owner == Some(reader))
            .all(|(lane, _)| held.contains(lane) && mine(lane));
    let epoch = stored.values().map(|stored| stored.epoch).max().unwrap_or(0) + 1;
    Ok(Plan { lanes, released, surplus, is_unchanged, epoch })
}

/// Hands every lane back and says goodbye, so that others need not wait for the lease to run out.
pub async fn release(connection: &mut PgConnection, reader: Uuid) -> Result<()> {
    let mut transaction = connection.begin().await?;
    sqlx::query("update postrider.leases set owner = null where owner = $1")
        .bind(reader)
        .execute(&mut *transaction)
        .await?;
    sqlx::query("delete from postrider.readers where reader = $1")
        .bind(reader)
        .execute(&mut *transaction)
        .await?;
    bell::say_freed(&mut transaction).await?;
    transaction.commit().await?;
    Ok(())
}

/// Removes readers that have been silent for so long that nobody wonders any more. Their lanes were taken over long ago.
pub async fn forget_silent(connection: &mut PgConnection) -> Result<()> {
    sqlx::query("delete from postrider.readers where expires_at < clock_timestamp() - interval '1 hour'")
        .execute(connection)
        .await?;
    Ok(())
}
