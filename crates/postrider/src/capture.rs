//! Declared tables become events: what is captured, the trigger that does it, and whether it is in place.
//!
//! A [`Table`] says what a row's change means. [`Shape`] is what the server knows of that table, with every name quoted by the server.
//! [`generate`] makes one PL/pgSQL function of the two, and [`plan`] compares it with what is installed.

mod apply;
mod backfill;
mod declaration;
mod departed;
mod expressions;
mod failure;
mod generate;
mod json;
mod partitions;
mod plan;
mod recapture;
mod shape;
mod sweep;

pub use apply::apply;
pub use backfill::{Backfill, Reached};
pub use declaration::{Change, OnFailure, Parent, Replicated, Table, Truncate, Verbs};
pub(crate) use departed::forget_departed;
pub use failure::{Error, Result};
pub(crate) use generate::literal;
pub use generate::{TRIGGER, function};
pub(crate) use json::{settings as json_settings, value as json_value};
pub(crate) use plan::dollar_quoted;
pub use plan::{Difference, Plan, State, plan};
pub use recapture::recapture;
pub use shape::{Column, Shape};
pub use sweep::{Alarm, Missing, alarms, disabled, missing, sweep};
