//! The file as it may be written: every key with its type, its default and its description.
//!
//! The descriptions here are what `docs/configuration.md`, the reference file and the JSON Schema are made from.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use postrider_relay::settings::{LogSettings, RelaySettings};
use postrider_relay::units::{Size, Span};
use postrider_relay::{EnvelopeKind, Grade, Ordering};
use schemars::JsonSchema;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use sqlx::postgres::PgConnectOptions;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::as_text::as_text;
use super::outbox::Adopted;
use super::sinks::Sink;
use super::tables::Table;
use crate::logging;

/// The configuration of Postrider
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct File {
    /// The database with the log, on its primary, as `postgres://USER:PASSWORD@HOST:PORT/NAME`. With several
    /// hosts, `HOST1:PORT1,HOST2:PORT2`, the one that is the primary is taken, also after a failover. Without it `DATABASE_URL` is taken,
    /// then `PGHOST`, `PGDATABASE` and so on as by psql.
    #[schemars(extend("writeOnly" = true))]
    pub(crate) database: Option<String>,
    /// How the log is read and kept.
    pub(crate) log: Log,
    /// The process that carries events.
    pub(crate) relay: Relay,
    /// When a delay is worth an alarm.
    pub(crate) alerts: Alerts,
    /// Tables whose committed changes become events: under the name of each, with its schema, what is captured of it. `postrider plan`
    /// shows what that takes, `postrider apply` does it.
    pub(crate) tables: BTreeMap<String, Table>,
    /// Outbox tables that are there already, under the name of each, with its schema: their rows become events, and their own columns go on
    /// telling what became of them. `postrider plan` shows what that takes, `postrider apply` does it.
    pub(crate) outbox: BTreeMap<String, Adopted>,
    /// Where events go: under a name of your choice, one kind of sink and how it is fed. The log knows a sink by this name.
    // Read apart, because a sink has one key that is its kind: see `sinks`.
    #[serde(deserialize_with = "read_apart")]
    pub(crate) sinks: BTreeMap<String, Sink>,
    /// Metrics and health.
    pub(crate) http: Http,
    /// What the relay says about its work, on standard error.
    pub(crate) logs: Logs,
}

fn read_apart<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Sink>, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| BTreeMap::new())
}

/// How the log is read and kept.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Log {
    /// Every delivered event stays at least this long. Undelivered ones stay until they are delivered.
    pub(crate) retention: Span,
    /// The current slot of the ring is also closed beyond this size, if another one is free.
    pub(crate) max_slot_size: Option<Size>,
    /// Above this size of the whole log, delivered events are removed before their retention is over, the oldest first. Undelivered ones
    /// never are: then the log grows, and `postrider status` says which sink holds it. Without it, only the retention counts.
    pub(crate) max_log_size: Option<Size>,
    /// A relay that is silent for so long loses its lanes to another. Not below `idle.max`, and from 500ms to 1h.
    pub(crate) lease: Span,
    /// The pauses when there is nothing to read.
    pub(crate) idle: Idle,
    /// Whether producers are asked to wake the relay.
    pub(crate) hint: Hint,
    /// How often the log is checked, the ring turned, and the triggers of declared tables looked at.
    pub(crate) sweep: Span,
    /// How long the database may take to answer before the relay connects anew. From 1s to 1h.
    pub(crate) patience: Span,
    /// On how many standbys an event has to be before it is delivered, so that a failover to one of them takes nothing back that was
    /// delivered. The relay's role needs `pg_read_all_stats` to see them.
    pub(crate) standbys: u32,
}

impl Default for Log {
    fn default() -> Self {
        let LogSettings {
            retention,
            max_slot_size,
            max_log_size,
            lease,
            idle: (min, max),
            sweep,
            patience,
            standbys,
            ..
        } = LogSettings::default();
        Self {
            retention: Span(retention),
            max_slot_size: max_slot_size.map(Size),
            max_log_size: max_log_size.map(Size),
            lease: Span(lease),
            idle: Idle { min: Span(min), max: Span(max) },
            hint: Hint::default(),
            sweep: Span(sweep),
            patience: Span(patience),
            standbys,
        }
    }
}

/// The pauses when there is nothing to read.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Idle {
    /// The first pause.
    pub(crate) min: Span,
    /// The longest pause: pauses grow up to it while nothing comes.
    pub(crate) max: Span,
}

impl Default for Idle {
    fn default() -> Self {
        Log::default().idle
    }
}

/// Whether producers are asked to wake the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Hint {
    /// Yes, unless `max_prepared_transactions` is above 0: a transaction that has notified cannot be prepared.
    #[default]
    Auto,
    /// Yes, whatever the server's settings are.
    Force,
    /// No: polling alone.
    Off,
}

impl From<Hint> for postrider::log::Hint {
    fn from(hint: Hint) -> Self {
        match hint {
            Hint::Auto => Self::Auto,
            Hint::Force => Self::Force,
            Hint::Off => Self::Off,
        }
    }
}

/// The process that carries events.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Relay {
    /// Shown to operators as the holder of its lanes. Without it: `relay` and the number of the process.
    pub(crate) name: Option<String>,
    /// Above this much resident memory buffers shrink, then the relay drains and ends, for its supervisor to start it again. Events larger
    /// than a batch are taken by one sink at a time.
    pub(crate) memory_limit: Size,
    /// How long draining may take when the relay is told to stop. At most 1d.
    pub(crate) drain: Span,
    /// Connections that all sinks share for parking and retrying. Reading takes three more per sink.
    pub(crate) connections: u32,
}

impl Default for Relay {
    fn default() -> Self {
        let RelaySettings { memory_limit, drain, connections, .. } =
            RelaySettings::new(PgConnectOptions::new_without_pgpass().into(), Vec::new());
        Self { name: None, memory_limit: Size(memory_limit), drain: Span(drain), connections }
    }
}

/// When a delay is worth an alarm.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Alerts {
    /// The threshold of the alarm `PostriderLag` in deploy/prometheus: how long a sink's oldest event may wait. At most 365d.
    pub(crate) lag: Span,
    /// That of the alarm `PostriderStuck`. `postrider status`, `postrider doctor` and the view `postrider.stuck` do not heed it: they
    /// count five minutes. At most 365d.
    pub(crate) stuck: Span,
}

impl Default for Alerts {
    fn default() -> Self {
        Self { lag: Span(Duration::from_secs(5)), stuck: Span(Duration::from_mins(5)) }
    }
}

/// How a sink is fed, whatever its kind.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Feed {
    /// Where a sink begins that the log does not know yet: with what commits from now on, with the oldest event that the log still
    /// has, or with the events from a past time on.
    pub(crate) start: Start,
    /// What a refused event does to later ones of its key.
    pub(crate) ordering: Ordering,
    /// The form in which events leave.
    pub(crate) envelope: EnvelopeKind,
    /// The `source` of a `CloudEvent` and the like: which database this is, in your words.
    pub(crate) source: String,
    /// A jq expression that gives `true` or `false`; only events for which it is true are delivered. Everything else, also null, parks the
    /// event: write `.payload.important == true`. Of payload and headers together it takes 8 MiB at most, 512 levels deep, and 500,000
    /// steps; an event beyond that is refused and parked.
    pub(crate) filter: Option<String>,
    /// A jq expression whose value becomes the payload. Bounded like `filter`.
    pub(crate) transform: Option<String>,
    /// A routing template. Without it the sink's own default is taken.
    pub(crate) route: Option<String>,
    /// When a refused event is tried again.
    pub(crate) retry: Retry,
    /// The most events sent and not yet settled: the bound on duplicates per crash. 5000 by default to Kafka, 4000 to NATS, 2000 to Redis.
    pub(crate) max_in_flight: u32,
    /// The most events in one delivery. 2500 by default to Kafka, 2000 to NATS, 1000 to Redis; and if it is not set, it is never above `max_in_flight`.
    pub(crate) max_batch: u32,
    /// The least that a confirmation of the sink has to be worth, from A to F: see docs/sinks/durability.md. Below it the relay does not
    /// start, and if the sink is reached later only, nothing is delivered. Without it everything will do.
    pub(crate) require_durability: Option<Grade>,
}

impl Default for Feed {
    fn default() -> Self {
        // `SinkSettings::new` has the same, but needs a target, and a build may have none. A test compares the two.
        Self {
            start: Start::Now,
            ordering: Ordering::default(),
            envelope: EnvelopeKind::default(),
            source: "postrider".to_owned(),
            filter: None,
            transform: None,
            route: None,
            retry: Retry::default(),
            max_in_flight: 1000,
            max_batch: 500,
            require_durability: None,
        }
    }
}

/// When a refused event is tried again.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Retry {
    /// After so many the event is dead: kept, and not tried again until somebody says so.
    pub(crate) max_attempts: u32,
    /// The pause after the first refusal. Every pause is by chance between half and all of what this schedule says, so that what was
    /// refused together does not come back together. At most 365d.
    pub(crate) first: Span,
    /// Each pause is so many times the one before.
    pub(crate) factor: f64,
    /// No pause is longer. At most 365d.
    pub(crate) max: Span,
}

impl Default for Retry {
    fn default() -> Self {
        let postrider_relay::Retry { max_attempts, first, factor, max } = postrider_relay::Retry::default();
        Self { max_attempts, first: Span(first), factor, max: Span(max) }
    }
}

/// Metrics and health.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Http {
    /// The address that serves `/metrics`, `/livez`, `/readyz` and `/healthz`; `off` for none.
    pub(crate) listen: Listen,
}

/// What the relay says about its work.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Logs {
    /// For people or for machines.
    pub(crate) format: Format,
    /// What is worth a line: `error`, `warn`, `info`, `debug` or `trace`, also per module, such as `info,postrider_relay=debug`.
    pub(crate) level: String,
}

impl Default for Logs {
    fn default() -> Self {
        Self { format: Format::Text, level: "info".to_owned() }
    }
}

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    /// Lines of text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl From<Format> for logging::Format {
    fn from(format: Format) -> Self {
        match format {
            Format::Text => Self::Text,
            Format::Json => Self::Json,
        }
    }
}

/// Where a new sink begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    Now,
    Earliest,
    At(OffsetDateTime),
}

impl FromStr for Start {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "now" => Ok(Self::Now),
            "earliest" => Ok(Self::Earliest),
            text => match OffsetDateTime::parse(text, &Rfc3339) {
                // It would begin at once, which is not what was meant.
                Ok(time) if time > OffsetDateTime::now_utc() => Err(format!(
                    "{text:?} is in the future; write now, or add the sink when that time has come"
                )),
                Ok(time) => Ok(Self::At(time)),
                Err(_) => {
                    Err(format!("{text:?} is neither now, earliest nor a time such as 2026-01-31T12:00:00Z"))
                }
            },
        }
    }
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now => f.write_str("now"),
            Self::Earliest => f.write_str("earliest"),
            Self::At(time) => f.write_str(&time.format(&Rfc3339).map_err(|_| fmt::Error)?),
        }
    }
}

as_text!(Start, {
    "anyOf": [{ "enum": ["now", "earliest"] }, { "type": "string", "format": "date-time" }]
});

/// Where HTTP is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listen {
    Off,
    On(SocketAddr),
}

impl Default for Listen {
    fn default() -> Self {
        Self::On(SocketAddr::from((Ipv4Addr::LOCALHOST, 9185)))
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            text => text.parse().map(Self::On).map_err(|_| {
                format!(
                    "{text:?} is neither an address with a port, such as 127.0.0.1:9185 or [::]:9185, nor off"
                )
            }),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::On(address) => address.fmt(f),
        }
    }
}

as_text!(Listen, { "type": "string", "pattern": "^(off|.+:[0-9]+)$" });
