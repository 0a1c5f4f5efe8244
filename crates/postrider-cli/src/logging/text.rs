//! Lines for people.

use std::fmt;

use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{self, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::failure::redact;

/// As tracing writes them, with what may be a password taken out of the finished line.
pub(super) struct Text {
    plain: format::Format,
}

impl Text {
    pub(super) fn new(color: bool) -> Self {
        Self { plain: format::Format::default().with_ansi(color) }
    }
}

impl<S, N> FormatEvent<S, N> for Text
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        self.plain.format_event(context, Writer::new(&mut line), event)?;
        to.write_str(&redact(&line))
    }
}
