//! Where a reader stands in one lane, and how a cursor moves.

use std::sync::Arc;

/// A PostgreSQL snapshot (`xmin:xmax:xip…`) in its text form. It may be kilobytes, and all lanes of a round share one.
pub type Snapshot = Arc<str>;

/// A lane's position in the log.
///
/// Delivered is what has `seq <= position` and is visible in `snapshot`; while a large late set is worked off, also what
/// has `seq <= late.position`, `seq <= position` and is visible in `late.target`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// The highest `seq` that was looked at.
    pub position: i64,
    /// What was visible when that was looked at.
    pub snapshot: Snapshot,
    /// Set only in the middle of a late set that did not fit into one page.
    pub late: Option<Late>,
    /// No row at or below the position has an xid from here on. Known once a transaction of our own has begun after the read.
    pub bound: Option<u64>,
}

/// How far inside a large late set a lane is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Late {
    /// The late set is what is visible here and not in the cursor's snapshot. Fixed, or rows would slip in below the position.
    pub target: Snapshot,
    /// Everything late up to here is delivered.
    pub position: i64,
}

impl Cursor {
    /// A cursor that has looked at everything up to `position` as `snapshot` showed it.
    pub fn new(position: i64, snapshot: Snapshot) -> Self {
        Self { position, snapshot, late: None, bound: None }
    }

    /// After the late rows up to and including `seq` of a set read for `target`.
    #[must_use]
    pub fn within_late(&self, target: &Snapshot, seq: i64) -> Self {
        Self { late: Some(Late { target: Arc::clone(target), position: seq }), ..self.clone() }
    }

    /// After the last late row of a set read for `target`: the snapshot moves even though the position does not. The bound
    /// belongs to the position and stays.
    #[must_use]
    pub fn past_late(&self, target: &Snapshot) -> Self {
        Self { position: self.position, snapshot: Arc::clone(target), late: None, bound: self.bound }
    }

    /// Whether two lanes can be read by one statement.
    pub fn reads_with(&self, other: &Self) -> bool {
        self.snapshot == other.snapshot
            && self.bound == other.bound
            && self.late.as_ref().map(|late| &late.target) == other.late.as_ref().map(|late| &late.target)
    }
}
