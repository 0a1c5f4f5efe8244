//! The envelopes there are.

pub(crate) mod binary;
pub(crate) mod cloudevents;
pub(crate) mod debezium;
pub(crate) mod plain;
pub(crate) mod plane;
