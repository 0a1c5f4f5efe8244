//! What a relay is told: every value checked, every default stated once.

use std::fmt;
use std::time::Duration;

use postrider::capture::Table;
use postrider::log::{Hint, Servers, Start};
use postrider::outbox::Outbox;

use crate::durability::Grade;
use crate::sinks::Target;

/// Everything a relay needs to run.
#[derive(Clone)]
pub struct RelaySettings {
    /// Shown to operators as the holder of its lanes.
    pub name: String,
    /// The database with the log, on its primary: one server, or all that may be it. Over a network, with `sslmode=verify-full` and the CA in `sslrootcert`: `prefer`, which
    /// is the default, goes on in the clear where the server offers no TLS, and neither it nor `require` looks at the certificate.
    pub database: Servers,
    /// How the log is read and kept.
    pub log: LogSettings,
    /// Above this many bytes of resident memory buffers shrink, then the relay drains and ends.
    pub memory_limit: u64,
    /// How long draining may take when it is told to stop.
    pub drain: Duration,
    /// Connections of the pool that all sinks share for parking and retrying. Reading takes three more per sink.
    pub connections: u32,
    /// Whose capture triggers are looked after.
    pub tables: Vec<Table>,
    /// One pipeline each. Names are unique.
    pub sinks: Vec<SinkSettings>,
    /// Adopted tables whose columns are kept true, and whose rows are moved where no trigger does it. Up to three more connections each.
    pub outboxes: Vec<Outbox>,
}

impl RelaySettings {
    /// The defaults, for this database and these sinks.
    pub fn new(database: Servers, sinks: Vec<SinkSettings>) -> Self {
        Self {
            name: format!("relay {}", std::process::id()),
            database,
            log: LogSettings::default(),
            memory_limit: 500_000_000,
            drain: Duration::from_secs(10),
            connections: 4,
            tables: Vec::new(),
            sinks,
            outboxes: Vec::new(),
        }
    }
}

/// By hand: the options of a connection print its password.
impl fmt::Debug for RelaySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, database, log, memory_limit, drain, connections, tables, sinks, outboxes } = self;
        f.debug_struct("RelaySettings")
            .field("name", name)
            .field("database", database)
            .field("log", log)
            .field("memory_limit", memory_limit)
            .field("drain", drain)
            .field("connections", connections)
            .field("tables", tables)
            .field("sinks", sinks)
            .field("outboxes", outboxes)
            .finish()
    }
}

impl RelaySettings {
    /// Whether pipelines can go on when these settings take the place of others.
    pub(crate) fn shares_with(&self, other: &Self) -> bool {
        self.name == other.name
            && self.log == other.log
            && self.connections == other.connections
            && self.database.is_same(&other.database)
    }
}

/// How the log is read and kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// Every delivered event stays at least this long.
    pub retention: Duration,
    /// The current slot of the ring is also closed beyond this many bytes, if another is free.
    pub max_slot_size: Option<u64>,
    /// Above this many bytes in all slots, delivered events are removed before their retention is over, the oldest first. Undelivered ones
    /// never are.
    pub max_log_size: Option<u64>,
    /// A relay that is silent for so long loses its lanes.
    pub lease: Duration,
    /// The first and the longest pause when there is nothing to read.
    pub idle: (Duration, Duration),
    /// Whether producers are asked to wake the relay.
    pub hint: Hint,
    /// How often the log is checked, the ring turned, and the triggers of declared tables looked at.
    pub sweep: Duration,
    /// How long the database may take to answer before it is connected to anew.
    pub patience: Duration,
    /// On how many standbys an event has to be before it is delivered, so that a failover to one of them takes nothing back.
    pub standbys: u32,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self {
            retention: Duration::from_hours(168),
            max_slot_size: None,
            max_log_size: None,
            lease: Duration::from_secs(5),
            idle: (Duration::from_micros(500), Duration::from_secs(2)),
            hint: Hint::default(),
            sweep: Duration::from_mins(1),
            patience: Duration::from_secs(20),
            standbys: 0,
        }
    }
}

/// How one sink is fed.
#[derive(Debug, Clone, PartialEq)]
pub struct SinkSettings {
    /// Known to the log by this name: its progress and its parked events belong to it.
    pub name: String,
    /// Where it goes.
    pub target: Target,
    /// Where a new sink begins.
    pub start: Start,
    /// What a refused event does to later ones of its key.
    pub ordering: Ordering,
    /// The form in which events leave.
    pub envelope: EnvelopeKind,
    /// The `source` of a `CloudEvent` and the like: which database this is, in the words of its owner.
    pub source: String,
    /// A jq expression; only events for which it is true are delivered.
    pub filter: Option<String>,
    /// A jq expression whose value becomes the payload.
    pub transform: Option<String>,
    /// A routing template; `None` takes the sink's own default.
    pub route: Option<String>,
    /// When a refused event is tried again.
    pub retry: Retry,
    /// The most events sent and not yet settled: the bound on duplicates per crash.
    pub max_in_flight: u32,
    /// The most events in one delivery.
    pub max_batch: u32,
    /// A target that keeps events worse is not opened.
    pub require_durability: Option<Grade>,
}

impl SinkSettings {
    /// The defaults, for this target.
    pub fn new(name: impl Into<String>, target: Target) -> Self {
        let in_flight = target.usual_in_flight();
        Self {
            name: name.into(),
            target,
            start: Start::default(),
            ordering: Ordering::default(),
            envelope: EnvelopeKind::default(),
            source: "postrider".to_owned(),
            filter: None,
            transform: None,
            route: None,
            retry: Retry::default(),
            max_in_flight: in_flight,
            max_batch: in_flight / 2,
            require_durability: None,
        }
    }
}

/// What a refused event does to later ones of its key.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize, serde::Serialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Ordering {
    /// They wait behind it, in order, until it is delivered or discarded.
    #[default]
    Strict,
    /// They pass.
    Relaxed,
}

/// The form in which events leave.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize, serde::Serialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum EnvelopeKind {
    /// CloudEvents 1.0, structured, in JSON.
    #[default]
    Cloudevents,
    /// CloudEvents 1.0, binary: the payload alone, and the attributes as headers, as the sink's protocol names them.
    #[serde(rename = "cloudevents-binary")]
    CloudeventsBinary,
    /// The payload alone.
    Plain,
    /// One flat message with the event's columns and the payload's `data` and `previous_attributes`.
    Plane,
    /// The shape that Debezium's outbox router produces.
    Debezium,
}

/// When a refused event is tried again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retry {
    /// Then it is dead: kept, and not tried again until somebody says so.
    pub max_attempts: u32,
    /// The pause after the first refusal.
    pub first: Duration,
    /// Each pause is so many times the one before.
    pub factor: f64,
    /// No pause is longer.
    pub max: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { max_attempts: 10, first: Duration::from_secs(1), factor: 2.0, max: Duration::from_mins(10) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_holds_no_password() {
        let database = "postgres://me:c4n4ry@db.example/shop".parse().unwrap();
        let printed = format!("{:?}", RelaySettings::new(database, Vec::new()));
        assert!(printed.contains("db.example") && !printed.contains("c4n4ry"), "{printed}");
    }
}
