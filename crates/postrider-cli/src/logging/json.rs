//! One JSON object per event. Our own few lines, because redaction must happen per value: in a finished line it would take the
//! quotes and braces with it.

use std::error::Error;
use std::fmt::{self, Debug, Write as _};

use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::failure::redact;

/// `{"time":…,"level":…,"target":…,"message":…,…}`
pub(super) struct Json;

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'s> LookupSpan<'s>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut object = Object(Map::new());
        let now = OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default();
        object.0.insert("time".to_owned(), Value::String(now));
        object.put("level", event.metadata().level().as_str());
        object.put("target", event.metadata().target());
        event.record(&mut object);
        writeln!(to, "{}", Value::Object(object.0))
    }
}

struct Object(Map<String, Value>);

impl Object {
    fn put(&mut self, name: &str, text: &str) {
        self.0.insert(name.to_owned(), Value::String(redact(text)));
    }
}

impl Visit for Object {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field.name(), value);
    }

    /// With its causes: an error whose `Display` is "the sink cannot be reached" says little alone.
    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        let mut text = value.to_string();
        let mut cause = value.source();
        while let Some(error) = cause {
            let _ = write!(text, ": {error}");
            cause = error.source();
        }
        self.put(field.name(), &text);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field.name(), &format!("{value:?}"));
    }
}
