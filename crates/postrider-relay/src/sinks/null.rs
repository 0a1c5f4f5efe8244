//! Builds every message and drops it: for measuring.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::sink::{BoxFuture, Message, Report, Sink, Unavailable};

/// `null: {}`
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NullConfig {}

/// Takes everything.
#[derive(Debug)]
pub struct Null;

impl Sink for Null {
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report> {
        Box::pin(async move { Report::delivered(batch.len()) })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        Box::pin(async { Ok(()) })
    }
}
