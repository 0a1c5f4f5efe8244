//! The log does not know what a sink's filter leaves out. Who has the configuration can ask the filter again.

use postrider::log::Record;
use postrider_relay::{Prepared, Preparer, SinkSettings};

/// What a sink's filter, as it is configured now, does with an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filter {
    /// The configuration is not at hand, or the event may not be read, or the expression fails.
    Unknown,
    /// It passes; or there is no filter.
    Keeps,
    LeavesOut,
}

/// Compiled and run as the relay does it.
pub(super) fn judge(configured: Option<&[SinkSettings]>, sink: &str, record: Option<&Record>) -> Filter {
    let Some(settings) = configured.into_iter().flatten().find(|settings| settings.name == sink) else {
        return Filter::Unknown;
    };
    if settings.filter.is_none() {
        return Filter::Keeps;
    }
    let Some(record) = record else {
        return Filter::Unknown;
    };
    // What comes after the filter is not asked.
    let alone = SinkSettings { transform: None, route: None, ..settings.clone() };
    match Preparer::new(&alone).map(|mut preparer| preparer.prepare(record)) {
        Ok(Prepared::Filtered) => Filter::LeavesOut,
        Ok(Prepared::Send(_)) => Filter::Keeps,
        Ok(Prepared::Refused(_)) | Err(_) => Filter::Unknown,
    }
}
