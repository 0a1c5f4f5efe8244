//! What a file sink is told.

use std::num::NonZeroU32;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::Size;

/// `file: { path: /var/log/events.ndjson }`
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileConfig {
    /// The file. Its directory must exist.
    pub path: PathBuf,
    /// When the disk is asked to have it before an event counts as delivered.
    #[serde(default)]
    pub fsync: Fsync,
    /// Beyond this size the file is renamed to its name with the next number, `events.ndjson.000001`, and a new one begun. Never by
    /// default. A batch stays together, so a file is larger only if one batch is.
    #[serde(default)]
    pub rotate: Option<Size>,
    /// So many renamed files are kept, and older ones removed. All by default.
    #[serde(default)]
    pub keep: Option<NonZeroU32>,
}

impl FileConfig {
    /// The defaults, for this path.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), fsync: Fsync::default(), rotate: None, keep: None }
    }

    /// What can never work: the key, and why.
    pub(crate) fn objections(&self) -> Vec<(&'static str, String)> {
        let is_endless = self.rotate == Some(Size(0));
        let why = || "it must be more than 0B; leave it out, and the file is never renamed".to_owned();
        is_endless.then(|| ("rotate", why())).into_iter().collect()
    }
}

/// When the disk is asked to have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Fsync {
    /// After every batch: a delivered event survives the loss of power.
    #[default]
    Batch,
    /// After every event.
    Always,
    /// When the operating system likes: a delivered event survives the end of this process, not that of the machine.
    Never,
}
