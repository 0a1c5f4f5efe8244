//! An event as it stands in the log.

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
