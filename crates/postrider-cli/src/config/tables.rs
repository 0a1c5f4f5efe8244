//! A captured table in the file, and what it means to the library.

use std::collections::BTreeMap;

use postrider::capture;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::Checker;
use super::raw::File;

/// Written for a verb that makes no event.
const NONE: &str = "none";

/// A type has 255 bytes at most, and the first part wants some of them.
const LONGEST_VERB: usize = 200;

/// What is captured of a table.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    /// What a row is, for example `issue`. Also the first part of every type, unless `type` says otherwise.
    #[schemars(example = &"order")]
    pub(crate) entity: String,
    /// SQL over the row: the key, by which events are kept in order. Without it, the primary key.
    #[serde(default)]
    pub(crate) key: Option<String>,
    /// SQL over the row: the tenant.
    #[serde(default)]
    pub(crate) tenant: Option<String>,
    /// SQL over the row: the first part of the type, for example `case when type_id is null then 'workitem' else 'epic' end`.
    #[serde(default)]
    pub(crate) r#type: Option<String>,
    /// The last part of the type, by what happened; `none` makes no event of it.
    #[serde(default)]
    pub(crate) verbs: Verbs,
    /// Columns whose change is an event of its own, instead of `updated`, each with the last part of its type:
    /// `{ state_id: state.updated }`. If other columns change too, `updated` comes first.
    #[serde(default)]
    pub(crate) changes: BTreeMap<String, String>,
    /// As `changes`, but `updated` comes too, also if nothing else has changed.
    #[serde(default)]
    pub(crate) also: BTreeMap<String, String>,
    /// A column that is null while the row counts: a value in it is `deleted`, null again is `restored`.
    #[serde(default)]
    pub(crate) soft_delete: Option<String>,
    /// Columns that are left out of the payload.
    #[serde(default)]
    pub(crate) omit: Vec<String>,
    /// Columns whose change alone is no event.
    #[serde(default)]
    pub(crate) ignore: Vec<String>,
    /// More fields for `data`, each by SQL over the row: `{ label_ids: "array(select l.id from public.labels l where l.issue = issues.id)" }`.
    #[serde(default)]
    pub(crate) extra: BTreeMap<String, String>,
    /// Headers, each by SQL over the row: `{ project_id: project_id }`.
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, String>,
    /// Settings of the session that become headers, named by what is behind their last dot: `[app.initiator_id]`.
    #[serde(default)]
    pub(crate) context: Vec<String>,
    /// The table this one hangs on. Its columns are `parent.NAME` in every expression, also in a cascade, when the parent has gone.
    #[serde(default)]
    pub(crate) parent: Option<Parent>,
    /// What becomes of changes that logical replication brings, or a session with `session_replication_role = replica`.
    #[serde(default)]
    pub(crate) replicated: Replicated,
    /// What a TRUNCATE of the table does.
    #[serde(default)]
    pub(crate) truncate: Truncate,
    /// What happens to a write whose event cannot be recorded.
    #[serde(default)]
    pub(crate) on_failure: OnFailure,
}

/// The last part of the type, by what happened.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Verbs {
    /// A row came.
    pub(crate) created: String,
    /// A row changed.
    pub(crate) updated: String,
    /// A row went, or was softly deleted.
    pub(crate) deleted: String,
    /// A soft deletion was taken back.
    pub(crate) restored: String,
    /// A row went that had been softly deleted before.
    pub(crate) purged: String,
    /// A row that was there before the table was captured, by `postrider backfill`.
    pub(crate) snapshot: String,
}

impl Default for Verbs {
    fn default() -> Self {
        let capture::Verbs { insert, update, delete, restore, purge, snapshot } = capture::Verbs::default();
        let word = |verb: Option<String>| verb.unwrap_or_else(|| NONE.to_owned());
        Self {
            created: word(insert),
            updated: word(update),
            deleted: word(delete),
            restored: word(restore),
            purged: word(purge),
            snapshot: word(snapshot),
        }
    }
}

impl Verbs {
    fn each(&self) -> [(&'static str, &str); 6] {
        [
            ("created", &self.created),
            ("updated", &self.updated),
            ("deleted", &self.deleted),
            ("restored", &self.restored),
            ("purged", &self.purged),
            ("snapshot", &self.snapshot),
        ]
    }
}

/// The table another one hangs on.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parent {
    /// With its schema.
    #[schemars(example = &"public.customers")]
    pub(crate) table: String,
    /// Its column that identifies a row.
    #[serde(default = "id")]
    pub(crate) column: String,
    /// SQL over this table's row: the value of that column.
    #[schemars(example = &"customer_id")]
    pub(crate) by: String,
}

fn id() -> String {
    "id".to_owned()
}

/// What becomes of changes that are written as a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Replicated {
    /// They are captured like all others.
    #[default]
    Capture,
    /// They make no events here: they have made them where they come from.
    Ignore,
}

/// What a TRUNCATE does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Truncate {
    /// It is one event, `ENTITY.truncated`, without a key.
    #[default]
    Event,
    /// It fails.
    Refuse,
}

/// What happens to a write whose event cannot be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnFailure {
    /// It fails too: nothing is ever lost.
    #[default]
    Refuse,
    /// It succeeds; what is missing is kept, raises an alarm, and becomes an event by `postrider recapture`.
    Record,
}

impl Table {
    /// As the library wants it.
    pub(super) fn declared(&self, name: &str) -> capture::Table {
        let verb = |word: &str| (word != NONE).then(|| word.to_owned());
        let change = |beside: bool| {
            move |(column, verb): (&String, &String)| {
                (column.clone(), capture::Change { verb: verb.clone(), beside })
            }
        };
        capture::Table {
            r#type: self.r#type.clone(),
            key: self.key.clone(),
            tenant: self.tenant.clone(),
            verbs: capture::Verbs {
                insert: verb(&self.verbs.created),
                update: verb(&self.verbs.updated),
                delete: verb(&self.verbs.deleted),
                restore: verb(&self.verbs.restored),
                purge: verb(&self.verbs.purged),
                snapshot: verb(&self.verbs.snapshot),
            },
            changes: self
                .changes
                .iter()
                .map(change(false))
                .chain(self.also.iter().map(change(true)))
                .collect(),
            soft_delete: self.soft_delete.clone(),
            omit: self.omit.clone(),
            ignore: self.ignore.clone(),
            extra: self.extra.clone(),
            headers: self.headers.clone(),
            context: self.context.clone(),
            parent: self.parent.as_ref().map(|parent| capture::Parent {
                table: parent.table.clone(),
                column: parent.column.clone(),
                on: parent.by.clone(),
            }),
            replicated: match self.replicated {
                Replicated::Capture => capture::Replicated::Capture,
                Replicated::Ignore => capture::Replicated::Ignore,
            },
            truncate: match self.truncate {
                Truncate::Event => capture::Truncate::Event,
                Truncate::Refuse => capture::Truncate::Refuse,
            },
            on_failure: match self.on_failure {
                OnFailure::Refuse => capture::OnFailure::Refuse,
                OnFailure::Record => capture::OnFailure::Record,
            },
            ..capture::Table::new(name, self.entity.clone())
        }
    }
}

/// Every table of the file, as the library wants it.
pub(super) fn declared(file: &File) -> Vec<capture::Table> {
    file.tables.iter().map(|(name, table)| table.declared(name)).collect()
}

impl Checker<'_> {
    /// What can be seen without the database.
    pub(super) fn tables(&mut self, file: &File) {
        for (name, table) in &file.tables {
            self.table(name, table);
        }
    }

    fn table(&mut self, name: &str, table: &Table) {
        let at = |key: &'static str| ["tables", name, key];
        self.must(name.contains('.'), &[&["tables", name]], || {
            format!("`tables.{name}`: write the table with its schema, such as public.{name}")
        });
        self.must(!name.starts_with("postrider."), &[&["tables", name]], || {
            format!("`tables.{name}`: the log's own tables cannot be captured")
        });
        self.must(is_word(&table.entity), &[&at("entity")], || {
            format!("`entity` must be 1 to {LONGEST_VERB} bytes without line breaks")
        });
        for (verb, word) in table.verbs.each() {
            self.verb(name, "verbs", verb, word);
        }
        for (key, columns) in [("changes", &table.changes), ("also", &table.also)] {
            for (column, word) in columns {
                self.verb(name, key, column, word);
                self.must(word != NONE, &[&["tables", name, key, column]], || {
                    format!("`{key}.{column}`: to make no event of a column's change put it under `ignore`")
                });
                self.must(!table.ignore.contains(column), &[&["tables", name, key, column]], || {
                    format!("the column `{column}` is both in `{key}` and in `ignore`")
                });
            }
        }
        for column in table.also.keys() {
            self.must(!table.changes.contains_key(column), &[&["tables", name, "also", column]], || {
                format!(
                    "the column `{column}` is both in `changes`, without `updated`, and in `also`, with it"
                )
            });
        }
        let mut headers: Vec<&str> = table.headers.keys().map(String::as_str).collect();
        for setting in &table.context {
            self.must(setting.contains('.'), &[&at("context")], || {
                format!("`context`: {setting:?} is no setting of your own; those have a dot, such as app.{setting}")
            });
            let header = setting.rsplit('.').next().unwrap_or(setting);
            self.must(!headers.contains(&header), &[&at("context")], || {
                format!("`context`: there are two headers `{header}`")
            });
            headers.push(header);
        }
        for field in table.extra.keys() {
            self.must(!table.omit.contains(field), &[&["tables", name, "extra", field]], || {
                format!("`{field}` is both in `extra` and in `omit`; to replace a column's value give it another name")
            });
        }
    }

    fn verb(&mut self, name: &str, key: &str, below: &str, word: &str) {
        self.must(is_word(word), &[&["tables", name, key, below]], || {
            format!("`{key}.{below}` must be 1 to {LONGEST_VERB} bytes without line breaks, or `{NONE}`")
        });
    }
}

fn is_word(text: &str) -> bool {
    (1..=LONGEST_VERB).contains(&text.len()) && !text.chars().any(char::is_control)
}
