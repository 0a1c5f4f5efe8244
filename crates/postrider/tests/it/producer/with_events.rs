//! A change and its events: both or neither.

use anyhow::Result;
use postrider::producer::{sqlx as with_sqlx, tokio_postgres as with_tokio_postgres};
use postrider::{Changed, EmitError, emit};
use postrider_testkit::Database;
use sqlx::PgPool;

use super::{client, committed_types, event};
use crate::support;

const INSERT: &str = "insert into orders values (7) returning id";

async fn shop() -> Result<(Database, PgPool)> {
    let database = support::database().await;
    let pool = database.pool(2).await?;
    let create = "create table orders (id bigint primary key)";
    sqlx::query(create).execute(&pool).await?;
    Ok((database, pool))
}

async fn orders(pool: &PgPool) -> Result<i64> {
    let count = sqlx::query_scalar("select count(*) from orders");
    Ok(count.fetch_one(pool).await?)
}

#[tokio::test]
async fn sqlx_commits_both() -> Result<()> {
    let (database, pool) = shop().await?;
    let spawned = pool.clone();
    // Spawned, because servers do that: the future has to be Send.
    let order = tokio::spawn(async move {
        with_sqlx::with_events(&spawned, async |tx| {
            let order: i64 = sqlx::query_scalar(INSERT).fetch_one(&mut **tx).await?;
            let more = vec![event("order.paid", order)];
            anyhow::Ok(Changed::new(order, [event("order.created", order)]).and(more))
        })
        .await
    });
    assert_eq!(order.await??, 7);
    assert_eq!(orders(&pool).await?, 1);
    assert_eq!(committed_types(&database).await?, ["order.created", "order.paid"]);

    let read = with_sqlx::with_events(&pool, async |_| anyhow::Ok(Changed::nothing(1))).await?;
    assert_eq!(read, 1);
    Ok(())
}

#[tokio::test]
async fn sqlx_commits_neither() -> Result<()> {
    let (database, pool) = shop().await?;
    let failed: Result<()> = with_sqlx::with_events(&pool, async |tx| {
        sqlx::query(INSERT).execute(&mut **tx).await?;
        emit(tx, &event("order.created", 7)).await?;
        anyhow::bail!("no stock")
    })
    .await;
    assert_eq!(failed.unwrap_err().to_string(), "no stock");

    let bad_event: Result<()> = with_sqlx::with_events(&pool, async |tx| {
        sqlx::query(INSERT).execute(&mut **tx).await?;
        Ok(Changed::new((), [event("order.created", 7), event("", 7)]))
    })
    .await;
    let error: EmitError = bad_event.unwrap_err().downcast()?;
    assert_eq!(error.sqlstate(), Some("22023"));

    // The server would answer COMMIT with ROLLBACK, which drivers take for success.
    let swallowed: Result<()> = with_sqlx::with_events(&pool, async |tx| {
        sqlx::query(INSERT).execute(&mut **tx).await?;
        let _ = sqlx::query("select 1 / 0").execute(&mut **tx).await;
        Ok(Changed::nothing(()))
    })
    .await;
    let error: EmitError = swallowed.unwrap_err().downcast()?;
    assert_eq!(error.sqlstate(), Some("25P02"));

    assert_eq!(orders(&pool).await?, 0);
    assert_eq!(committed_types(&database).await?, [""; 0]);
    Ok(())
}

#[tokio::test]
async fn tokio_postgres_commits_both() -> Result<()> {
    let (database, pool) = shop().await?;
    let mut client = client(&database.url()).await?;
    let order = tokio::spawn(async move {
        with_tokio_postgres::with_events(&mut client, async |tx| {
            let order: i64 = tx.query_one(INSERT, &[]).await?.get(0);
            anyhow::Ok(Changed::new(order, [event("order.created", order)]))
        })
        .await
    });
    assert_eq!(order.await??, 7);
    assert_eq!(orders(&pool).await?, 1);
    assert_eq!(committed_types(&database).await?, ["order.created"]);
    Ok(())
}

#[tokio::test]
async fn tokio_postgres_commits_neither() -> Result<()> {
    let (database, pool) = shop().await?;
    let mut client = client(&database.url()).await?;
    let failed: Result<()> = with_tokio_postgres::with_events(&mut client, async |tx| {
        tx.execute(INSERT, &[]).await?;
        emit(tx, &event("order.created", 7)).await?;
        anyhow::bail!("no stock")
    })
    .await;
    assert_eq!(failed.unwrap_err().to_string(), "no stock");

    let bad_event: Result<()> = with_tokio_postgres::with_events(&mut client, async |tx| {
        tx.execute(INSERT, &[]).await?;
        Ok(Changed::new((), [event("order.created", 7), event("", 7)]))
    })
    .await;
    let error: EmitError = bad_event.unwrap_err().downcast()?;
    assert_eq!(error.sqlstate(), Some("22023"));

    let swallowed: Result<()> = with_tokio_postgres::with_events(&mut client, async |tx| {
        tx.execute(INSERT, &[]).await?;
        let _ = tx.execute("select 1 / 0", &[]).await;
        Ok(Changed::nothing(()))
    })
    .await;
    let error: EmitError = swallowed.unwrap_err().downcast()?;
    assert_eq!(error.sqlstate(), Some("25P02"));

    assert_eq!(orders(&pool).await?, 0);
    assert_eq!(committed_types(&database).await?, [""; 0]);
    Ok(())
}
