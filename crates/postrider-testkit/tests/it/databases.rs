//! A database per test.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use postrider_testkit::{Template, Version, postgres};
use sqlx::{Connection as _, Executor as _, PgConnection};

#[tokio::test]
async fn a_template_is_prepared_once_for_many_tests_at_once() -> Result<()> {
    let server = postgres(Version::default()).await?;
    let prepared = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&prepared);
    let template = Arc::new(Template::new("with_table", move |url| {
        counter.fetch_add(1, Ordering::SeqCst);
        async move {
            let mut connection = PgConnection::connect(&url).await?;
            connection.execute("create table t as select 42 as answer").await?;
            Ok(connection.close().await?)
        }
    }));

    let start = Instant::now();
    let mut tests = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (server, template) = (server.clone(), Arc::clone(&template));
        tests.spawn(async move {
            let database = server.database(&template).await?;
            let mut connection = database.connect().await?;
            let answer: i32 = sqlx::query_scalar("select answer from t").fetch_one(&mut connection).await?;
            anyhow::Ok((answer, database))
        });
    }
    let results = tests.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;
    eprintln!("template and 8 databases: {:?}", start.elapsed());
    assert!(results.iter().all(|(answer, _)| *answer == 42));
    assert_eq!(prepared.load(Ordering::SeqCst), 1);

    let start = Instant::now();
    for _ in 0..10 {
        server.database(&template).await?;
    }
    eprintln!("a database: {:?}", start.elapsed() / 10);
    Ok(())
}

#[tokio::test]
async fn a_template_that_failed_is_tried_again() -> Result<()> {
    let server = postgres(Version::default()).await?;
    let tries = Arc::new(AtomicU32::new(0));
    let template = Template::new("fails_once", move |url| {
        let number = tries.fetch_add(1, Ordering::SeqCst);
        async move {
            let mut connection = PgConnection::connect(&url).await?;
            connection.execute("create table t()").await?;
            anyhow::ensure!(number > 0, "not this time");
            // Left open on purpose: an unclean template must not block the copies.
            std::mem::forget(connection);
            Ok(())
        }
    });
    let error = server.database(&template).await.err().map(|error| format!("{error:#}"));
    assert_eq!(error.as_deref(), Some("preparing template fails_once: not this time"));
    server.database(&template).await?.connect().await?.execute("select from t").await?;
    Ok(())
}

#[tokio::test]
async fn a_dropped_database_disappears_although_someone_is_connected() -> Result<()> {
    let server = postgres(Version::default()).await?;
    let database = server.database(&Template::empty()).await?;
    let name = database.name().to_owned();
    let _pool = database.pool(2).await?;
    drop(database);
    let mut admin = server.connect().await?;
    loop {
        let query = sqlx::query("select from pg_database where datname = $1").bind(&name);
        if query.fetch_optional(&mut admin).await?.is_none() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn roles_have_an_address_of_their_own() -> Result<()> {
    let database = postgres(Version::default()).await?.database(&Template::empty()).await?;
    let mut admin = database.connect().await?;
    admin.execute("create role testkit_app login").await?;
    let mut app = PgConnection::connect(&database.url_as("testkit_app")).await?;
    let user: String = sqlx::query_scalar("select current_user::text").fetch_one(&mut app).await?;
    assert_eq!(user, "testkit_app");
    admin.execute("drop role testkit_app").await?;
    Ok(())
}
