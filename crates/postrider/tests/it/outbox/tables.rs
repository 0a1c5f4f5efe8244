//! The tables as their articles describe them, a row of each, and the event it should become.

use postrider::log::Record;
use postrider::outbox::Preset;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

pub fn table(preset: Preset) -> &'static str {
    match preset {
        Preset::Plane => {
            "create table outbox (id bigserial primary key, event_id uuid not null unique, event_type varchar(255) not null, entity_id uuid not null,
                payload jsonb not null, workspace_id uuid not null, initiator_type varchar(64) not null, created_at timestamptz not null,
                claimed_at timestamptz, processed_at timestamptz);
             create index outbox_unclaimed_unprocessed on outbox (claimed_at, processed_at, id) where claimed_at is null and processed_at is null;
             create index outbox_processed_idx on outbox (processed_at) where processed_at is not null"
        }
        // As an ORM makes it: times without a zone.
        Preset::OutboxEvents => {
            "create table outbox (id serial primary key, aggregate_type varchar not null, aggregate_id varchar not null, event_type varchar not null,
                payload jsonb not null, occurred_at timestamp not null default now(), published_at timestamp);
             create index ix_published on outbox (published_at);
             create index ix_outbox_unpublished on outbox (occurred_at) where published_at is null"
        }
        Preset::EventsOutbox => {
            "create table outbox (id bigserial primary key, aggregate_id uuid not null, type text not null, payload jsonb not null,
                created_at timestamptz not null default now(), dispatched_at timestamptz);
             create index events_outbox_pending_idx on outbox (created_at) where dispatched_at is null"
        }
        Preset::OutboxTopic => {
            "create table outbox (id bigserial primary key, topic text not null, key text, payload jsonb not null, published_at timestamptz,
                attempts int not null default 0, last_error text, created_at timestamptz not null default now());
             create index outbox_unpublished_idx on outbox (id) where published_at is null"
        }
        Preset::OutboxUuid => {
            "create table outbox (id uuid primary key default gen_random_uuid(), created_at timestamptz not null default now(),
                published_at timestamptz, topic text not null, payload jsonb not null, attempts int not null default 0, last_error text)"
        }
        Preset::Debezium => {
            "create table outbox (id uuid primary key, aggregatetype varchar(255) not null, aggregateid varchar(255) not null,
                type varchar(255) not null, payload jsonb)"
        }
    }
}

/// The column that says that a row was sent.
pub fn sent(preset: Preset) -> Option<&'static str> {
    match preset {
        Preset::Plane => Some("processed_at"),
        Preset::OutboxEvents | Preset::OutboxTopic | Preset::OutboxUuid => Some("published_at"),
        Preset::EventsOutbox => Some("dispatched_at"),
        Preset::Debezium => None,
    }
}

/// A key as a uuid, where the table wants one.
pub fn entity(key: &str) -> String {
    let mut bytes = [0; 16];
    bytes[..key.len()].copy_from_slice(key.as_bytes());
    Uuid::from_bytes(bytes).to_string()
}

/// The id of the n-th row, where the table wants a uuid.
pub fn id(n: i64) -> Uuid {
    // In the order of counting, for tables that have no other.
    Uuid::from_u128(0xfeed << 112 | u128::from(n.unsigned_abs()))
}

pub fn number(payload: &str) -> i64 {
    serde_json::from_str::<Value>(payload).unwrap()["n"].as_i64().unwrap()
}

/// Inserts the n-th row (from 1, where the table counts by itself), of this key.
pub async fn insert(connection: &mut PgConnection, preset: Preset, n: i64, key: &str) {
    let (id, uuid) = (id(n), entity(key));
    let statement = match preset {
        Preset::Plane => format!(
            "insert into outbox (event_id, event_type, entity_id, payload, workspace_id, initiator_type, created_at)
             values ('{id}', 'workitem.updated', '{uuid}', '{{\"n\": {n}}}', '{uuid}', 'USER', now())"
        ),
        Preset::OutboxEvents => format!(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload) values ('Post', '{key}', 'post.created', '{{\"n\": {n}}}')"
        ),
        Preset::EventsOutbox => format!(
            "insert into outbox (aggregate_id, type, payload) values ('{uuid}', 'order.placed', '{{\"n\": {n}}}')"
        ),
        Preset::OutboxTopic => {
            format!("insert into outbox (topic, key, payload) values ('orders.paid', '{key}', '{{\"n\": {n}}}')")
        }
        Preset::OutboxUuid => {
            format!("insert into outbox (id, topic, payload) values ('{id}', 'order.created', '{{\"n\": {n}}}')")
        }
        Preset::Debezium => format!(
            "insert into outbox values ('{id}', 'order', '{key}', 'OrderCreated', '{{\"n\": {n}}}')"
        ),
    };
    sqlx::query(AssertSqlSafe(statement)).execute(connection).await.unwrap();
}

/// The n-th row as an event.
pub fn assert_event(preset: Preset, record: &Record, n: i64, key: &str) {
    let (id, uuid) = (id(n).to_string(), entity(key));
    let counted = n.to_string();
    let (source_id, kind, entity, key, tenant, headers) = match preset {
        Preset::Plane => (
            id,
            "workitem.updated",
            None,
            Some(uuid.clone()),
            Some(uuid),
            Some(json!({"initiator_type": "USER"})),
        ),
        Preset::OutboxEvents => (counted, "post.created", Some("Post"), Some(key.to_owned()), None, None),
        Preset::EventsOutbox => {
            (counted.clone(), "order.placed", None, Some(uuid), None, Some(json!({"event_id": counted})))
        }
        Preset::OutboxTopic => (
            counted.clone(),
            "orders.paid",
            None,
            Some(key.to_owned()),
            None,
            Some(json!({"outbox_id": counted})),
        ),
        Preset::OutboxUuid => (id, "order.created", None, None, None, None),
        Preset::Debezium => (id, "OrderCreated", Some("order"), Some(key.to_owned()), None, None),
    };
    assert_eq!(record.source_id.as_deref(), Some(source_id.as_str()), "{preset:?}");
    assert_eq!((record.r#type.as_str(), record.entity.as_deref()), (kind, entity), "{preset:?}");
    assert_eq!((&record.key, &record.tenant), (&key, &tenant), "{preset:?}");
    assert_eq!(number(&record.payload), n, "{preset:?}");
    let found: Option<Value> =
        record.headers.as_deref().map(|headers| serde_json::from_str(headers).unwrap());
    assert_eq!(found, headers, "{preset:?}");
}
