//! Whether what adopted tables need is in place, by the catalogs alone.

use sqlx::PgConnection;

use super::declaration::Outbox;
use super::failure::{Error, Result};
use super::inspect;
use super::mapping::Mapping;
use super::plan::compared;
use crate::capture::{Alarm, State};

/// What is not as it should be, for whoever looks from time to time: by the catalogs alone.
pub async fn alarms(connection: &mut PgConnection, outboxes: &[Outbox]) -> Result<Vec<Alarm>> {
    let mut alarms = Vec::new();
    for outbox in outboxes {
        let plan = match compared(connection, std::slice::from_ref(outbox), false).await {
            Ok(plan) => plan,
            Err(Error::Database(error)) => return Err(error.into()),
            Err(error) => {
                let (table, reason) = (outbox.name.clone(), error.to_string());
                alarms.push(Alarm { table, state: State::Outdated, reason });
                continue;
            }
        };
        let Some(difference) = plan.tables.first() else { continue };
        let mapping = Mapping::of(connection, outbox).await?;
        if let Some(hidden) = inspect::security(connection, &mapping).await? {
            let reason = format!("{}: {}", hidden.problem, hidden.remedy);
            alarms.push(Alarm { table: outbox.name.clone(), state: State::Outdated, reason });
        }
        let reason = match difference.state {
            State::Installed | State::Orphaned => continue,
            State::Missing | State::Disabled => {
                "its rows become no events: `postrider apply` mends it, and takes those that came meanwhile"
            }
            State::Outdated => {
                "what is installed for it is outdated: see `postrider plan`, then `postrider apply`"
            }
        };
        // By the name it is declared with, as whoever asked knows it.
        alarms.push(Alarm { table: outbox.name.clone(), state: difference.state, reason: reason.to_owned() });
    }
    Ok(alarms)
}
