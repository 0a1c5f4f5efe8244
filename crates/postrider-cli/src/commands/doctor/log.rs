//! The schema and the log: installed, safe, indexed, granted, turning.

use postrider::log::error::Result as LogResult;
use postrider::log::{Error, identity};
use postrider::schema;
use postrider_relay::units::Size;
use sqlx::{Connection as _, PgConnection};
use time::OffsetDateTime;

use super::check::{Report, few, is_denied};
use crate::bytes;
use crate::commands::rights::{self, Remedy, Task};
use crate::failure::Failure;

/// A current slot this old means that nobody turns the ring: it is due after a seventh of the retention.
const TURNS_WITHIN_DAYS: i64 = 14;

/// Whether there is a log to examine.
pub(super) async fn is_installed(
    connection: &mut PgConnection,
    report: &mut Report,
) -> Result<bool, Failure> {
    let found = schema::version(connection).await;
    if matches!(&found, Err(Error::Database(error)) if is_denied(error)) {
        not_seen(connection, report).await?;
        return Ok(false);
    }
    let Some(found) = report.seen("schema", found)? else {
        return Ok(false);
    };
    match found {
        None => {
            report.bad("schema", "this database has no postrider schema", "install it with `postrider init`");
        }
        Some(version) if version < schema::OLDEST => report.bad(
            "schema",
            format!("version {version}, this program works with {} to {}", schema::OLDEST, schema::NEWEST),
            "upgrade it with `postrider init`",
        ),
        Some(version) if version > schema::NEWEST => report.bad(
            "schema",
            format!("version {version}, this program works with {} to {}", schema::OLDEST, schema::NEWEST),
            "use a newer postrider",
        ),
        Some(version) => {
            report.ok("schema", format!("version {version}"));
            return Ok(true);
        }
    }
    Ok(false)
}

/// Nothing could be examined, which is not the same as well.
async fn not_seen(connection: &mut PgConnection, report: &mut Report) -> Result<(), Failure> {
    let Remedy { user, statement } = rights::remedy(connection, Task::Look).await?;
    let has_usage: bool = sqlx::query_scalar("select has_schema_privilege('postrider', 'usage')")
        .fetch_one(connection)
        .await
        .map_err(Error::from)?;
    let right = if has_usage {
        "EXECUTE on the function postrider.schema_version()"
    } else {
        "USAGE on the schema postrider"
    };
    report.bad(
        "schema",
        format!("{user:?} lacks {right}: nothing of the log could be examined"),
        format!("let an administrator run `{statement}`, or connect as the relay's role"),
    );
    Ok(())
}

pub(super) async fn examine(
    connection: &mut PgConnection,
    max_log_size: Option<u64>,
    report: &mut Report,
) -> Result<(), Failure> {
    same_cluster(connection, report).await?;
    let unlogged = unlogged(connection).await;
    if let Some(tables) = report.seen("tables", unlogged)? {
        match tables.first() {
            None => report.ok("tables", "every table is logged"),
            Some(first) => report.bad(
                "tables",
                format!("a crash would empty these: {}", few(&tables)),
                format!("alter table {first} set logged;"),
            ),
        }
    }
    let sequence = sequence(connection).await;
    if let Some(wrong) = report.seen("sequence", sequence)? {
        match wrong {
            None => report.ok("sequence", "postrider.seq counts one by one"),
            Some(wrong) => report.bad(
                "sequence",
                format!("postrider.seq has {wrong}: events would leave out of order or be missed"),
                "alter sequence postrider.seq cache 1 increment 1 no cycle;",
            ),
        }
    }
    let indexes = missing_indexes(connection).await;
    if let Some(missing) = report.seen("indexes", indexes)? {
        if missing.is_empty() {
            report.ok("indexes", "all are there and valid");
        } else {
            report.bad(
                "indexes",
                format!("missing or not valid: {}", few(&missing)),
                "drop what is not valid and run `postrider init --max-payload 64MB` (or `postrider sql | psql`), which creates what is missing",
            );
        }
    }
    let grants = grants(connection).await;
    if let Some((emit, relay, look)) = report.seen("grants", grants)? {
        let list = |roles: &[String]| if roles.is_empty() { "nobody".to_owned() } else { roles.join(", ") };
        let detail = format!(
            "besides the owner: {} may emit, {} may relay, {} may look",
            list(&emit),
            list(&relay),
            list(&look)
        );
        if emit.is_empty() || relay.is_empty() {
            report.warn(
                "grants",
                detail,
                "`postrider init --emit-role … --relay-role …` grants what is needed",
            );
        } else {
            report.ok("grants", detail);
        }
    }
    let ring = ring(connection).await;
    if let Some(ring) = report.seen("ring", ring)? {
        judge_ring(&ring, max_log_size, report);
    }
    Ok(())
}

/// In a transaction that is taken back: the check would write down which cluster this is.
async fn same_cluster(connection: &mut PgConnection, report: &mut Report) -> Result<(), Failure> {
    let mut transaction = connection.begin().await.map_err(Error::from)?;
    let checked = identity::check(&mut transaction).await;
    transaction.rollback().await.map_err(Error::from)?;
    match checked {
        Err(Error::Rebase { what }) => report.bad(
            "identity",
            format!("this is not the database the cursors were made in: {what}"),
            "see what `postrider rebase` would do, stop the relays, and run it with --yes",
        ),
        // Said by checks of their own.
        Err(Error::Unsafe { .. }) => {}
        checked => {
            if report.seen("identity", checked)?.is_some() {
                report.ok("identity", "the log belongs to this database");
            }
        }
    }
    Ok(())
}

async fn unlogged(connection: &mut PgConnection) -> LogResult<Vec<String>> {
    Ok(sqlx::query_scalar(
        "select c.oid::regclass::text from pg_class c
         where c.relnamespace = 'postrider'::regnamespace and c.relkind = 'r' and c.relpersistence <> 'p' order by 1",
    )
    .fetch_all(connection)
    .await?)
}

async fn sequence(connection: &mut PgConnection) -> LogResult<Option<String>> {
    Ok(sqlx::query_scalar(
        "select concat_ws(', ', format('cache %s', s.seqcache), format('increment %s', s.seqincrement), case when s.seqcycle then 'cycle' end)
         from pg_sequence s
         where s.seqrelid = 'postrider.seq'::regclass and (s.seqcache <> 1 or s.seqincrement <> 1 or s.seqcycle)",
    )
    .fetch_optional(connection)
    .await?)
}

/// Every index of ours on every table that must have it.
async fn missing_indexes(connection: &mut PgConnection) -> LogResult<Vec<String>> {
    Ok(sqlx::query_scalar(include_str!("indexes.sql")).fetch_all(connection).await?)
}

type Roles = (Vec<String>, Vec<String>, Vec<String>);

/// Who besides the owner may emit, relay, look.
async fn grants(connection: &mut PgConnection) -> LogResult<Roles> {
    Ok(sqlx::query_as(include_str!("grants.sql")).fetch_one(connection).await?)
}

struct Ring {
    opened_at: Option<OffsetDateTime>,
    free: i64,
    holders: Vec<String>,
    age_days: i64,
    bytes: i64,
}

async fn ring(connection: &mut PgConnection) -> LogResult<Ring> {
    let (opened_at, free, holders, age_days, bytes) = sqlx::query_as(
        "select max(s.opened_at) filter (where s.is_current),
                count(*) filter (where s.is_empty and not s.is_current),
                array(select distinct h.sink from postrider.slots h0 cross join lateral unnest(h0.held_by) as h (sink) where not h0.is_current order by 1),
                coalesce(date_part('day', clock_timestamp() - max(s.opened_at) filter (where s.is_current)), 0)::bigint,
                sum(s.bytes)::bigint
         from postrider.slots s",
    )
    .fetch_one(connection)
    .await?;
    Ok(Ring { opened_at, free, holders, age_days, bytes })
}

fn judge_ring(ring: &Ring, max_log_size: Option<u64>, report: &mut Report) {
    if let Some(limit) = max_log_size.filter(|limit| ring.bytes.unsigned_abs() > *limit)
        && !ring.holders.is_empty()
    {
        return report.bad(
            "ring",
            format!(
                "the log has {}, log.max_log_size is {}, and these sinks have not settled closed slots: {}",
                bytes::text(ring.bytes),
                Size(limit),
                few(&ring.holders)
            ),
            "let them catch up, or give one up with `postrider sinks forget NAME`; nothing is removed that they have not settled",
        );
    }
    if ring.free == 0 && !ring.holders.is_empty() {
        return report.bad(
            "ring",
            format!("no slot is free, and these sinks have not settled closed ones: {}", few(&ring.holders)),
            "let them catch up, or give one up with `postrider sinks forget NAME`; until then the log grows",
        );
    }
    if ring.opened_at.is_some() && ring.age_days > TURNS_WITHIN_DAYS {
        return report.warn(
            "ring",
            format!("the current slot was begun {} days ago", ring.age_days),
            "a relay turns the ring: see that one runs, and how long its retention is",
        );
    }
    report.ok("ring", format!("{} of 8 slots are free", ring.free));
}
