//! Locks on tables that others use.

use std::time::Duration;

use sqlx::PgConnection;

/// How long a lock on a user's table is waited for before everybody else goes first.
const LOCK_TIMEOUT: &str = "500ms";
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(250);

/// A lock that is queued holds up everybody behind it, so it is asked for with a short patience, again and again.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    tries: u32,
}

impl Patience {
    /// For the locks of this transaction.
    pub(crate) async fn set(connection: &mut PgConnection) -> sqlx::Result<()> {
        sqlx::query("select set_config('lock_timeout', $1, true)")
            .bind(LOCK_TIMEOUT)
            .execute(connection)
            .await?;
        Ok(())
    }

    /// Whether it failed for a lock and is worth another try, which begins behind a pause.
    pub(crate) async fn is_left(&mut self, error: &sqlx::Error) -> bool {
        let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
        self.tries += 1;
        let is_left = code.as_deref() == Some("55P03") && self.tries < TRIES;
        if is_left {
            tokio::time::sleep(PAUSE).await;
        }
        is_left
    }
}
