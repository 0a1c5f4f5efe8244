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
    /// One at a time brings the database to what is declared, and the next finds what he has done. To be asked for first of all: whoever
    /// waits for it holds up nobody, so there is no hurry.
    pub(crate) async fn take_turn(connection: &mut PgConnection) -> sqlx::Result<()> {
        sqlx::query("select pg_advisory_xact_lock(hashtextextended('postrider.apply', 0))")
            .execute(connection)
            .await?;
        Ok(())
    }

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
        let is_left = matches!(code.as_deref(), Some("55P03" | "40P01")) && self.tries < TRIES;
        if is_left {
            tokio::time::sleep(PAUSE).await;
        }
        is_left
    }
}
