//! What a reader says of itself to operators: stored with its heartbeat, and worth as much as that.

use std::time::Instant;

/// How what was read is getting on.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// How it is.
    pub mood: Mood,
    /// Since when, if longer than the database knows.
    pub since: Option<Instant>,
    /// What is wrong and what to do, in words that anybody may read.
    pub trouble: Option<String>,
    /// The seqs of events on their way to the sink. The first [`MOST`](Self::MOST) are stored.
    pub sending: Vec<i64>,
    /// Since when they are.
    pub sending_since: Option<Instant>,
    /// The seqs of events that the sink has and that are not settled; as many.
    pub unsettled: Vec<i64>,
}

impl Report {
    /// A heartbeat should not weigh more than some settlings.
    pub const MOST: usize = 5_000;

    /// Whether operators should not have to wait for the next heartbeat to hear of it.
    pub(super) fn is_news_after(&self, before: &Self) -> bool {
        self.mood != before.mood
    }
}

/// How a reader is, in one word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mood {
    /// Nothing keeps it from its work.
    #[default]
    Running,
    /// The sink takes no events.
    Waiting,
    /// The log cannot be read or progress not stored.
    Disconnected,
    /// It needs a person, and takes no lanes.
    Failed,
}

impl Mood {
    /// As it is stored.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Disconnected => "disconnected",
            Self::Failed => "failed",
        }
    }
}
