//! What librdkafka tells of partitions that come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rdkafka::ClientContext;
use rdkafka::consumer::{BaseConsumer, ConsumerContext, Rebalance};

/// How often partitions were assigned.
#[derive(Clone, Default)]
pub(super) struct Assignments(Arc<AtomicU64>);

impl Assignments {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

#[derive(Default)]
pub(super) struct Context(Assignments);

impl Context {
    pub(super) fn assignments(&self) -> Assignments {
        self.0.clone()
    }
}

impl ClientContext for Context {}

impl ConsumerContext for Context {
    /// Before anything of them is delivered.
    fn pre_rebalance(&self, _: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if matches!(rebalance, Rebalance::Assign(_)) {
            self.0.0.fetch_add(1, Ordering::AcqRel);
        }
    }
}
