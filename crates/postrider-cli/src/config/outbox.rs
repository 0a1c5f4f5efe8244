//! An adopted outbox table in the file, and what it means to the library.

use postrider::outbox;
use postrider_relay::units::Span;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::Checker;
use super::raw::File;

/// An outbox table that is adopted.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Adopted {
    /// The kind of table it is: which column is what. See docs/adopt.md.
    #[schemars(example = &"plane")]
    pub(crate) preset: Preset,
    /// How its rows come into the log.
    #[serde(default)]
    pub(crate) mode: Mode,
    /// Columns that are another than the preset says; with `preset: none` all of them, `id`, `type` and `payload` at least.
    #[serde(default)]
    pub(crate) columns: Columns,
    /// The pauses of the relay that keeps the table while it finds nothing to do; something that happens begins them anew.
    #[serde(default)]
    pub(crate) interval: Interval,
    /// With `mode: poll`: how many rows are moved at once.
    #[serde(default = "batch")]
    pub(crate) batch: u32,
    /// With `mode: poll`: a channel on which somebody notifies when a row comes. Without it the preset's own, if it has one.
    #[serde(default)]
    pub(crate) channel: Option<String>,
    /// A claim of another poller that is older is taken back. While there is a younger one, nothing is taken.
    #[serde(default = "stale_after")]
    pub(crate) stale_after: Span,
    /// Rows that every sink has had for so long are deleted, 1,000 at a time. Without it they stay.
    #[serde(default)]
    pub(crate) cleanup: Option<Span>,
}

/// The library's own defaults.
fn usual() -> outbox::Outbox {
    outbox::Outbox::mapped("", outbox::Columns::default())
}

fn batch() -> u32 {
    usual().batch
}

fn stale_after() -> Span {
    Span(usual().stale_after)
}

/// Tables in common use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub(crate) enum Preset {
    /// `event_id`, `event_type`, `entity_id`, `payload`, `workspace_id`, `claimed_at`, `processed_at`.
    #[serde(rename = "plane")]
    Plane,
    /// `aggregate_type`, `aggregate_id`, `event_type`, `payload`, `occurred_at`, `published_at`.
    #[serde(rename = "outbox_events")]
    OutboxEvents,
    /// `aggregate_id`, `type`, `payload`, `created_at`, `dispatched_at`.
    #[serde(rename = "events_outbox")]
    EventsOutbox,
    /// `topic`, `key`, `payload`, `published_at`, `attempts`, `last_error`.
    #[serde(rename = "outbox-topic")]
    OutboxTopic,
    /// `topic`, `payload`, `published_at`, `attempts`, `last_error`, with a uuid for an id.
    #[serde(rename = "outbox-uuid")]
    OutboxUuid,
    /// `aggregatetype`, `aggregateid`, `type`, `payload`.
    #[serde(rename = "debezium")]
    Debezium,
    /// Another table: `columns` says everything.
    #[serde(rename = "none")]
    None,
}

impl Preset {
    fn known(self) -> Option<outbox::Preset> {
        Some(match self {
            Self::Plane => outbox::Preset::Plane,
            Self::OutboxEvents => outbox::Preset::OutboxEvents,
            Self::EventsOutbox => outbox::Preset::EventsOutbox,
            Self::OutboxTopic => outbox::Preset::OutboxTopic,
            Self::OutboxUuid => outbox::Preset::OutboxUuid,
            Self::Debezium => outbox::Preset::Debezium,
            Self::None => return None,
        })
    }
}

/// How rows come into the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// By a trigger, in the transaction that inserts the row.
    #[default]
    Trigger,
    /// Nothing is installed on the table: the relay takes its rows from time to time.
    Poll,
}

/// The pauses while there is nothing to do.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Interval {
    /// The first pause.
    pub(crate) min: Span,
    /// The longest pause.
    pub(crate) max: Span,
}

impl Default for Interval {
    fn default() -> Self {
        let (min, max) = usual().interval;
        Self { min: Span(min), max: Span(max) }
    }
}

/// Which column is what. All others become headers, each under its own name.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Columns {
    /// The id that consumers know the event by. Must have a unique index.
    pub(crate) id: Option<String>,
    /// The columns that say which row came first. Without them the id.
    pub(crate) order: Option<Vec<String>>,
    /// The type of the event.
    pub(crate) r#type: Option<String>,
    /// What it happened to.
    pub(crate) entity: Option<String>,
    /// Events of one key stay in order.
    pub(crate) key: Option<String>,
    /// The tenant.
    pub(crate) tenant: Option<String>,
    /// What happened, as JSON.
    pub(crate) payload: Option<String>,
    /// When it was written.
    pub(crate) created_at: Option<String>,
    /// Set when a row is taken.
    pub(crate) claimed_at: Option<String>,
    /// Set when every sink has settled it; a row without is not sent.
    pub(crate) sent_at: Option<String>,
    /// Set to the number of attempts while a sink refuses it.
    pub(crate) attempts: Option<String>,
    /// Set to the reason while a sink refuses it.
    pub(crate) last_error: Option<String>,
    /// A header that carries the id too.
    pub(crate) id_header: Option<String>,
}

impl Adopted {
    /// As the library wants it.
    fn declared(&self, name: &str) -> outbox::Outbox {
        let columns = self.columns.clone();
        outbox::Outbox {
            preset: self.preset.known(),
            mode: match self.mode {
                Mode::Trigger => outbox::Mode::Trigger,
                Mode::Poll => outbox::Mode::Poll,
            },
            interval: (self.interval.min.0, self.interval.max.0),
            batch: self.batch,
            channel: self.channel.clone(),
            stale_after: self.stale_after.0,
            cleanup: self.cleanup.map(|span| span.0),
            ..outbox::Outbox::mapped(
                name,
                outbox::Columns {
                    id: columns.id,
                    order: columns.order,
                    r#type: columns.r#type,
                    entity: columns.entity,
                    key: columns.key,
                    tenant: columns.tenant,
                    payload: columns.payload,
                    created: columns.created_at,
                    claimed: columns.claimed_at,
                    sent: columns.sent_at,
                    attempts: columns.attempts,
                    last_error: columns.last_error,
                    id_header: columns.id_header,
                },
            )
        }
    }
}

/// Every adopted table of the file, as the library wants it.
pub(super) fn declared(file: &File) -> Vec<outbox::Outbox> {
    file.outbox.iter().map(|(name, adopted)| adopted.declared(name)).collect()
}

impl Checker<'_> {
    /// What can be seen without the database.
    pub(super) fn outbox(&mut self, file: &File) {
        for (name, adopted) in &file.outbox {
            self.must(name.contains('.'), &[&["outbox", name]], || {
                format!("`outbox.{name}`: write the table with its schema, such as public.{name}")
            });
            self.must(!name.starts_with("postrider."), &[&["outbox", name]], || {
                format!("`outbox.{name}`: the log's own tables cannot be adopted")
            });
            self.must(!file.tables.contains_key(name), &[&["outbox", name]], || {
                format!("`{name}` is both in `tables` and in `outbox`: every row would be captured twice")
            });
            let columns = &adopted.columns;
            let is_known = columns.id.is_some() && columns.r#type.is_some() && columns.payload.is_some();
            self.must(adopted.preset != Preset::None || is_known, &[&["outbox", name]], || {
                format!("`outbox.{name}`: name `columns.id`, `columns.type` and `columns.payload`")
            });
            let Interval { min, max } = adopted.interval;
            let at = |key: &'static str| ["outbox", name.as_str(), "interval", key];
            self.must(!min.0.is_zero(), &[&at("min")], || "`interval.min` must be more than 0ms".to_owned());
            self.must(min <= max, &[&at("min"), &at("max")], || {
                format!("`interval.min` ({min}) must not be longer than `interval.max` ({max})")
            });
            let batch = adopted.batch;
            self.must((1..=100_000).contains(&batch), &[&["outbox", name, "batch"]], || {
                format!("`batch` is {batch}; take 1 to 100000")
            });
        }
    }
}
