//! Servers of every version: shared ones, and private ones that are ill-treated.

use std::time::{Duration, Instant};

use anyhow::Result;
use postrider_testkit::{
    PostgresServer, Process, Settings, Signal, Template, Version, postgres, postgres_with,
};
use sqlx::{Executor as _, PgConnection};

async fn setting(connection: &mut PgConnection, name: &str) -> Result<String> {
    Ok(sqlx::query_scalar("select current_setting($1)").bind(name).fetch_one(connection).await?)
}

async fn count(server: &PostgresServer) -> Result<i64> {
    Ok(sqlx::query_scalar("select count(*) from t").fetch_one(&mut server.connect().await?).await?)
}

#[tokio::test]
async fn every_version_serves_and_copies_templates() -> Result<()> {
    for version in Version::ALL {
        let start = Instant::now();
        let server = postgres(version).await?;
        let started = start.elapsed();
        let start = Instant::now();
        let database = server.database(&Template::empty()).await?;
        eprintln!("PostgreSQL {version}: start {started:?}, first database {:?}", start.elapsed());
        let mut connection = database.connect().await?;
        let number: i32 = setting(&mut connection, "server_version_num").await?.parse()?;
        assert_eq!(number / 10_000, i32::try_from(version.major())?);
    }
    Ok(())
}

#[tokio::test]
async fn shared_servers_are_told_apart_by_their_settings() -> Result<()> {
    let usual = postgres(Version::default()).await?;
    let same = postgres(Version::default()).await?;
    let prepared = postgres_with(Version::default(), Settings::with_prepared_transactions()).await?;
    assert_eq!(usual.pid()?, same.pid()?);
    assert_ne!(usual.pid()?, prepared.pid()?);
    assert_eq!(setting(&mut usual.connect().await?, "max_prepared_transactions").await?, "0");
    assert_eq!(setting(&mut prepared.connect().await?, "max_prepared_transactions").await?, "64");
    assert!(usual.crash().await.unwrap_err().to_string().contains("shared by the whole run"));
    Ok(())
}

#[tokio::test]
async fn a_private_server_survives_every_kind_of_end() -> Result<()> {
    let start = Instant::now();
    let server = PostgresServer::private(Version::default(), Settings::for_tests()).await?;
    eprintln!("private start: {:?}", start.elapsed());
    let (port, pid) = (server.port(), server.pid()?);
    server.connect().await?.execute("create table t(i int)").await?;

    for kind in ["fast", "immediate", "crash"] {
        let mut client = server.connect().await?;
        client.execute("insert into t values (1)").await?;
        let start = Instant::now();
        match kind {
            "fast" => server.stop().await?,
            "immediate" => server.stop_immediate().await?,
            _ => server.crash().await?,
        }
        let ended = start.elapsed();
        assert!(client.execute("select 1").await.is_err());
        assert!(server.connect().await.is_err());
        let start = Instant::now();
        server.start().await?;
        eprintln!("{kind}: end {ended:?}, start {:?}", start.elapsed());
    }
    assert_eq!(server.port(), port);
    assert_ne!(server.pid()?, pid);
    assert_eq!(count(&server).await?, 3);
    Ok(())
}

#[tokio::test]
async fn a_crash_ends_backends_in_the_middle_of_a_query() -> Result<()> {
    let server = PostgresServer::private(Version::default(), Settings::for_tests()).await?;
    let mut client = server.connect().await?;
    let backend: i32 = sqlx::query_scalar("select pg_backend_pid()").fetch_one(&mut client).await?;
    let backend = Process::find(backend).expect("the backend runs");
    let busy = tokio::spawn(async move {
        client.execute("select count(*) from generate_series(1, 1000000000)").await.map(drop)
    });
    let mut observer = server.connect().await?;
    let active = "select from pg_stat_activity where state = 'active' and pid = $1";
    while sqlx::query(active).bind(backend.pid()).fetch_optional(&mut observer).await?.is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.crash().await?;
    assert!(!backend.is_alive());
    assert!(busy.await?.is_err());
    Ok(())
}

#[tokio::test]
async fn a_frozen_server_can_be_removed() -> Result<()> {
    let server = PostgresServer::private(Version::default(), Settings::for_tests()).await?;
    let process = Process::find(server.pid()?).expect("it runs");
    let directory = server.data_dir();
    server.signal(Signal::STOP)?;
    drop(server);
    assert!(!process.is_alive());
    assert!(!directory.exists());
    Ok(())
}

#[tokio::test]
async fn settings_change_with_the_next_start_or_by_alter_system() -> Result<()> {
    let server =
        PostgresServer::private(Version::default(), Settings::for_tests().set("work_mem", "5MB")).await?;
    assert_eq!(setting(&mut server.connect().await?, "work_mem").await?, "5MB");
    server.stop().await?;
    server.set("work_mem", "6MB")?;
    server.start().await?;
    let mut admin = server.connect().await?;
    assert_eq!(setting(&mut admin, "work_mem").await?, "6MB");
    admin.execute("alter system set work_mem = '7MB'").await?;
    admin.execute("select pg_reload_conf()").await?;
    while setting(&mut server.connect().await?, "work_mem").await? != "7MB" {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

#[tokio::test]
async fn a_server_that_cannot_start_says_why() {
    let wrong = Settings::for_tests().set("no_such_setting", 1);
    let error = PostgresServer::private(Version::default(), wrong).await.err().expect("must not start");
    let text = format!("{error:#}");
    assert!(text.contains("ended before it was ready with status 1"), "{text}");
    assert!(text.contains(r#"unrecognized configuration parameter "no_such_setting""#), "{text}");
}

#[tokio::test]
async fn a_server_that_died_says_so() -> Result<()> {
    let server = PostgresServer::private(Version::default(), Settings::for_tests()).await?;
    let process = Process::find(server.pid()?).expect("it runs");
    process.kill_tree()?;
    let text = format!("{:#}", server.connect().await.unwrap_err());
    assert!(text.contains("pg15 died"), "{text}");
    assert!(text.contains("the end of its log"), "{text}");
    Ok(())
}

#[tokio::test]
async fn a_launched_server_becomes_ready_by_itself() -> Result<()> {
    let server = PostgresServer::private(Version::default(), Settings::for_tests()).await?;
    server.crash().await?;
    server.launch().await?;
    assert!(server.start().await.unwrap_err().to_string().contains("is running already"));
    server.wait_until_ready().await?;
    server.connect().await?;
    Ok(())
}

#[tokio::test]
async fn programs_run_as_the_servers_user() -> Result<()> {
    let server = PostgresServer::private(Version::default(), Settings::for_tests()).await?;
    server.stop().await?;
    let data = server.data_dir();
    // The first transaction of a page of the commit log: no older page of it has to exist.
    let output = server.run_as("pg_resetwal")?.arg("-x").arg("4194304").arg("-D").arg(data).output()?;
    assert!(output.status.success(), "{output:?}");
    server.start().await?;
    let xid: String = sqlx::query_scalar("select pg_current_xact_id()::text")
        .fetch_one(&mut server.connect().await?)
        .await?;
    assert!(xid.parse::<u64>()? >= 4_194_304);
    assert!(server.run_as("no_such_program").is_err());
    Ok(())
}

#[tokio::test]
async fn a_standby_follows_and_takes_over() -> Result<()> {
    let primary = PostgresServer::private(Version::default(), Settings::for_tests()).await?;
    primary.connect().await?.execute("create table t(i int)").await?;
    let standby = primary.standby(Settings::for_tests()).await?;
    primary.connect().await?.execute("insert into t values (1)").await?;
    while count(&standby).await? == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    primary.crash().await?;
    standby.connect().await?.execute("select pg_promote()").await?;
    standby.connect().await?.execute("insert into t values (2)").await?;
    assert_eq!(count(&standby).await?, 2);
    Ok(())
}
