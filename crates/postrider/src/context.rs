//! What all events of a transaction have in common.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::producer::{EmitError, Transaction};

const APPLY: &str = "select postrider.set_context($1::text::jsonb)::text";
/// The old context must be read before the new one is set; `offset 0` keeps the planner from merging the two levels.
const ENTER: &str = "select c.before, postrider.set_context($1::text::jsonb)::text
    from (select current_setting('postrider.context', true) as before offset 0) c";
const LEAVE: &str = "select set_config('postrider.context', coalesce($1::text, ''), true)";

/// Headers for every later event of a transaction, also for those that triggers and other code emit: who started it,
/// its trace.
///
/// It belongs to the transaction, not to the connection, so nothing leaks to the next user of a pool. Rolling back to
/// a savepoint brings back the context of that moment.
///
/// ```no_run
/// # #[cfg(feature = "sqlx")]
/// # async fn example(pool: &sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use postrider::{Context, Event};
///
/// let mut tx = pool.begin().await?;
/// Context::new().set("initiator", "user-7").apply(&mut tx).await?;
/// postrider::emit(&mut tx, &Event::new("order.paid", &7)?.key(7)).await?; // its headers: {"initiator": "user-7"}
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
#[must_use = "a context does nothing until it is applied"]
pub struct Context {
    entries: Map<String, Value>,
}

impl Context {
    /// A context that adds nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry. `None` takes an entry of this name out of the context it is applied to.
    pub fn set(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.entries.insert(name.into(), value.into());
        self
    }

    /// Adds these entries to the context of the transaction, until it ends.
    pub async fn apply<T: Transaction>(&self, tx: &mut T) -> Result<(), EmitError> {
        tx.column(APPLY, &[Some(&self.json())]).await?;
        Ok(())
    }

    /// Adds these entries for as long as `work` runs, then restores what was there, whether `work` succeeded or not.
    ///
    /// If `work` fails, its own error is returned, also where it left the transaction unusable. A `scope` whose future
    /// is dropped half way (a timeout around it) restores nothing: roll back then, as one would anyway.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlx")]
    /// # async fn example(tx: &mut sqlx::PgTransaction<'_>) -> Result<(), postrider::EmitError> {
    /// use postrider::{Context, Event};
    ///
    /// let import = Context::new().set("initiator", "nightly-import");
    /// import.scope(tx, async |tx| postrider::emit(tx, &Event::new("product.added", &42)?).await).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn scope<T, R, E, F>(&self, tx: &mut T, work: F) -> Result<R, E>
    where
        T: Transaction,
        E: From<EmitError>,
        F: AsyncFnOnce(&mut T) -> Result<R, E>,
    {
        let before = tx.column(ENTER, &[Some(&self.json())]).await?.pop().flatten();
        let result = work(tx).await;
        let restored = tx.column(LEAVE, &[before.as_deref()]).await;
        let value = result?;
        restored?;
        Ok(value)
    }

    fn json(&self) -> String {
        Value::Object(self.entries.clone()).to_string()
    }
}
