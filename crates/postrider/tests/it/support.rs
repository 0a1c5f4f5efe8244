//! Databases with the schema installed, and small helpers every test uses.

use std::time::{Duration, Instant};

use postrider::log::{Batch, Reader, ReaderOptions, Silence, Start};
use postrider::schema::{self, Install};
use postrider_testkit::{
    Database, PostgresServer, Process, Proxy, Settings, Signal, Template, Version, postgres, postgres_with,
};
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use sqlx::{Connection, PgConnection, PgPool};

/// Long enough for anything that is going to happen at all on a busy machine.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// A fresh database with the schema, on the default server.
pub async fn database() -> Database {
    database_on(&postgres(Version::default()).await.unwrap()).await
}

/// A fresh database with the schema, on this version.
pub async fn database_of(version: Version) -> Database {
    database_on(&postgres(version).await.unwrap()).await
}

/// A fresh database with the schema, on a server that allows prepared transactions.
pub async fn database_with_prepared_transactions(version: Version) -> Database {
    database_on(&postgres_with(version, Settings::with_prepared_transactions()).await.unwrap()).await
}

/// A fresh database with the schema and one lane: one total order.
pub async fn database_with_one_lane() -> Database {
    database_with_one_lane_on(&postgres(Version::default()).await.unwrap()).await
}

/// The same on any server.
pub async fn database_with_one_lane_on(server: &PostgresServer) -> Database {
    let template = Template::new("postrider_one_lane", |url| async move {
        install(&url, &Install { lanes: Some(1), ..Install::default() }).await
    });
    server.database(&template).await.unwrap()
}

/// A server of one's own on which no xid is taken but by the test. They are shared by a whole cluster, and one that a neighbour's transaction
/// or a vacuum completes in between makes another snapshot.
pub async fn undisturbed_server() -> PostgresServer {
    PostgresServer::private(Version::default(), Settings::for_tests().set("autovacuum", "off")).await.unwrap()
}

/// A fresh database with the schema on any server.
pub async fn database_on(server: &PostgresServer) -> Database {
    let template = Template::new("postrider", |url| async move { install(&url, &Install::default()).await });
    server.database(&template).await.unwrap()
}

async fn install(url: &str, install: &Install) -> anyhow::Result<()> {
    let mut connection = PgConnection::connect(url).await?;
    schema::install(&mut connection, install).await?;
    connection.close().await?;
    Ok(())
}

pub fn options(database: &Database) -> PgConnectOptions {
    database.url().parse().unwrap()
}

/// A reader that begins with the first event and gives up its lanes after a second.
pub fn reading(sink: &str) -> ReaderOptions {
    ReaderOptions { start: Start::Earliest, lease: Duration::from_secs(1), ..ReaderOptions::new(sink) }
}

/// A pool that has no connection yet, and what all of its connections go through.
pub async fn pool_through_proxy(database: &Database) -> (Proxy, PgPool) {
    let proxy = Proxy::start(format!("127.0.0.1:{}", database.server().port())).await.unwrap();
    let options: PgConnectOptions = database.url().parse().unwrap();
    let pool = PgPoolOptions::new().connect_lazy_with(options.port(proxy.port()));
    (proxy, pool)
}

/// A reader that hears itself, where anybody is to wake it: on a machine that stands still for a second its test of that fails, and it would look
/// for events by itself for as long as it lives.
pub async fn open(database: &Database, options: ReaderOptions) -> Reader {
    let begun = Instant::now();
    loop {
        let reader = Reader::open(self::options(database).into(), options.clone()).await.unwrap();
        if reader.silence() != Some(Silence::Deaf) {
            return reader;
        }
        assert!(begun.elapsed() < PATIENCE, "it never hears itself");
        reader.close().await.unwrap();
    }
}

/// The next batch, or a panic if none comes.
pub async fn next(reader: &mut Reader) -> Batch {
    tokio::time::timeout(PATIENCE, reader.next()).await.expect("no event came").unwrap()
}

/// Reads and settles until `count` events are in hand; their types in the order they came.
pub async fn read_types(reader: &mut Reader, count: usize) -> Vec<String> {
    let mut types = Vec::new();
    while types.len() < count {
        let batch = next(reader).await;
        types.extend(batch.records().map(|record| record.r#type.clone()));
        reader.settle(&batch).await.unwrap();
    }
    types
}

/// Emits in whatever transaction the connection is in.
pub async fn emit(connection: &mut PgConnection, event_type: &str, key: &str) {
    sqlx::query("select postrider.emit($1, '{}', key => $2)")
        .bind(event_type)
        .bind(key)
        .execute(connection)
        .await
        .unwrap();
}

/// Runs statements that need no answer.
pub async fn run(connection: &mut PgConnection, statements: &'static str) {
    sqlx::raw_sql(statements).execute(connection).await.unwrap();
}

/// What arrives on the channel before a last word of our own, which is sent after everything else.
pub async fn heard(listener: &mut PgListener, connection: &mut PgConnection) -> Vec<String> {
    run(connection, "notify postrider, 'last word'").await;
    let mut heard = Vec::new();
    loop {
        let notification = tokio::time::timeout(PATIENCE, listener.recv()).await.unwrap().unwrap();
        if notification.payload() == "last word" {
            return heard;
        }
        heard.push(notification.payload().to_owned());
    }
}

/// A server of one's own on which nobody flushes the WAL of an asynchronous commit: its WAL writer is frozen.
pub async fn lazy_server() -> (PostgresServer, Database) {
    let settings = Settings::for_tests()
        .set("autovacuum", "off")
        .set("checkpoint_timeout", "1h")
        .set("bgwriter_lru_maxpages", 0);
    let server = PostgresServer::private(Version::default(), settings).await.unwrap();
    let database = database_on(&server).await;
    freeze_wal_writer(&database).await;
    (server, database)
}

/// Frozen while it waits for work: in the middle of it, it could hold a lock for ever.
async fn freeze_wal_writer(database: &Database) {
    let mut connection = database.connect().await.unwrap();
    let pid: i32 = sqlx::query_scalar("select pid from pg_stat_activity where backend_type = 'walwriter'")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    let wal_writer = Process::find(pid).expect("the WAL writer runs");
    loop {
        wal_writer.signal(Signal::STOP).unwrap();
        let waits: bool = sqlx::query_scalar(
            "select wait_event is not distinct from 'WalWriterMain' from pg_stat_activity where pid = $1",
        )
        .bind(pid)
        .fetch_one(&mut connection)
        .await
        .unwrap();
        if waits {
            return;
        }
        wal_writer.signal(Signal::CONT).unwrap();
    }
}
