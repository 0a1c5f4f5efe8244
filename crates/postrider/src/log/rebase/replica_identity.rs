//! Updating the log under a user's publication.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::log::error::Result;

/// A publication `for all tables` refuses to update a table without a replica identity, and the slots have none.
pub(super) struct ReplicaIdentities(Vec<(String, &'static str)>);

impl ReplicaIdentities {
    /// In a short transaction of its own: it locks out everybody, and the rows may take a while.
    pub(super) async fn set_full(connection: &mut PgConnection) -> Result<Self> {
        let slots: Vec<(String, bool)> = sqlx::query_as(
            "select c.oid::regclass::text, c.relreplident = 'n' from pg_partition_tree('postrider.events') t join pg_class c on c.oid = t.relid
             where t.isleaf and c.relreplident in ('d', 'n') and exists (select from pg_publication where pubupdate)",
        )
        .fetch_all(&mut *connection)
        .await?;
        let before: Vec<(String, &'static str)> = slots
            .into_iter()
            .map(|(slot, nothing)| (slot, if nothing { "nothing" } else { "default" }))
            .collect();
        alter(connection, before.iter().map(|(slot, _)| (slot, "full"))).await?;
        Ok(Self(before))
    }

    pub(super) async fn set_back(self, connection: &mut PgConnection) -> Result<()> {
        alter(connection, self.0.iter().map(|(slot, before)| (slot, *before))).await
    }
}

async fn alter<'a>(
    connection: &mut PgConnection,
    slots: impl Iterator<Item = (&'a String, &'a str)>,
) -> Result<()> {
    let mut transaction = connection.begin().await?;
    sqlx::query("set local lock_timeout = '5s'").execute(&mut *transaction).await?;
    for (slot, identity) in slots {
        let statement = format!("alter table {slot} replica identity {identity}");
        sqlx::query(AssertSqlSafe(statement)).execute(&mut *transaction).await?;
    }
    transaction.commit().await?;
    Ok(())
}
