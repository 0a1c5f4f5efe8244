//! The pooler in transaction mode.

use anyhow::Result;
use postrider_testkit::{PgBouncer, Template, Version, postgres};
use sqlx::{Connection as _, Executor as _, PgConnection};

#[tokio::test]
async fn clients_share_one_server_connection_by_transaction() -> Result<()> {
    let server = postgres(Version::default()).await?;
    let database = server.database(&Template::empty()).await?;
    let pooler = PgBouncer::start(&server, 1).await?;
    let mut first = PgConnection::connect(&pooler.url(&database)).await?;
    let mut second = PgConnection::connect(&pooler.url(&database)).await?;
    // Simple queries: prepared statements do not survive transaction mode in 1.18.
    first.execute("create table t as select pg_backend_pid() as pid").await?;
    second.execute("insert into t select pg_backend_pid()").await?;
    let backends: i64 = sqlx::query_scalar("select count(distinct pid) from t")
        .fetch_one(&mut database.connect().await?)
        .await?;
    assert_eq!(backends, 1);

    pooler.crash().await?;
    assert!(first.execute("select 1").await.is_err());
    pooler.restart().await?;
    PgConnection::connect(&pooler.url(&database)).await?.execute("select 1").await?;
    Ok(())
}

#[tokio::test]
async fn any_role_may_come_in() -> Result<()> {
    let server = postgres(Version::default()).await?;
    let database = server.database(&Template::empty()).await?;
    let mut admin = database.connect().await?;
    admin.execute("create role testkit_pooled login").await?;
    let pooler = PgBouncer::start(&server, 2).await?;
    let mut client = PgConnection::connect(&pooler.url_as("testkit_pooled", &database)).await?;
    client.execute("do $$ begin assert current_user = 'testkit_pooled'; end $$").await?;
    drop((client, pooler));
    admin.execute("drop role testkit_pooled").await?;
    Ok(())
}
