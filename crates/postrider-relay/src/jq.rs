//! `filter` and `transform`: jq expressions, compiled once, with a budget for each event.
//!
//! An expression is the operator's own, but what it is run on is not, and a slip such as `def f: f; f` must cost one event and not
//! the relay. So:
//!
//! - every step of the evaluation is counted ([`meter`]): too many, or nested too deeply, and the evaluation is unwound;
//! - what one operation may produce is bounded ([`guard`]), and so is the result;
//! - it runs on a thread of its own with a large stack ([`worker`]). A single operation that the counter does not see into and
//!   that takes seconds is left to itself and its thread replaced.
//!
//! A hand-over to that thread and back wakes two threads, so a batch is handed over as a whole.

mod compile;
mod guard;
mod meter;
mod output;
mod program;
mod worker;

use postrider::log::Record;

use crate::json;
use crate::prepare::PrepareError;

use program::Program;
use worker::Worker;

/// Larger events are not given to an expression: a document takes many times its text in memory.
const LARGEST_INPUT: usize = 8 << 20;
/// Deeper ones neither: reading, comparing and dropping them recurses.
const DEEPEST_INPUT: usize = 512;

/// What the expressions say about an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Deliver it as it is.
    Keep,
    /// Deliver it with this payload.
    Replace(String),
    /// The filter says no.
    Drop,
    /// An expression failed on it.
    Fail(String),
    /// No expression gets to see it.
    Beyond(String),
}

/// The expressions of a sink.
pub(crate) struct Jq {
    worker: Worker,
}

impl Jq {
    /// Nothing if there is neither.
    pub(crate) fn new(filter: Option<&str>, transform: Option<&str>) -> Result<Option<Self>, PrepareError> {
        let (filter, transform) = (
            filter.map(|code| compile::compile("filter", code)).transpose()?,
            transform.map(|code| compile::compile("transform", code)).transpose()?,
        );
        if filter.is_none() && transform.is_none() {
            return Ok(None);
        }
        Ok(Some(Self { worker: Worker::new(Program { filter, transform }) }))
    }

    /// One verdict for each record, in order.
    pub(crate) fn judge<'a>(&mut self, records: impl IntoIterator<Item = &'a Record>) -> Vec<Verdict> {
        self.worker.judge(records.into_iter().map(input).collect())
    }
}

/// Whether an expression can be compiled.
pub(crate) fn check(key: &'static str, code: &str) -> Result<(), PrepareError> {
    compile::compile(key, code).map(|_| ())
}

/// `{id, type, entity, key, tenant, payload, headers, created_at}` as text, or why an expression does not get to see it.
fn input(record: &Record) -> Result<Vec<u8>, String> {
    let headers = record.headers.as_deref().unwrap_or("{}");
    let size = record.payload.len() + headers.len();
    if size > LARGEST_INPUT {
        return Err(format!(
            "the event has {size} bytes; filter and transform take {LARGEST_INPUT} ({} MiB) at most",
            LARGEST_INPUT >> 20
        ));
    }
    for (name, text) in [("payload", record.payload.as_str()), ("headers", headers)] {
        if !json::looks_like_json(text) {
            return Err(format!("the {name} is no JSON"));
        }
        if !json::is_within_depth(text.as_bytes(), DEEPEST_INPUT) {
            return Err(format!(
                "the {name} is nested deeper than {DEEPEST_INPUT} levels, which filter and transform do not take"
            ));
        }
    }
    let mut out = Vec::with_capacity(size + 512);
    out.extend_from_slice(b"{\"id\":");
    crate::sink::EventId::of(record).push_json(&mut out);
    out.extend_from_slice(b",\"type\":");
    json::push_string(&mut out, &record.r#type);
    for (name, value) in [("entity", &record.entity), ("key", &record.key), ("tenant", &record.tenant)] {
        out.extend_from_slice(b",\"");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":");
        json::push_optional(&mut out, value.as_deref());
    }
    out.extend_from_slice(b",\"created_at\":\"");
    json::push_time(&mut out, record.created_at);
    out.extend_from_slice(b"\",\"headers\":");
    out.extend_from_slice(headers.as_bytes());
    out.extend_from_slice(b",\"payload\":");
    out.extend_from_slice(record.payload.as_bytes());
    out.push(b'}');
    Ok(out)
}
