//! The testkit against real servers.

mod brokers;
mod conformance;
mod databases;
mod pgbouncer;
mod postgres;
mod removal;
mod service;
mod shared_run;
