//! What is wrong with the capture of tables, for the commands that look at the state of things.

use postrider::capture::{self, Alarm, Missing, Table};
use serde_json::{Value, json};
use sqlx::PgConnection;

use crate::config;
use crate::config::Source;
use crate::{moment, output};

/// What was found.
pub(super) struct Captured {
    pub(super) alarms: Vec<Alarm>,
    pub(super) missing: Vec<Missing>,
}

/// The declared tables; nothing without a file, or where something is missing that it refers to.
pub(super) fn declared(source: &Source) -> Option<Vec<Table>> {
    config::declared(source).ok().filter(|declared| declared.is_written).map(|declared| declared.tables)
}

/// Without declarations, what can be seen all the same: triggers that are switched off.
pub(super) async fn look(
    connection: &mut PgConnection,
    tables: Option<&[Table]>,
) -> capture::Result<Captured> {
    let alarms = match tables {
        Some(tables) => capture::alarms(connection, tables).await?,
        None => capture::disabled(connection).await?,
    };
    Ok(Captured { alarms, missing: capture::missing(connection).await? })
}

impl Captured {
    pub(super) fn is_well(&self) -> bool {
        self.alarms.is_empty() && self.missing.is_empty()
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
        alarms.chain(missing).map(|line| output::plain(&line)).collect()
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
        json!({ "well": self.is_well(), "alarms": alarms, "missing": missing })
    }
}
