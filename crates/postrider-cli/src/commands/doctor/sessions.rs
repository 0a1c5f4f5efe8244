//! Who else is there: connections, long transactions, what holds back the horizon.

use postrider::log::error::Result as LogResult;
use sqlx::{FromRow, PgConnection};

use super::check::{Report, few};
use crate::failure::Failure;
use crate::moment;

/// Beyond this many transactions the oldest snapshot keeps VACUUM from cleaning up what matters.
const FAR_BEHIND: i64 = 10_000_000;

#[derive(FromRow)]
struct Connections {
    used: i64,
    ours: i64,
    usable: i64,
    /// Of them, those of which this role sees only that they are there.
    hidden: i64,
    role: String,
}

impl Connections {
    /// What this role may not see, and the remedy. Nothing if it sees everything.
    fn blindness(&self) -> Option<(String, String)> {
        (self.hidden > 0).then(|| {
            (
                format!("this role may not see what {} sessions of other roles do", self.hidden),
                format!("grant pg_read_all_stats to {};", self.role),
            )
        })
    }
}

pub(super) async fn examine(connection: &mut PgConnection, report: &mut Report) -> Result<(), Failure> {
    let counted = connections(connection).await;
    let mut blindness = None;
    if let Some(found) = report.seen("connections", counted)? {
        blindness = found.blindness();
        let Connections { used, ours, usable, .. } = found;
        // What is hidden may also be a worker, which takes no connection.
        let most = if blindness.is_some() { "at most " } else { "" };
        let detail = format!("{most}{used} of {usable} are in use, {ours} of them by postrider");
        let remedy = "a relay takes three for each sink, those of its pool and one for metrics, and up to three for each adopted table: raise max_connections, or put a pooler before the applications";
        match 100 * used / usable.max(1) {
            90.. => report.bad("connections", detail, remedy),
            75.. => report.warn("connections", detail, remedy),
            _ => report.ok("connections", detail),
        }
    }
    let long = long_transactions(connection).await;
    if let Some(long) = report.seen("long transactions", long)? {
        match (long.first(), &blindness) {
            (None, None) => report.ok("long transactions", "none is older than five minutes"),
            (None, Some((what, remedy))) => report.warn("long transactions", what, remedy),
            (Some(first), blindness) => {
                let pid = first.pid;
                let all: Vec<String> = long.iter().map(Long::words).collect();
                let besides = blindness.as_ref().map(|(what, _)| format!("; {what}")).unwrap_or_default();
                report.warn(
                    "long transactions",
                    format!(
                        "{}; their own events wait for them, and slots they wrote to cannot be emptied{besides}",
                        few(&all)
                    ),
                    format!("commit or roll back, or: select pg_terminate_backend({pid});"),
                );
            }
        }
    }
    let prepared = prepared(connection).await;
    if let Some(prepared) = report.seen("prepared transactions", prepared)? {
        match prepared.first() {
            None => report.ok("prepared transactions", "none is older than five minutes"),
            Some((gid, ..)) => {
                let all: Vec<String> = prepared
                    .iter()
                    .map(|(gid, owner, database, age)| {
                        format!(
                            "gid {gid:?} of {owner} in {database}, for {}",
                            moment::span(moment::seconds(*age))
                        )
                    })
                    .collect();
                report.warn(
                    "prepared transactions",
                    few(&all),
                    format!(
                        "in that database: commit prepared '{0}'; or rollback prepared '{0}';",
                        gid.replace('\'', "''")
                    ),
                );
            }
        }
    }
    let horizon = horizon(connection).await;
    if let Some((age, holder)) = report.seen("oldest snapshot", horizon)? {
        let detail = match &holder {
            Some(holder) => format!("{age} transactions behind, held by {holder}"),
            None => "nothing holds it back".to_owned(),
        };
        if age > FAR_BEHIND {
            report.warn(
                "oldest snapshot",
                detail,
                "end that session, or drop that slot if nobody uses it: VACUUM cannot clean up",
            );
        } else if let Some((what, remedy)) = &blindness {
            report.warn("oldest snapshot", format!("{what}; apart from them: {detail}"), remedy);
        } else {
            report.ok("oldest snapshot", detail);
        }
    }
    let oldest = oldest_database(connection).await;
    if let Some((age, database)) = report.seen("wraparound", oldest)? {
        wraparound(age, &database, report);
    }
    Ok(())
}

/// The server takes no more commands at 2^31 - 3,000,000, and warns 40,000,000 before. Autovacuum begins at 200,000,000 by default.
fn wraparound(age: i64, database: &str, report: &mut Report) {
    let detail = format!("{age} of 2,147,483,648 transactions are used since {database} was frozen");
    let remedy = "find what holds VACUUM back (the oldest snapshot, above), and run VACUUM in that database; see that autovacuum is on";
    match age {
        1_500_000_000.. => {
            report.bad("wraparound", format!("{detail}; at the end nothing can be written"), remedy);
        }
        1_000_000_000.. => report.warn("wraparound", detail, remedy),
        _ => report.ok("wraparound", detail),
    }
}

async fn oldest_database(connection: &mut PgConnection) -> LogResult<(i64, String)> {
    Ok(sqlx::query_as(
        "select age(d.datfrozenxid)::bigint, d.datname::text from pg_database d order by age(d.datfrozenxid) desc limit 1",
    )
    .fetch_one(connection)
    .await?)
}

/// Of others' sessions a role without `pg_read_all_stats` sees the row and whose it is. The server's own processes are nobody's.
async fn connections(connection: &mut PgConnection) -> LogResult<Connections> {
    Ok(sqlx::query_as(
        "select count(*) as used, count(*) filter (where application_name like 'postrider%') as ours,
                (current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer)::bigint as usable,
                count(*) filter (where backend_type is null) as hidden, quote_ident(current_user) as role
         from pg_stat_activity where backend_type = 'client backend' or backend_type is null and usesysid is not null",
    )
    .fetch_one(connection)
    .await?)
}

#[derive(FromRow)]
struct Long {
    pid: i32,
    role: Option<String>,
    database: Option<String>,
    application: Option<String>,
    state: Option<String>,
    seconds: f64,
}

impl Long {
    fn words(&self) -> String {
        let or = |text: &Option<String>| text.clone().unwrap_or_else(|| "?".to_owned());
        format!(
            "pid {} of {} in {} ({}, {}), for {}",
            self.pid,
            or(&self.role),
            or(&self.database),
            self.application.clone().filter(|name| !name.is_empty()).unwrap_or_else(|| "no name".to_owned()),
            or(&self.state),
            moment::span(moment::seconds(self.seconds))
        )
    }
}

/// A role that may not see others' sessions sees them without a start, and they are not among these.
async fn long_transactions(connection: &mut PgConnection) -> LogResult<Vec<Long>> {
    Ok(sqlx::query_as(
        "select a.pid, a.usename::text as role, a.datname::text as database, a.application_name as application, a.state,
                date_part('epoch', clock_timestamp() - a.xact_start)::float8 as seconds
         from pg_stat_activity a
         where a.xact_start < clock_timestamp() - interval '5 minutes' and a.backend_type = 'client backend' and a.pid <> pg_backend_pid()
         order by a.xact_start",
    )
    .fetch_all(connection)
    .await?)
}

async fn prepared(connection: &mut PgConnection) -> LogResult<Vec<(String, String, String, f64)>> {
    Ok(sqlx::query_as(
        "select gid, owner::text, database::text, date_part('epoch', clock_timestamp() - prepared)::float8
         from pg_prepared_xacts where prepared < clock_timestamp() - interval '5 minutes' order by prepared",
    )
    .fetch_all(connection)
    .await?)
}

/// How many transactions the oldest snapshot is behind, and whose it is.
async fn horizon(connection: &mut PgConnection) -> LogResult<(i64, Option<String>)> {
    let found: Option<(i64, String)> = sqlx::query_as(
        "select h.age, h.holder from (
             select age(a.backend_xmin)::bigint as age, format('pid %s', a.pid) as holder
             from pg_stat_activity a where a.backend_xmin is not null and a.pid <> pg_backend_pid()
             union all
             select greatest(age(s.xmin), age(s.catalog_xmin))::bigint, format('replication slot %I', s.slot_name)
             from pg_replication_slots s where coalesce(s.xmin, s.catalog_xmin) is not null
             union all
             select age(p.transaction)::bigint, format('prepared transaction %L', p.gid) from pg_prepared_xacts p) h
         order by h.age desc limit 1",
    )
    .fetch_optional(connection)
    .await?;
    Ok(match found {
        Some((age, holder)) => (age, Some(holder)),
        None => (0, None),
    })
}

#[cfg(test)]
mod tests {
    use super::super::check::Grade;
    use super::*;

    #[test]
    fn fault_22_wraparound_is_seen_long_before_it_stops_the_server() {
        for (age, grade) in
            [(200_000_000, Grade::Ok), (1_000_000_000, Grade::Warn), (1_500_000_000, Grade::Bad)]
        {
            let mut report = Report::default();
            wraparound(age, "app", &mut report);
            assert_eq!(report.checks[0].grade, grade, "{age}");
        }
    }
}
