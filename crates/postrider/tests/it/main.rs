//! The one integration-test binary of this crate: one link, shared servers.

// mod producer;
mod reader;
mod support;
// mod wake_model;
