//! From a record to a message: filter, transform, route, envelope.

use postrider::log::Record;

use crate::settings::SinkSettings;
use crate::sink::{Message, Refusal};

/// What became of a record.
#[derive(Debug)]
pub enum Prepared<'a> {
    /// To be delivered.
    Send(Message<'a>),
    /// The filter says no.
    Filtered,
    /// It cannot be made into a message.
    Refused(Refusal),
}

/// Everything that is compiled once per sink.
pub struct Preparer {}

impl Preparer {
    /// Compiles the expressions and templates of a sink.
    pub fn new(_settings: &SinkSettings) -> Result<Self, PrepareError> {
        Ok(Self {})
    }

    /// Makes a message of a record.
    pub fn prepare<'a>(&mut self, record: &'a Record) -> Prepared<'a> {
        Prepared::Send(Message {
            record,
            id: record.source_id.clone().unwrap_or_else(|| record.id.to_string()),
            destination: String::new(),
            content_type: "application/json",
            headers: Vec::new(),
            body: record.payload.clone().into_bytes(),
        })
    }
}

/// An expression or template that cannot be compiled.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {message}")]
pub struct PrepareError {
    /// `filter`, `transform` or `route`.
    pub key: &'static str,
    /// What is wrong with it, and where.
    pub message: String,
}
