//! What is captured of a table, as it was declared.

use std::collections::BTreeMap;

/// One captured table. Expressions are SQL over the row's columns, by their bare names or behind the table's name; other tables must
/// be named with their schema.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// With its schema, quoted where SQL wants it.
    pub name: String,
    /// What a row is; also the first part of every type, unless `r#type` is given.
    pub entity: String,
    /// An expression for the first part of the type.
    pub r#type: Option<String>,
    /// An expression for the key; the primary key if there is none.
    pub key: Option<String>,
    /// An expression for the tenant.
    pub tenant: Option<String>,
    /// The last part of the type, by what happened.
    pub verbs: Verbs,
    /// Columns whose change is an event of its own.
    pub changes: BTreeMap<String, Change>,
    /// A column that is null while the row counts.
    pub soft_delete: Option<String>,
    /// Columns that are left out of the payload.
    pub omit: Vec<String>,
    /// Columns whose change alone is no event.
    pub ignore: Vec<String>,
    /// More fields for the payload, by expression.
    pub extra: BTreeMap<String, String>,
    /// Headers, by expression.
    pub headers: BTreeMap<String, String>,
    /// Settings of the session that become headers, named by what is behind their last dot.
    pub context: Vec<String>,
    /// The table this one hangs on; `type`, `tenant` and the like may then say `parent.column`, also when the parent has just gone.
    pub parent: Option<Parent>,
    /// What becomes of changes that logical replication brings.
    pub replicated: Replicated,
    /// What a TRUNCATE does.
    pub truncate: Truncate,
    /// What happens to a write whose event cannot be recorded.
    pub on_failure: OnFailure,
}

impl Table {
    /// Everything as usual.
    pub fn new(name: impl Into<String>, entity: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            entity: entity.into(),
            r#type: None,
            key: None,
            tenant: None,
            verbs: Verbs::default(),
            changes: BTreeMap::new(),
            soft_delete: None,
            omit: Vec::new(),
            ignore: Vec::new(),
            extra: BTreeMap::new(),
            headers: BTreeMap::new(),
            context: Vec::new(),
            parent: None,
            replicated: Replicated::default(),
            truncate: Truncate::default(),
            on_failure: OnFailure::default(),
        }
    }
}

/// The last part of a type; `None`: no event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verbs {
    /// Of a row that came.
    pub insert: Option<String>,
    /// Of a row that changed.
    pub update: Option<String>,
    /// Of a row that went, softly or not.
    pub delete: Option<String>,
    /// Of a row whose soft deletion was taken back.
    pub restore: Option<String>,
    /// Of a row that went after it had been softly deleted.
    pub purge: Option<String>,
    /// Of a row that was there before, for which a backfill makes an event.
    pub snapshot: Option<String>,
}

impl Default for Verbs {
    fn default() -> Self {
        Self {
            insert: Some("created".to_owned()),
            update: Some("updated".to_owned()),
            delete: Some("deleted".to_owned()),
            restore: Some("restored".to_owned()),
            purge: None,
            snapshot: Some("snapshot".to_owned()),
        }
    }
}

/// The event of one column's change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The last part of its type.
    pub verb: String,
    /// Whether the ordinary event of an update comes too, although nothing else has changed.
    pub beside: bool,
}

/// The table another one hangs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    /// With its schema.
    pub table: String,
    /// The parent's column that identifies it.
    pub column: String,
    /// An expression over the child's row for that column's value.
    pub on: String,
}

/// What becomes of changes that are written as a replica: by logical replication, or with `session_replication_role = replica`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Replicated {
    /// They are captured like all others.
    #[default]
    Capture,
    /// They make no events here: they have made them where they come from.
    Ignore,
}

/// What a TRUNCATE of a captured table does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Truncate {
    /// One event, `<entity>.truncated`, without a key.
    #[default]
    Event,
    /// It fails.
    Refuse,
}

/// What happens to a write whose event cannot be recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// It fails too: nothing is ever lost.
    #[default]
    Refuse,
    /// It succeeds, and what is missing is kept where `postrider recapture` finds it.
    Record,
}
