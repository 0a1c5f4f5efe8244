//! An event as it stands in the log.

use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row as _};
use time::OffsetDateTime;
use uuid::Uuid;

/// One committed event.
#[derive(Debug, Clone)]
pub struct Record {
    /// Order of writing. Unique inside one database, but repeated after a failover that lost it: never let it leave the database.
    pub seq: i64,
    /// The lane its key belongs to.
    pub lane: i16,
    /// The identity that leaves the database, unless `source_id` is set.
    pub id: Uuid,
    /// The id that the consumers of an adopted outbox table already know.
    pub source_id: Option<String>,
    /// What happened, `order.paid`.
    pub r#type: String,
    /// The kind of thing it happened to, `order`.
    pub entity: Option<String>,
    /// Events of one key stay in order.
    pub key: Option<String>,
    /// The customer's scope.
    pub tenant: Option<String>,
    /// JSON, byte for byte as it was written.
    pub payload: String,
    /// A JSON object.
    pub headers: Option<String>,
    /// Start of the writing transaction.
    pub created_at: OffsetDateTime,
}

impl Record {
    /// About how many bytes of memory it takes.
    pub fn size(&self) -> usize {
        let texts = [&self.source_id, &self.entity, &self.key, &self.tenant, &self.headers];
        let texts: usize = texts.into_iter().flatten().map(String::len).sum();
        size_of::<Self>() + self.r#type.len() + self.payload.len() + texts
    }
}

/// By the names of the columns, for those who are in no hurry.
impl FromRow<'_, PgRow> for Record {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self {
            seq: row.try_get("seq")?,
            lane: row.try_get("lane")?,
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
        })
    }
}
