//! Rows that went in a transaction, kept for the triggers of their children.

use sqlx::PgConnection;

/// Sweeps those of transactions that are over: only their own transaction has a use for them.
pub(crate) async fn forget_departed(connection: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query("delete from postrider.departed where xid < pg_snapshot_xmin(pg_current_snapshot())")
        .execute(connection)
        .await?;
    Ok(())
}
