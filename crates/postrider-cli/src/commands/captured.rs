//! What is wrong with the capture of tables and with adopted ones, for the commands that look at the state of things.

use postrider::capture::{self, Alarm, Missing, Table};
use postrider::outbox::{self, Misfits, Outbox, Trouble};
use serde_json::{Value, json};
use sqlx::PgConnection;

use crate::config;
use crate::config::Source;
use crate::{moment, output};

/// What was found.
pub(super) struct Captured {
    pub(super) alarms: Vec<Alarm>,
    pub(super) missing: Vec<Missing>,
    pub(super) misfits: Vec<Misfits>,
    pub(super) kept: Vec<Trouble>,
}

/// What the file declares.
pub(super) struct Tables {
    captured: Vec<Table>,
    adopted: Vec<Outbox>,
}

impl Tables {
    pub(super) fn count(&self) -> usize {
        self.captured.len() + self.adopted.len()
    }
}

/// The declared tables; nothing without a file, or where something is missing that it refers to.
pub(super) fn declared(source: &Source) -> Option<Tables> {
    let declared = config::declared(source).ok().filter(|declared| declared.is_written)?;
    Some(Tables { captured: declared.tables, adopted: declared.outboxes })
}

/// Without declarations, what can be seen all the same: triggers that are switched off.
pub(super) async fn look(connection: &mut PgConnection, tables: Option<&Tables>) -> sqlx::Result<Captured> {
    let alarms = match tables {
        Some(Tables { captured, adopted }) => {
            let mut alarms = capture::alarms(connection, captured).await.map_err(of_database)?;
            alarms.extend(outbox::alarms(connection, adopted).await.map_err(of_outbox)?);
            alarms
        }
        None => capture::disabled(connection).await.map_err(of_database)?,
    };
    Ok(Captured {
        alarms,
        missing: capture::missing(connection).await.map_err(of_database)?,
        misfits: outbox::misfits(connection).await.map_err(of_outbox)?,
        kept: outbox::troubles(connection).await.map_err(of_outbox)?,
    })
}

/// What is wrong with a declaration is an alarm; nothing else is an error here.
fn of_database(error: capture::Error) -> sqlx::Error {
    match error {
        capture::Error::Database(error) => error,
        error => sqlx::Error::Protocol(error.to_string()),
    }
}

fn of_outbox(error: outbox::Error) -> sqlx::Error {
    match error {
        outbox::Error::Database(error) => error,
        outbox::Error::Table(error) => of_database(error),
        error => sqlx::Error::Protocol(error.to_string()),
    }
}

impl Captured {
    pub(super) fn is_well(&self) -> bool {
        self.alarms.is_empty() && self.missing.is_empty() && self.misfits.is_empty() && self.kept.is_empty()
    }

    /// A line for each trouble.
    pub(super) fn troubles(&self) -> Vec<String> {
        let alarms = self.alarms.iter().map(|Alarm { table, state, reason }| {
            format!("{table}: its trigger is {}: {reason}", state.word())
        });
        let missing = self.missing.iter().map(|Missing { relation, failures, oldest, sqlstate }| {
            let writes = if *failures == 1 { "1 write".to_owned() } else { format!("{} writes", output::thousands(*failures)) };
            format!(
                "{relation}: the events of {writes} since {} could not be recorded (error {sqlstate}): mend the cause, then `postrider recapture`",
                moment::short(*oldest)
            )
        });
        let misfits = self.misfits.iter().map(|Misfits { outbox, rows, source_id, reason, since }| {
            let rows = if *rows == 1 { "1 row".to_owned() } else { format!("{} rows", output::thousands(*rows)) };
            format!(
                "{outbox}: {rows} cannot become events, since {}, first {source_id}: {reason}; mend them, or mark them as sent",
                moment::short(*since)
            )
        });
        let kept = self
            .kept
            .iter()
            .map(|Trouble { outbox, relay, trouble }| format!("{outbox}, kept by {relay}: {trouble}"));
        alarms.chain(missing).chain(misfits).chain(kept).map(|line| output::plain(&line)).collect()
    }

    pub(super) fn document(&self) -> Value {
        let alarms: Vec<Value> = self
            .alarms
            .iter()
            .map(|alarm| json!({ "table": alarm.table, "state": alarm.state.word(), "reason": alarm.reason }))
            .collect();
        let missing: Vec<Value> = self
            .missing
            .iter()
            .map(|missing| {
                json!({
                    "relation": missing.relation,
                    "writes": missing.failures,
                    "oldest": moment::text(missing.oldest),
                    "sqlstate": missing.sqlstate,
                })
            })
            .collect();
        let misfits: Vec<Value> = self
            .misfits
            .iter()
            .map(|misfits| {
                json!({
                    "outbox": misfits.outbox,
                    "rows": misfits.rows,
                    "first": misfits.source_id,
                    "reason": misfits.reason,
                    "since": moment::text(misfits.since),
                })
            })
            .collect();
        let kept: Vec<Value> = self
            .kept
            .iter()
            .map(|kept| json!({ "outbox": kept.outbox, "relay": kept.relay, "trouble": kept.trouble }))
            .collect();
        json!({ "well": self.is_well(), "alarms": alarms, "missing": missing, "misfits": misfits, "outbox": kept })
    }
}
