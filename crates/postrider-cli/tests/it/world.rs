//! A database with the schema, and what a test puts into it.

use std::process::{Child, Stdio};
use std::time::Duration;

use postrider::log::{Reader, ReaderOptions, Start, sink};
use postrider::schema::{self, Install};
use postrider_testkit::{Database, Template, Version, postgres};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::support::{End, postrider_on};

/// A fresh database with the schema.
pub(crate) async fn installed() -> Database {
    let template = Template::new("postrider_cli", |url| async move {
        let mut connection = PgConnection::connect(&url).await?;
        schema::install(&mut connection, &Install::default()).await?;
        connection.close().await?;
        Ok(())
    });
    postgres(Version::default()).await.unwrap().database(&template).await.unwrap()
}

/// Runs statements that need no answer.
pub(crate) async fn run(database: &Database, statements: impl Into<String>) {
    let mut connection = database.connect().await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(statements.into())).execute(&mut connection).await.unwrap();
}

/// The answer to a question, as text.
pub(crate) async fn ask(database: &Database, question: &str) -> String {
    let mut connection = database.connect().await.unwrap();
    sqlx::query_scalar::<_, Option<String>>(AssertSqlSafe(format!("select ({question})::text")))
        .fetch_one(&mut connection)
        .await
        .unwrap()
        .unwrap_or_default()
}

/// Emits one event; its id.
pub(crate) async fn emit(database: &Database, event_type: &str, key: &str) -> String {
    ask(database, &format!("select postrider.emit('{event_type}', '{{\"n\": 1}}', key => '{key}')")).await
}

/// A sink that begins with the first event.
pub(crate) async fn create_sink(database: &Database, name: &str) {
    sink::open(&mut database.connect().await.unwrap(), name, Start::Earliest).await.unwrap();
}

/// A reader at work that does not lose its lanes while the binary runs.
pub(crate) async fn open_reader(database: &Database, sink: &str) -> Reader {
    let lease = Duration::from_mins(5);
    let options = ReaderOptions {
        start: Start::Earliest,
        lease,
        name: "relay 1".to_owned(),
        ..ReaderOptions::new(sink)
    };
    Reader::open(database.url().parse().unwrap(), options).await.unwrap()
}

/// Reads and settles this many events.
pub(crate) async fn deliver(database: &Database, sink: &str, events: usize) {
    let mut reader = open_reader(database, sink).await;
    let mut count = 0;
    while count < events {
        let batch = reader.next().await.unwrap();
        count += batch.len();
        reader.settle(&batch).await.unwrap();
    }
    reader.close().await.unwrap();
}

/// Parks an event; its id. With `behind` it waits for an earlier one of its key.
pub(crate) async fn park(
    database: &Database,
    sink: &str,
    event_type: &str,
    key: &str,
    state: &str,
) -> String {
    let mut connection = database.connect().await.unwrap();
    sqlx::query_scalar(
        r#"insert into postrider.parked
               (sink, id, lane, seq, type, key, payload, headers, created_at, state, attempts, kind, reason, history)
           select s.sink, postrider.uuid7(), 0, 1, $2, $3, '{"n" :  1.50}', '{"h": "v"}', now(), $4, 10,
                  case when $4 <> 'behind' then 'too_large' end, case when $4 <> 'behind' then 'It is Far too large' end,
                  '[{"at": "2026-01-01T00:00:00Z", "kind": "too_large", "reason": "the first time"}]'
           from postrider.sinks s where s.name = $1 returning id::text"#,
    )
    .bind(sink)
    .bind(event_type)
    .bind(key)
    .bind(state)
    .fetch_one(&mut connection)
    .await
    .unwrap()
}

/// Runs the binary on the database.
pub(crate) fn on(database: &Database, words: &[&str]) -> End {
    End::of(&mut postrider_on(&database.url(), words))
}

/// The binary at work in the background; killed with the test.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(database: &Database, words: &[&str]) -> Self {
        let mut command = postrider_on(&database.url(), words);
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
