//! Declared tables become events: what is captured, the trigger that does it, and whether it is in place.
//!
//! A [`Table`] says what a row's change means. [`Shape`] is what the server knows of that table, with every name quoted by the server.
//! [`generate`] makes one PL/pgSQL function of the two, and [`plan`] compares it with what is installed.

mod apply;
mod backfill;
mod captured;
mod declaration;
mod departed;
mod difference;
mod document;
mod expressions;
mod failure;
mod fence;
mod found;
mod generate;
mod json;
pub(crate) mod lock;
mod making;
mod orphan;
mod parent;
mod partitions;
mod plan;
mod recapture;
mod recorder;
mod remembering;
mod rights;
mod roles;
mod row;
mod shape;
mod style;
mod sweep;
mod truncate;
mod waiting;

pub use apply::apply;
pub(crate) use apply::apply_within;
pub use backfill::{Backfill, Reached};
pub use declaration::{Change, OnFailure, Parent, Replicated, Table, Truncate, Verbs};
pub(crate) use departed::forget_departed;
pub use difference::{Difference, Plan, State};
pub(crate) use expressions::mentions;
pub use failure::{Error, Result};
pub(crate) use fence::asked;
pub(crate) use generate::literal;
pub use generate::{TRIGGER, function};
pub(crate) use json::{settings as json_settings, value as json_value};
pub(crate) use making::{dollar_quoted, function_name, not_callable};
pub(crate) use partitions::{on_partitions, overlap};
pub use plan::plan;
pub(crate) use recapture::settle as settle_failures;
pub use recapture::{Kept, Recaptured, Which, discard, kept, recapture};
pub(crate) use recorder::Recorder;
pub(crate) use roles::{Role, relay_roles};
pub use shape::{Column, Order, ParentShape, Shape};
pub use sweep::{Alarm, Missing, alarms, disabled, missing, sweep};
