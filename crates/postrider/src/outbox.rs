//! Outbox tables that are there already: their rows become events, and their own columns go on telling the truth.
//!
//! An [`Outbox`] says which column is what; a [`Preset`] knows that of tables in common use. [`plan`] and [`apply`] bring what is needed
//! into the database: with [`Mode::Trigger`] a row becomes an event in the transaction that inserts it, with [`Mode::Poll`] nothing is
//! installed on the table and a [`Keeper`] moves its rows into the log. In both, a [`Marker`] writes the table's lifecycle: who watches it
//! sees when a row was taken, when every sink had it, and why one refuses it.

mod apply;
mod declaration;
mod failure;
mod functions;
mod generate;
mod inspect;
mod installed;
mod keeper;
mod lifecycle;
mod mapping;
mod marker;
mod marks;
mod misfits;
mod mover;
mod plan;
mod preset;
mod sweep;
mod transfer;
mod troubles;

pub use apply::apply;
pub(crate) use apply::apply_within;
pub use declaration::{Columns, Mode, Outbox};
pub use failure::{Error, Result};
pub use inspect::{Complaint, inspect};
pub use keeper::{Keeper, Worked};
pub use marker::{Marked, Marker, Part};
pub use misfits::{Misfits, misfits};
pub use plan::plan;
pub use preset::Preset;
pub use sweep::alarms;
pub use troubles::{Trouble, troubles};
