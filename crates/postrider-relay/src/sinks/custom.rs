//! A sink of your own, in a program that embeds the relay.

use std::fmt;
use std::sync::Arc;

use crate::sink::{BoxFuture, Sink, Unavailable};

type Open = dyn Fn() -> BoxFuture<'static, Result<Box<dyn Sink>, Unavailable>> + Send + Sync;

/// Opens a sink of your own. Clones open the same.
#[derive(Clone)]
pub struct Custom {
    kind: &'static str,
    is_exclusive: bool,
    open: Arc<Open>,
}

impl Custom {
    /// A kind of sink, and how one is opened. `open` is called when the first event is to be delivered, and again until it succeeds.
    pub fn new<F>(kind: &'static str, open: F) -> Self
    where
        F: Fn() -> BoxFuture<'static, Result<Box<dyn Sink>, Unavailable>> + Send + Sync + 'static,
    {
        Self { kind, is_exclusive: false, open: Arc::new(open) }
    }

    /// One relay has to hold all lanes, while others stand by.
    #[must_use]
    pub fn exclusive(self) -> Self {
        Self { is_exclusive: true, ..self }
    }

    pub(super) fn kind(&self) -> &'static str {
        self.kind
    }

    pub(super) fn is_exclusive(&self) -> bool {
        self.is_exclusive
    }

    pub(super) fn open(&self) -> BoxFuture<'static, Result<Box<dyn Sink>, Unavailable>> {
        (self.open)()
    }
}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Custom").field(&self.kind).finish()
    }
}

impl PartialEq for Custom {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.open, &other.open)
    }
}
