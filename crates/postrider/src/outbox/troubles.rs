//! What keeps relays from keeping adopted tables as they should, for operators.

use sqlx::{FromRow, PgConnection};

use super::failure::Result;

/// Of one table.
#[derive(Debug, Clone, PartialEq, Eq, FromRow)]
pub struct Trouble {
    /// The table, quoted, with its schema.
    pub outbox: String,
    /// Who keeps it.
    pub relay: String,
    /// In words.
    pub trouble: String,
}

/// Of every table, as the relays that keep them have found it.
pub async fn troubles(connection: &mut PgConnection) -> Result<Vec<Trouble>> {
    Ok(sqlx::query_as("select outbox, relay, trouble from postrider.outbox_troubles order by outbox")
        .fetch_all(connection)
        .await?)
}
