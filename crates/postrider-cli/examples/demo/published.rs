//! An event as it left: the line that a sink wrote.

use serde::Deserialize;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) id: Uuid,
    pub(crate) r#type: String,
    pub(crate) key: String,
    /// When its transaction began.
    pub(crate) at: OffsetDateTime,
    pub(crate) payload: String,
}

#[derive(Deserialize)]
struct CloudEvent<'a> {
    id: &'a str,
    r#type: String,
    subject: Option<String>,
    time: &'a str,
    #[serde(borrow)]
    data: &'a RawValue,
}

impl Published {
    /// Of a line. `None` for half a line, which is what a relay leaves that is killed while it writes.
    pub(crate) fn read(line: &str) -> Option<Self> {
        let event: CloudEvent<'_> = serde_json::from_str(line).ok()?;
        Some(Self {
            id: event.id.parse().ok()?,
            r#type: event.r#type,
            key: event.subject.unwrap_or_default(),
            at: OffsetDateTime::parse(event.time, &Rfc3339).ok()?,
            payload: event.data.get().to_owned(),
        })
    }
}
