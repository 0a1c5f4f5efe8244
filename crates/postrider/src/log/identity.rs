//! Is it still the same database, and is the log still what the algorithm relies on?
//!
//! Asked at every connect and then once a minute. Snapshots, xids and positions mean nothing in another cluster, and a
//! sequence that went back hides new events below the cursors.

use sqlx::{PgConnection, Row};

use super::error::{Error, Result};

const CLUSTER: &str = "select system_identifier,
    ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint as timeline
    from pg_control_system()";

/// A log whose data a crash would empty is no log.
const UNLOGGED: &str =
    "select c.oid::regclass::text, case c.relkind when 'S' then 'sequence' else 'table' end from pg_class c
    where c.relnamespace = 'postrider'::regnamespace and c.relkind in ('r', 'S') and c.relpersistence <> 'p' order by 1 limit 1";

const SEQUENCES: &str =
    "select s.seqrelid::regclass::text, s.seqcache, s.seqincrement, s.seqcycle from pg_sequence s
    where s.seqrelid = 'postrider.seq'::regclass and (s.seqcache <> 1 or s.seqincrement <> 1 or s.seqcycle)";

const HIGHEST: &str = "select coalesce(pg_sequence_last_value('postrider.seq'), 0) as last_seq,
    (select max(c.position) from postrider.cursors c) as position,
    (select max(newest.seq) from generate_series(0, postrider.lanes() - 1) l (number)
        cross join lateral (select e.seq from postrider.events e where e.lane = l.number::smallint order by e.lane desc, e.seq desc limit 1) newest) as seq,
    -- A sequence that went back and has climbed past the cursors again gave out the numbers before them twice.
    (select e.seq from (select max(c.position) as position from postrider.cursors c) highest
        cross join generate_series(0, postrider.lanes() - 1) l (number)
        cross join lateral (select e.seq from postrider.events e
            where e.lane = l.number::smallint and e.seq > highest.position - 10000 and e.seq <= highest.position) e
        group by l.number, e.seq having count(*) > 1 limit 1) as twice,
    (select e.xid::text from postrider.events e
        where e.xid >= pg_snapshot_xmax(pg_current_snapshot()) order by e.xid desc limit 1) as xid,
    pg_snapshot_xmax(pg_current_snapshot())::text as xmax";

/// Checks everything; the first time, remembers which cluster this is. Answers the timeline it is on.
pub async fn check(connection: &mut PgConnection) -> Result<i64> {
    check_tables(connection).await?;
    check_numbers(connection).await?;
    check_cluster(connection).await
}

/// As [`check`], for those who only look: whether the log can be read here as it stands. Remembers nothing.
pub async fn compare(connection: &mut PgConnection) -> Result<()> {
    check_numbers(connection).await?;
    let (system, _) = cluster(connection).await?;
    match known(connection).await? {
        Some((known, _)) => check_system(known, system),
        None => Ok(()),
    }
}

async fn check_tables(connection: &mut PgConnection) -> Result<()> {
    if let Some((name, kind)) =
        sqlx::query_as::<_, (String, String)>(UNLOGGED).fetch_optional(&mut *connection).await?
    {
        let loss = if kind == "sequence" { "set it back" } else { "empty it" };
        return Err(Error::Unsafe {
            remedy: format!("alter {kind} {name} set logged;"),
            what: format!("{kind} {name} is not logged: a crash would {loss}"),
        });
    }
    if let Some(row) = sqlx::query(SEQUENCES).fetch_optional(connection).await? {
        let (name, cache, increment, cycle): (String, i64, i64, bool) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
        return Err(Error::Unsafe {
            what: format!(
                "sequence {name} has cache {cache}, increment {increment}{}: events would leave out of order",
                if cycle { " and cycles" } else { "" }
            ),
            remedy: format!("alter sequence {name} cache 1 increment 1 no cycle;"),
        });
    }
    Ok(())
}

async fn check_numbers(connection: &mut PgConnection) -> Result<()> {
    let row = sqlx::query(HIGHEST).fetch_one(connection).await?;
    let last_seq: i64 = row.try_get("last_seq")?;
    for (what, column) in [("a cursor stands at", "position"), ("an event has", "seq")] {
        if let Some(found) = row.try_get::<Option<i64>, _>(column)? {
            check_seq(what, found, last_seq)?;
        }
    }
    if let Some(seq) = row.try_get::<Option<i64>, _>("twice")? {
        let what = format!(
            "two events have seq {seq}: the sequence postrider.seq was set back, and what was written since would be missed"
        );
        return Err(Error::Rebase { what });
    }
    if let Some(xid) = row.try_get::<Option<String>, _>("xid")? {
        let xmax: String = row.try_get("xmax")?;
        let what = format!(
            "an event was written by transaction {xid}, but this cluster is only at {xmax}: the log was restored into a younger \
             cluster and every event would be sent again"
        );
        return Err(Error::Rebase { what });
    }
    Ok(())
}

/// Nothing can be beyond a sequence that was never set back.
pub(super) fn check_seq(what: &str, seq: i64, last_seq: i64) -> Result<()> {
    if seq <= last_seq {
        return Ok(());
    }
    Err(Error::Rebase {
        what: format!(
            "{what} seq {seq}, but the sequence postrider.seq is only at {last_seq}: new events would be missed"
        ),
    })
}

/// The system identifier that a rebase leaves until its end; no cluster has it.
const UNFINISHED: i64 = 0;

async fn cluster(connection: &mut PgConnection) -> Result<(i64, i64)> {
    Ok(sqlx::query_as(CLUSTER).fetch_one(connection).await?)
}

async fn check_cluster(connection: &mut PgConnection) -> Result<i64> {
    let (system, timeline) = cluster(connection).await?;
    let known = known(connection).await?;
    if let Some((known, _)) = known {
        check_system(known, system)?;
    }
    // Another timeline is a failover: the checks above have passed, so the cursors still hold.
    if known.is_none_or(|(_, known)| known != timeline) {
        remember(connection, system, timeline).await?;
    }
    Ok(timeline)
}

async fn known(connection: &mut PgConnection) -> Result<Option<(i64, i64)>> {
    let known = "select system_identifier, timeline from postrider.identity";
    Ok(sqlx::query_as(known).fetch_optional(connection).await?)
}

fn check_system(known: i64, system: i64) -> Result<()> {
    let what = match known {
        UNFINISHED => "a rebase was begun and has not ended".to_owned(),
        known if known != system => format!("the log belongs to cluster {known}, this is cluster {system}"),
        _ => return Ok(()),
    };
    Err(Error::Rebase { what })
}

async fn remember(connection: &mut PgConnection, system: i64, timeline: i64) -> Result<()> {
    sqlx::query(
        "insert into postrider.identity (system_identifier, timeline) values ($1, $2)
         on conflict (only_row) do update set timeline = excluded.timeline
         where identity.system_identifier = excluded.system_identifier",
    )
    .bind(system)
    .bind(timeline)
    .execute(connection)
    .await?;
    Ok(())
}

/// Refuses every reader until [`replace`].
pub(super) async fn mark_unfinished(connection: &mut PgConnection) -> Result<()> {
    overwrite(connection, UNFINISHED, 0).await
}

/// From now on the log belongs to this cluster.
pub(super) async fn replace(connection: &mut PgConnection) -> Result<()> {
    let (system, timeline) = cluster(connection).await?;
    overwrite(connection, system, timeline).await
}

async fn overwrite(connection: &mut PgConnection, system: i64, timeline: i64) -> Result<()> {
    sqlx::query(
        "insert into postrider.identity (system_identifier, timeline) values ($1, $2)
         on conflict (only_row) do update set system_identifier = excluded.system_identifier, timeline = excluded.timeline",
    )
    .bind(system)
    .bind(timeline)
    .execute(connection)
    .await?;
    Ok(())
}
