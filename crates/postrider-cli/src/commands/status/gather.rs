//! What the views say.

use std::time::Duration;

use postrider::log::error::Result;
use sqlx::{FromRow, PgConnection};
use time::OffsetDateTime;

use crate::moment;

/// Everything there is to see, at one moment.
pub(crate) struct Seen {
    pub(crate) sinks: Vec<Sink>,
    pub(crate) slots: Vec<Slot>,
}

/// One sink.
pub(crate) struct Sink {
    pub(crate) delivery: Delivery,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) relays: Vec<Relay>,
    /// How long the oldest event has waited.
    pub(crate) oldest: Option<Duration>,
}

/// A row of `postrider.delivery`.
#[derive(Debug, Clone, FromRow)]
pub(crate) struct Delivery {
    pub(crate) sink: String,
    pub(crate) created_at: OffsetDateTime,
    pub(crate) paused_at: Option<OffsetDateTime>,
    pub(crate) readers: Vec<String>,
    pub(crate) standby: Vec<String>,
    pub(crate) free_lanes: i64,
    pub(crate) last_settled_at: Option<OffsetDateTime>,
    pub(crate) events_last_minute: i64,
    pub(crate) waiting: i64,
    pub(crate) behind: i64,
    pub(crate) dead: i64,
    pub(crate) taken_back: i64,
    pub(crate) taken_back_at: Option<OffsetDateTime>,
    /// Whether it reads the log by itself, and no relay carries anything.
    pub(crate) is_consumer: bool,
}

/// A row of `postrider.relays`: one that is alive, by its own word.
#[derive(Debug, Clone, FromRow)]
#[expect(clippy::struct_field_names, reason = "named like the columns")]
pub(crate) struct Relay {
    pub(crate) sink: String,
    pub(crate) relay: String,
    pub(crate) state: String,
    pub(crate) since: OffsetDateTime,
    pub(crate) trouble: Option<String>,
    pub(crate) lanes: Vec<i16>,
    pub(crate) in_flight: i32,
    pub(crate) heard_at: OffsetDateTime,
}

/// A row of `postrider.backlog`.
#[derive(Debug, Clone, FromRow)]
#[expect(clippy::struct_field_names, reason = "named like the columns")]
pub(crate) struct Lane {
    pub(crate) sink: String,
    pub(crate) lane: i16,
    pub(crate) reader: Option<String>,
    pub(crate) events: i64,
    pub(crate) is_exact: bool,
}

/// A row of `postrider.slots`.
#[derive(Debug, Clone, FromRow)]
#[expect(clippy::struct_field_names, reason = "named like the columns")]
pub(crate) struct Slot {
    pub(crate) slot: i16,
    pub(crate) is_current: bool,
    pub(crate) bytes: i64,
    pub(crate) is_empty: bool,
    pub(crate) opened_at: Option<OffsetDateTime>,
    pub(crate) closed_at: Option<OffsetDateTime>,
    pub(crate) held_by: Vec<String>,
}

/// A count, and whether there may be more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Backlog {
    pub(crate) events: i64,
    pub(crate) is_exact: bool,
}

impl Sink {
    /// Over all lanes.
    pub(crate) fn backlog(&self) -> Backlog {
        Backlog {
            events: self.lanes.iter().map(|lane| lane.events).sum(),
            is_exact: self.lanes.iter().all(|lane| lane.is_exact),
        }
    }

    /// Whether it is none of these. A consumer is in no configuration, and needs no relay.
    pub(crate) fn is_foreign(&self, configured: Option<&[String]>) -> bool {
        let name = &self.delivery.sink;
        !self.delivery.is_consumer && configured.is_some_and(|names| !names.contains(name))
    }

    /// Whether it is none of these, nor that of a relay that is alive: other relays may have other configurations.
    pub(crate) fn is_orphaned(&self, configured: Option<&[String]>) -> bool {
        self.is_foreign(configured) && self.relays.is_empty()
    }

    /// The relays that are alive and have it in their configuration, whether or not they get on.
    pub(crate) fn carriers(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.relays.iter().map(|relay| relay.relay.as_str()).collect();
        names.dedup();
        names
    }
}

/// Asks the views.
pub(crate) async fn gather(connection: &mut PgConnection) -> Result<Seen> {
    let delivery: Vec<Delivery> = sqlx::query_as(
        "select d.*, exists (select from postrider.consumers c where c.consumer = d.sink) as is_consumer from postrider.delivery d order by sink",
    )
    .fetch_all(&mut *connection)
    .await?;
    let mut lanes: Vec<Lane> = sqlx::query_as("select * from postrider.backlog order by sink, lane")
        .fetch_all(&mut *connection)
        .await?;
    let relays: Vec<Relay> = sqlx::query_as("select * from postrider.relays order by sink, relay")
        .fetch_all(&mut *connection)
        .await?;
    let oldest: Vec<(String, f64)> = sqlx::query_as(
        "select sink, date_part('epoch', lag)::float8 from postrider.lag where oldest is not null",
    )
    .fetch_all(&mut *connection)
    .await?;
    let slots = sqlx::query_as("select * from postrider.slots order by slot").fetch_all(connection).await?;
    let mut sinks = Vec::with_capacity(delivery.len());
    for delivery in delivery {
        let (own, others) = lanes.into_iter().partition(|lane| lane.sink == delivery.sink);
        lanes = others;
        let oldest = oldest
            .iter()
            .find(|(sink, _)| *sink == delivery.sink)
            .map(|(_, seconds)| moment::seconds(*seconds));
        let relays = relays.iter().filter(|relay| relay.sink == delivery.sink).cloned().collect();
        sinks.push(Sink { delivery, lanes: own, relays, oldest });
    }
    Ok(Seen { sinks, slots })
}
