//! Which parked events a command is about.

use clap::Args;
use postrider::log::parking::admin::Selection;
use time::OffsetDateTime;

use crate::{glob, moment};

#[derive(Args)]
pub(crate) struct Which {
    /// Only of this sink
    #[arg(long, value_name = "NAME", help_heading = "Selection")]
    sink: Option<String>,

    /// Only of this key
    #[arg(long, help_heading = "Selection")]
    key: Option<String>,

    /// Only of this type; * stands for any text, ? for one character
    #[arg(long = "type", value_name = "PATTERN", help_heading = "Selection")]
    event_type: Option<String>,

    /// Only refused for this: a kind such as `too_large`, or words of the reason
    #[arg(long, value_name = "KIND|TEXT", help_heading = "Selection")]
    error: Option<String>,

    /// Only parked at this time or later: 2026-03-01T12:00:00Z, or how long ago, such as 2h
    #[arg(long, value_name = "TIME", value_parser = moment::parse, help_heading = "Selection")]
    since: Option<OffsetDateTime>,

    /// Only parked before this time
    #[arg(long, value_name = "TIME", value_parser = moment::parse, help_heading = "Selection")]
    until: Option<OffsetDateTime>,

    /// Also those that are parked and not dead yet
    #[arg(long, help_heading = "Selection")]
    parked: bool,
}

impl Which {
    /// Whether something was chosen; `--parked` alone widens and chooses nothing.
    pub(super) fn is_set(&self) -> bool {
        self.sink.is_some()
            || self.key.is_some()
            || self.event_type.is_some()
            || self.error.is_some()
            || self.since.is_some()
            || self.until.is_some()
    }

    /// As the library wants it.
    pub(super) fn selection(self, ids: Vec<String>) -> Selection {
        Selection {
            ids,
            sink: self.sink,
            key: self.key,
            type_like: self.event_type.as_deref().map(glob::like),
            error: self.error,
            since: self.since,
            until: self.until,
            include_parked: self.parked,
        }
    }
}
