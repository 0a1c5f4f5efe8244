//! The server: version, role in replication, durability, clock.

use std::time::{Instant, SystemTime};

use postrider::log::error::Result as LogResult;
use sqlx::{PgConnection, Row as _};
use time::OffsetDateTime;

use super::check::Report;
use crate::failure::Failure;

const OLDEST: i32 = 140_000;
const NEWEST: i32 = 190_000;
/// Nothing compares the two clocks; but ages and times on the screen come from both.
const CLOCKS_APART: f64 = 2.0;

struct Server {
    version: String,
    number: i32,
    is_standby: bool,
    fsync: String,
    synchronous_commit: String,
    full_page_writes: String,
    role: String,
    read_only: String,
    idle_session_timeout: String,
    statement_timeout: String,
    transaction_timeout: Option<String>,
    max_prepared: i32,
    notify_queue: f64,
    took: std::time::Duration,
    offset: f64,
}

async fn ask(connection: &mut PgConnection) -> LogResult<Server> {
    // Once for the way there and back alone: the first statement of a connection takes longer.
    sqlx::query("select 1").execute(&mut *connection).await?;
    let (sent, sent_at) = (Instant::now(), SystemTime::now());
    let theirs: OffsetDateTime =
        sqlx::query_scalar("select clock_timestamp()").fetch_one(&mut *connection).await?;
    let took = sent.elapsed();
    let ours = OffsetDateTime::from(sent_at) + took / 2;
    let row = sqlx::query(
        "select current_setting('server_version'), current_setting('server_version_num')::integer, pg_is_in_recovery(),
                current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes'), current_user::text,
                current_setting('default_transaction_read_only'), current_setting('idle_session_timeout'),
                current_setting('statement_timeout'), current_setting('transaction_timeout', true),
                current_setting('max_prepared_transactions')::integer, pg_notification_queue_usage()",
    )
    .fetch_one(connection)
    .await?;
    Ok(Server {
        version: row.try_get(0)?,
        number: row.try_get(1)?,
        is_standby: row.try_get(2)?,
        fsync: row.try_get(3)?,
        synchronous_commit: row.try_get(4)?,
        full_page_writes: row.try_get(5)?,
        role: row.try_get(6)?,
        read_only: row.try_get(7)?,
        idle_session_timeout: row.try_get(8)?,
        statement_timeout: row.try_get(9)?,
        transaction_timeout: row.try_get(10)?,
        max_prepared: row.try_get(11)?,
        notify_queue: row.try_get(12)?,
        took,
        offset: (theirs - ours).as_seconds_f64(),
    })
}

pub(super) async fn examine(connection: &mut PgConnection, report: &mut Report) -> Result<(), Failure> {
    let asked = ask(connection).await;
    let Some(server) = report.seen("server", asked)? else {
        return Ok(());
    };
    version(&server, report);
    durability(&server, report);
    settings(&server, report);
    clock(&server, report);
    Ok(())
}

fn version(server: &Server, report: &mut Report) {
    let detail = format!(
        "PostgreSQL {}, answers in {:.1} ms, as role {}",
        server.version,
        server.took.as_secs_f64() * 1000.0,
        server.role
    );
    match server.number {
        ..OLDEST => report.bad("server", detail, "use PostgreSQL 14 or newer"),
        NEWEST.. => {
            report.warn("server", detail, "PostgreSQL 14 to 18 are tested; look for a newer postrider");
        }
        _ => report.ok("server", detail),
    }
    if server.is_standby {
        report.bad(
            "primary",
            "this server is a standby: the log can only be read on the primary",
            "point the connection at the primary",
        );
    } else {
        report.ok("primary", "this server is the primary");
    }
}

fn durability(server: &Server, report: &mut Report) {
    if server.fsync != "on" {
        return report.bad(
            "durability",
            "fsync is off: after a power cut the database may be lost or wrong, and what was published with it",
            "set fsync = on",
        );
    }
    if server.full_page_writes != "on" {
        return report.bad(
            "durability",
            "full_page_writes is off: a power cut may leave pages half written",
            "set full_page_writes = on",
        );
    }
    if server.synchronous_commit == "off" {
        return report.warn(
            "durability",
            "synchronous_commit is off: a crash may take back what an application was told is committed. Nothing is published before \
             it is on disk, so nothing is invented",
            "set synchronous_commit = on for the transactions that emit",
        );
    }
    report.ok("durability", format!("fsync is on, synchronous_commit is {}", server.synchronous_commit));
}

fn settings(server: &Server, report: &mut Report) {
    let mut found = Vec::new();
    if server.read_only == "on" {
        found.push("default_transaction_read_only is on: nothing can be emitted".to_owned());
    }
    if server.idle_session_timeout != "0" {
        found.push(format!(
            "idle_session_timeout is {}: it ends a relay that waits for events",
            server.idle_session_timeout
        ));
    }
    if let Some(timeout) = server.transaction_timeout.as_deref().filter(|timeout| *timeout != "0") {
        found.push(format!("transaction_timeout is {timeout}"));
    }
    if server.statement_timeout != "0" {
        found.push(format!("statement_timeout is {} (a relay sets its own)", server.statement_timeout));
    }
    if found.is_empty() {
        report.ok("settings of the role", "no timeout and no read-only default is set for this role");
    } else {
        let remedy = format!("alter role {:?} reset …, for the roles that emit and relay", server.role);
        report.warn("settings of the role", found.join("; "), remedy);
    }
    if server.max_prepared > 0 {
        report.warn(
            "wake-up",
            format!(
                "max_prepared_transactions is {}: producers do not wake relays (a transaction that notified cannot be prepared), \
                 which look every 100 ms instead",
                server.max_prepared
            ),
            "set max_prepared_transactions = 0 if nobody uses two-phase commit, or `hint: force` if emitting transactions are never prepared",
        );
    } else {
        report.ok("wake-up", "producers may wake relays");
    }
    let percent = server.notify_queue * 100.0;
    let detail = format!("the queue of notifications is {percent:.1} % full");
    match server.notify_queue {
        ..=0.5 => report.ok("notifications", detail),
        ..=0.75 => report.warn(
            "notifications",
            detail,
            "end the session that listens and sits in an open transaction",
        ),
        _ => report.bad(
            "notifications",
            format!("{detail}; a full one fails every COMMIT that notifies"),
            "end the session that listens and sits in an open transaction",
        ),
    }
}

fn clock(server: &Server, report: &mut Report) {
    let detail = format!("the server's clock is {:+.1} s from this machine's", server.offset);
    if server.offset.abs() > CLOCKS_APART {
        report.warn(
            "clocks",
            detail,
            "run NTP on both; delivery does not depend on it, but every age that is shown does",
        );
    } else {
        report.ok("clocks", detail);
    }
}
