//! The transaction of an effect.

use std::ops::{Deref, DerefMut};

use sqlx::{PgConnection, Postgres, Transaction};

/// The transaction that a handler works in: what it does there happens if and only if the event is done with. It is used like the
/// connection it is on, as `&mut **tx`; that it cannot be ended by the handler is on purpose.
#[derive(Debug)]
pub struct Tx(pub(crate) Transaction<'static, Postgres>);

impl Deref for Tx {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.0
    }
}

impl DerefMut for Tx {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.0
    }
}
