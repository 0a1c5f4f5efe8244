//! The testkit against real servers.

mod brokers;
mod databases;
mod pgbouncer;
mod postgres;
mod removal;
mod service;
mod shared_run;
