//! The triggers of declared tables, and what they could not record.

use postrider::capture::{self, Table};
use postrider::log::Error;
use sqlx::PgConnection;

use super::super::captured::{self, Captured};
use super::check::{Report, few};
use crate::failure::Failure;

pub(super) async fn examine(
    connection: &mut PgConnection,
    tables: Option<&[Table]>,
    report: &mut Report,
) -> Result<(), Failure> {
    let found = captured::look(connection, tables).await.map_err(|error| match error {
        capture::Error::Database(error) => Error::from(error),
        // Nothing else is looked for.
        error => Error::from(sqlx::Error::Protocol(error.to_string())),
    });
    let Some(found) = report.seen("capture", found)? else { return Ok(()) };
    let Captured { missing, alarms } = &found;
    if found.is_well() {
        let declared = match tables {
            None | Some([]) => "no table is declared here, and no trigger is switched off".to_owned(),
            Some(tables) => format!("{} captured as declared", tables.len()),
        };
        report.ok("capture", declared);
        return Ok(());
    }
    let remedy = match (alarms.is_empty(), missing.is_empty()) {
        (true, _) => "mend the cause, then `postrider recapture`",
        (false, true) => "see `postrider plan`, then `postrider apply`",
        (false, false) => "see `postrider plan`, then `postrider apply`, then `postrider recapture`",
    };
    report.bad("capture", few(&found.troubles()), remedy);
    Ok(())
}
