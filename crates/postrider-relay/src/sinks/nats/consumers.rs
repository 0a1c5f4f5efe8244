//! For whom a stream keeps messages, if it keeps them for its consumers alone.

use async_nats::jetstream::context::{Context, RequestError, RequestErrorKind};
use async_nats::jetstream::response::Response;
use serde::Deserialize;
use serde_json::json;

use super::subject;
use crate::sink::{Unavailable, UnavailableKind};

/// What the server says of one. Not the library's own type: without its features for newer servers that leaves `filter_subjects` out, and
/// a consumer that asks for two subjects would look like one that asks for all.
#[derive(Debug, Deserialize)]
pub(super) struct Consumer {
    config: Settings,
}

#[derive(Debug, Deserialize)]
struct Settings {
    #[serde(default)]
    durable_name: Option<String>,
    #[serde(default)]
    filter_subject: Option<String>,
    #[serde(default)]
    filter_subjects: Option<Vec<String>>,
    /// In nanoseconds. A durable one that has it is removed when nobody reads for that long.
    #[serde(default)]
    inactive_threshold: Option<i64>,
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    total: usize,
    #[serde(default)]
    consumers: Option<Vec<Consumer>>,
}

impl Consumer {
    /// Whether it stays when nobody reads.
    pub(super) fn is_durable(&self) -> bool {
        let Settings { durable_name, inactive_threshold, .. } = &self.config;
        durable_name.as_deref().is_some_and(|name| !name.is_empty()) && inactive_threshold.unwrap_or(0) <= 0
    }

    /// Whether it asks for all that this subject of a stream stands for. One that asks for nothing in particular asks for everything.
    pub(super) fn asks_for(&self, subject: &str) -> bool {
        let Settings { filter_subject, filter_subjects, .. } = &self.config;
        let one = filter_subject.iter().filter(|filter| !filter.is_empty());
        let mut filters = one.chain(filter_subjects.iter().flatten()).peekable();
        filters.peek().is_none() || filters.any(|filter| subject::takes(filter, subject))
    }
}

/// All consumers of a stream. The server tells them by pages.
pub(super) async fn consumers(context: &Context, stream: &str) -> Result<Vec<Consumer>, Unavailable> {
    let mut found = Vec::new();
    loop {
        let offset = json!({ "offset": found.len() });
        let answer: Result<Response<Page>, RequestError> =
            context.request(format!("CONSUMER.LIST.{stream}"), &offset).await;
        let page = match answer.map_err(|error| not_told(error, stream))? {
            Response::Ok(page) => page,
            Response::Err { error } => return Err(Unavailable::new(UnavailableKind::Blocked, error)),
        };
        let some = page.consumers.unwrap_or_default();
        // Those that no server could say anything of are counted, and not there.
        let is_last = some.is_empty() || found.len() + some.len() >= page.total;
        found.extend(some);
        if is_last {
            return Ok(found);
        }
    }
}

fn not_told(error: RequestError, stream: &str) -> Unavailable {
    match error.kind() {
        // What is forbidden is not answered.
        RequestErrorKind::TimedOut => {
            let why = format!(
                "NATS does not say which consumers `{stream}` has: {error}; the user may need the permission to publish to `$JS.API.CONSUMER.LIST.{stream}`"
            );
            Unavailable::new(UnavailableKind::Timeout, why)
        }
        _ => Unavailable::new(UnavailableKind::Blocked, error),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_consumer_asks_for_what_its_filters_say() {
        let consumer = |config: Value| -> Consumer {
            serde_json::from_value(json!({ "name": "c", "config": config })).unwrap()
        };
        let asks = |config: Value| consumer(config).asks_for("events.>");
        assert!(asks(json!({ "durable_name": "c" })));
        assert!(asks(json!({ "filter_subject": ">" })) && asks(json!({ "filter_subject": "events.>" })));
        assert!(!asks(json!({ "filter_subject": "events.order.*" })));
        assert!(!asks(json!({ "filter_subjects": ["events.a", "events.b"] })));
        assert!(asks(json!({ "filter_subjects": ["other", "events.>"] })));
        assert!(consumer(json!({ "durable_name": "c", "inactive_threshold": 0 })).is_durable());
        assert!(
            !consumer(json!({ "durable_name": "c", "inactive_threshold": 5_000_000_000_i64 })).is_durable()
        );
        assert!(!consumer(json!({})).is_durable());
    }
}
