//! The relay against a real `PostgreSQL`.
#![forbid(unsafe_code)]
#![allow(unreachable_pub, clippy::unwrap_used)]

mod engine;
mod support;
