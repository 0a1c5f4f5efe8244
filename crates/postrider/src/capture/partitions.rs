//! Partitions that come and go with their rows, of which no trigger hears.

use sqlx::PgConnection;

use super::failure::Result;
use super::shape::Shape;

/// A partition that was attached since the trigger was installed brought rows without events, one that went took rows. One that was
/// created as a partition was empty, and is no news.
pub(super) async fn moved(connection: &mut PgConnection, shape: &Shape) -> Result<Vec<String>> {
    let found: Vec<(String, bool)> = sqlx::query_as(include_str!("sql/partitions_moved.sql"))
        .bind(shape.oid)
        .bind(&shape.name)
        .fetch_all(connection)
        .await?;
    let words = |(partition, came): (String, bool)| {
        if came {
            format!("the partition {partition} was attached: the rows it brought made no events")
        } else {
            format!("the partition {partition} was detached or dropped: the rows it took made no events")
        }
    };
    Ok(found.into_iter().map(words).collect())
}

/// Remembers those that were created as partitions, so that they are missed when they go.
pub(super) async fn learn(connection: &mut PgConnection, shape: &Shape) -> Result<()> {
    sqlx::query(include_str!("sql/partitions_born.sql"))
        .bind(shape.oid)
        .bind(&shape.name)
        .execute(connection)
        .await?;
    Ok(())
}

/// One of `tables` that has one of `others` among its partitions, and that partition.
pub(super) async fn overlap(
    connection: &mut PgConnection,
    tables: &[i64],
    others: &[i64],
) -> Result<Option<(String, String)>> {
    Ok(sqlx::query_as(
        "select a.relid::text, o.oid::oid::regclass::text
         from unnest($2::bigint[]) o (oid)
         cross join pg_partition_ancestors(o.oid::oid::regclass) a
         where a.relid::oid::bigint <> o.oid and a.relid::oid::bigint = any ($1)
         limit 1",
    )
    .bind(tables)
    .bind(others)
    .fetch_optional(connection)
    .await?)
}
