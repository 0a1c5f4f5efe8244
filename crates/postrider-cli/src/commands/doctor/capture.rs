//! The triggers of declared and adopted tables, what they could not record, and rows that cannot become events.

use postrider::log::Error;
use sqlx::PgConnection;

use super::super::captured::{self, Captured, Tables};
use super::check::{Report, few};
use crate::failure::Failure;

pub(super) async fn examine(
    connection: &mut PgConnection,
    tables: Option<&Tables>,
    report: &mut Report,
) -> Result<(), Failure> {
    let found = captured::look(connection, tables).await.map_err(Error::from);
    let Some(found) = report.seen("capture", found)? else { return Ok(()) };
    let Captured { missing, alarms, .. } = &found;
    if found.is_well() {
        let declared = match tables {
            Some(tables) if tables.count() > 0 => format!("{} captured as declared", tables.count()),
            _ => "no table is declared here, and no trigger is switched off".to_owned(),
        };
        report.ok("capture", declared);
        return Ok(());
    }
    let remedy = match (alarms.is_empty(), missing.is_empty()) {
        (true, true) if found.misfits.is_empty() => "mend what the line names",
        (true, true) => "mend the rows, or mark them as sent",
        (true, false) => "mend the cause, then `postrider recapture`",
        (false, true) => "see `postrider plan`, then `postrider apply`",
        (false, false) => "see `postrider plan`, then `postrider apply`, then `postrider recapture`",
    };
    report.bad("capture", few(&found.troubles()), remedy);
    Ok(())
}
