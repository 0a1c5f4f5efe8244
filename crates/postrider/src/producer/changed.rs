//! A change together with its events.

use super::transaction::Transaction;
use super::{EmitError, emit, emit_many};
use crate::event::Event;

/// What a change returns to `with_events`: its result, and the events that tell of it.
///
/// ```
/// # fn example() -> Result<(), postrider::EmitError> {
/// use postrider::{Changed, Event};
///
/// let paid = Changed::new(7, [Event::new("order.paid", &7)?.key(7)]);
/// let found_paid_already = Changed::nothing(7);
/// # Ok(())
/// # }
/// ```
///
/// That nothing happened has to be said; an empty list does not compile:
///
/// ```compile_fail
/// postrider::Changed::new(7, []);
/// ```
#[derive(Debug, Clone)]
#[must_use = "return it to `with_events`, or its events are lost"]
pub struct Changed<R> {
    value: R,
    events: Vec<Event>,
}

impl<R> Changed<R> {
    /// A change with one or more events.
    pub fn new<const N: usize>(value: R, events: [Event; N]) -> Self {
        const { assert!(N > 0, "a change without events is Changed::nothing") };
        Self { value, events: Vec::from(events) }
    }

    /// Nothing happened that anybody should hear of.
    pub fn nothing(value: R) -> Self {
        Self { value, events: Vec::new() }
    }

    /// Adds events. Where their number is known only now, and may be none: `Changed::nothing(value).and(events)`.
    pub fn and(mut self, events: impl IntoIterator<Item = Event>) -> Self {
        self.events.extend(events);
        self
    }

    /// Emits the events; the caller commits if that went well.
    #[cfg_attr(not(any(feature = "sqlx", feature = "tokio-postgres")), expect(dead_code))]
    pub(super) async fn finish<T: Transaction>(self, tx: &mut T) -> Result<R, EmitError> {
        match self.events.as_slice() {
            // COMMIT of an aborted transaction rolls back and reports success: a change that swallowed an error
            // would pass for done. Any statement finds out.
            [] => drop(tx.column("select 'alive'", &[]).await?),
            [event] => drop(emit(tx, event).await?),
            events => drop(emit_many(tx, events).await?),
        }
        Ok(self.value)
    }
}
