//! Outbox tables in common use.

use super::declaration::Columns;

/// A table in common use, whose columns are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// `event_id`, `event_type`, `entity_id`, `payload`, `workspace_id`, `claimed_at`, `processed_at`.
    Plane,
    /// `aggregate_type`, `aggregate_id`, `event_type`, `payload`, `occurred_at`, `published_at`.
    OutboxEvents,
    /// `aggregate_id`, `type`, `payload`, `created_at`, `dispatched_at`.
    EventsOutbox,
    /// `topic`, `key`, `payload`, `published_at`, `attempts`, `last_error`, and an id that counts.
    OutboxTopic,
    /// `topic`, `payload`, `published_at`, `attempts`, `last_error`, and an id that is a uuid.
    OutboxUuid,
    /// `aggregatetype`, `aggregateid`, `type`, `payload`.
    Debezium,
}

impl Preset {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Plane,
        Self::OutboxEvents,
        Self::EventsOutbox,
        Self::OutboxTopic,
        Self::OutboxUuid,
        Self::Debezium,
    ];

    /// As it is written in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plane => "plane",
            Self::OutboxEvents => "outbox_events",
            Self::EventsOutbox => "events_outbox",
            Self::OutboxTopic => "outbox-topic",
            Self::OutboxUuid => "outbox-uuid",
            Self::Debezium => "debezium",
        }
    }

    /// Which column is what. Not every table of a kind has all of them.
    pub fn columns(self) -> Columns {
        let named = |name: &str| Some(name.to_owned());
        let common = Columns {
            id: named("id"),
            order: Some(vec!["id".to_owned()]),
            payload: named("payload"),
            ..Columns::default()
        };
        match self {
            Self::Plane => Columns {
                id: named("event_id"),
                r#type: named("event_type"),
                entity: named("entity_type"),
                key: named("entity_id"),
                tenant: named("workspace_id"),
                created: named("created_at"),
                claimed: named("claimed_at"),
                sent: named("processed_at"),
                ..common
            },
            Self::OutboxEvents => Columns {
                r#type: named("event_type"),
                entity: named("aggregate_type"),
                key: named("aggregate_id"),
                created: named("occurred_at"),
                sent: named("published_at"),
                ..common
            },
            Self::EventsOutbox => Columns {
                r#type: named("type"),
                key: named("aggregate_id"),
                created: named("created_at"),
                sent: named("dispatched_at"),
                id_header: named("event_id"),
                ..common
            },
            Self::OutboxTopic => Columns {
                r#type: named("topic"),
                key: named("key"),
                created: named("created_at"),
                sent: named("published_at"),
                attempts: named("attempts"),
                last_error: named("last_error"),
                id_header: named("outbox_id"),
                ..common
            },
            Self::OutboxUuid => Columns {
                order: Some(vec!["created_at".to_owned(), "id".to_owned()]),
                r#type: named("topic"),
                created: named("created_at"),
                sent: named("published_at"),
                attempts: named("attempts"),
                last_error: named("last_error"),
                ..common
            },
            Self::Debezium => Columns {
                r#type: named("type"),
                entity: named("aggregatetype"),
                key: named("aggregateid"),
                ..common
            },
        }
    }

    /// Columns without which it is another table.
    pub(super) fn demands(self, field: &str) -> bool {
        matches!(field, "id" | "type" | "payload" | "order")
            || field == "sent" && self != Self::Debezium
            || field == "key"
                && matches!(self, Self::Plane | Self::OutboxEvents | Self::EventsOutbox | Self::Debezium)
            || field == "claimed" && self == Self::Plane
    }

    /// The channel on which such tables are usually told of.
    pub(super) fn channel(self) -> Option<&'static str> {
        match self {
            Self::OutboxEvents => Some("outbox"),
            Self::OutboxTopic => Some("outbox_new"),
            _ => None,
        }
    }
}
