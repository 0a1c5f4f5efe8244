//! What is adopted of an outbox table, as it was declared.

use std::time::Duration;

use super::preset::Preset;

/// An outbox table that is adopted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outbox {
    /// With its schema, quoted where SQL wants it.
    pub name: String,
    /// The kind of table it is.
    pub preset: Option<Preset>,
    /// Columns that are another than the preset says, or all of them.
    pub columns: Columns,
    /// How its rows come into the log.
    pub mode: Mode,
    /// The pauses of a mover that finds nothing: the first and the longest.
    pub interval: (Duration, Duration),
    /// How many rows are moved at once.
    pub batch: u32,
    /// A channel on which somebody notifies when a row is inserted; the preset's own if there is none.
    pub channel: Option<String>,
    /// A claim of somebody else that is older is taken back.
    pub stale_after: Duration,
    /// Rows that were sent so long ago are deleted.
    pub cleanup: Option<Duration>,
}

impl Outbox {
    /// Everything as usual, for a table of this kind.
    pub fn new(name: impl Into<String>, preset: Preset) -> Self {
        Self { preset: Some(preset), ..Self::mapped(name, Columns::default()) }
    }

    /// Everything as usual, for a table with these columns.
    pub fn mapped(name: impl Into<String>, columns: Columns) -> Self {
        Self {
            name: name.into(),
            preset: None,
            columns,
            mode: Mode::default(),
            interval: (Duration::from_millis(250), Duration::from_secs(2)),
            batch: 250,
            channel: None,
            stale_after: Duration::from_mins(1),
            cleanup: None,
        }
    }

    /// Where it is listened for new rows.
    pub fn channel(&self) -> Option<&str> {
        self.channel.as_deref().or_else(|| self.preset.and_then(Preset::channel))
    }
}

/// How rows come into the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// A trigger on the table appends the event in the transaction that inserts the row.
    #[default]
    Trigger,
    /// Nothing is installed on the table: a mover takes its rows into the log.
    Poll,
}

/// Which column is what. Those that are nothing of this go into the event's headers under their own names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Columns {
    /// The id that consumers know the event by. Unique.
    pub id: Option<String>,
    /// The columns that say which row came first.
    pub order: Option<Vec<String>>,
    /// The type of the event.
    pub r#type: Option<String>,
    /// What it happened to.
    pub entity: Option<String>,
    /// Events of one key stay in order.
    pub key: Option<String>,
    /// The customer's scope.
    pub tenant: Option<String>,
    /// What happened, as JSON.
    pub payload: Option<String>,
    /// When.
    pub created: Option<String>,
    /// When somebody took the row.
    pub claimed: Option<String>,
    /// When it was sent; null until then.
    pub sent: Option<String>,
    /// How often it was tried.
    pub attempts: Option<String>,
    /// Why it was refused last.
    pub last_error: Option<String>,
    /// A header that carries the id too.
    pub id_header: Option<String>,
}

impl Columns {
    /// These, and where they say nothing, those.
    pub(super) fn or(&self, other: Self) -> Self {
        let first = |mine: &Option<String>, other: Option<String>| mine.clone().or(other);
        Self {
            id: first(&self.id, other.id),
            order: self.order.clone().or(other.order),
            r#type: first(&self.r#type, other.r#type),
            entity: first(&self.entity, other.entity),
            key: first(&self.key, other.key),
            tenant: first(&self.tenant, other.tenant),
            payload: first(&self.payload, other.payload),
            created: first(&self.created, other.created),
            claimed: first(&self.claimed, other.claimed),
            sent: first(&self.sent, other.sent),
            attempts: first(&self.attempts, other.attempts),
            last_error: first(&self.last_error, other.last_error),
            id_header: first(&self.id_header, other.id_header),
        }
    }
}
