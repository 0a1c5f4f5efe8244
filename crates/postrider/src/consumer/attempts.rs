//! How often an event was begun with, kept in the database, where it outlives a process that the event ends.

use sqlx::{PgConnection, PgPool};

/// One more try begins: which, and what was said of the one before.
pub(super) async fn begin(
    pool: &PgPool,
    consumer: &str,
    event_id: &str,
) -> sqlx::Result<(u32, Option<String>)> {
    let (begun, reason): (i32, Option<String>) =
        sqlx::query_as("select begun, reason from postrider.begin_attempt($1, $2)")
            .bind(consumer)
            .bind(event_id)
            .fetch_one(pool)
            .await?;
    Ok((begun.unsigned_abs(), reason))
}

/// It failed.
pub(super) async fn fail(pool: &PgPool, consumer: &str, event_id: &str, reason: &str) -> sqlx::Result<()> {
    sqlx::query("select postrider.fail_attempt($1, $2, $3)")
        .bind(consumer)
        .bind(event_id)
        // Text in PostgreSQL has no such character.
        .bind(reason.replace('\0', " "))
        .execute(pool)
        .await?;
    Ok(())
}

/// It is settled, in this transaction.
pub(super) async fn end(connection: &mut PgConnection, consumer: &str, event_id: &str) -> sqlx::Result<()> {
    sqlx::query("select postrider.end_attempts($1, $2)")
        .bind(consumer)
        .bind(event_id)
        .execute(connection)
        .await?;
    Ok(())
}

/// Events that never came back are forgotten.
pub(super) async fn sweep(pool: &PgPool, consumer: &str) -> sqlx::Result<()> {
    sqlx::query("select postrider.sweep_attempts($1)").bind(consumer).execute(pool).await?;
    Ok(())
}
