//! An event as a handler gets it.

use serde::de::DeserializeOwned;
use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row as _};
use time::OffsetDateTime;
use uuid::Uuid;

/// One event on its way to a handler.
#[derive(Debug, Clone)]
pub struct Message {
    /// The same whenever and wherever the event is delivered.
    pub id: Uuid,
    /// The id that consumers of an adopted outbox table already know.
    pub source_id: Option<String>,
    /// What happened, `order.paid`.
    pub r#type: String,
    /// The kind of thing it happened to, `order`.
    pub entity: Option<String>,
    /// Events of one key come in order.
    pub key: Option<String>,
    /// The customer's scope.
    pub tenant: Option<String>,
    /// JSON, byte for byte as it was written.
    pub payload: String,
    /// A JSON object.
    pub headers: Option<String>,
    /// Start of the writing transaction.
    pub created_at: OffsetDateTime,
    /// How often it has failed before, or ended the process.
    pub attempts: u32,
}

impl Message {
    /// The payload as what it stands for.
    pub fn json<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_str(&self.payload)
    }
}

impl FromRow<'_, PgRow> for Message {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self {
            id: row.try_get("id")?,
            source_id: row.try_get("source_id")?,
            r#type: row.try_get("type")?,
            entity: row.try_get("entity")?,
            key: row.try_get("key")?,
            tenant: row.try_get("tenant")?,
            // json travels as its text; a checked decode would parse it once more.
            payload: row.try_get_unchecked("payload")?,
            headers: row.try_get_unchecked("headers")?,
            created_at: row.try_get("created_at")?,
            attempts: row.try_get::<i32, _>("attempts")?.unsigned_abs(),
        })
    }
}
