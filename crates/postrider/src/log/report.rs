//! What a reader says of itself to operators: stored with its heartbeat, and worth as much as that.

use std::time::{Duration, Instant};

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
    /// It should not weigh more than some settlings.
    pub const MOST: usize = 5_000;

    fn has_nothing_in_flight(&self) -> bool {
        self.sending.is_empty() && self.unsettled.is_empty()
    }

    /// Whether operators should not have to wait for the next heartbeat to hear of it.
    pub(super) fn is_news_after(&self, before: &Self) -> bool {
        self.mood != before.mood
    }
}

/// What operators were told last of what is in flight.
#[derive(Debug, Default)]
pub(super) struct Told {
    at: Option<Instant>,
    mood: Mood,
    nothing: bool,
}

impl Told {
    /// It may be large, so it comes no more often than people look, however short the lease is.
    const PAUSE: Duration = Duration::from_secs(1);

    pub(super) fn of(report: &Report, now: Instant) -> Self {
        Self { at: Some(now), mood: report.mood, nothing: report.has_nothing_in_flight() }
    }

    /// Whether it should be told again: not while there is still nothing.
    pub(super) fn is_due(&self, report: &Report, now: Instant) -> bool {
        let Some(at) = self.at else { return true };
        report.mood != self.mood
            || (now >= at + Self::PAUSE && !(self.nothing && report.has_nothing_in_flight()))
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
    /// Somebody paused the sink; it sends nothing, and nothing is on its way.
    Paused,
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
            Self::Paused => "paused",
            Self::Disconnected => "disconnected",
            Self::Failed => "failed",
        }
    }
}
