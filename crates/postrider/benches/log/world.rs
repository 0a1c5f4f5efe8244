//! The server, its databases, and the events that fill them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use postrider::log::{Reader, ReaderOptions, Start};
use postrider::schema::{self, Install};
use postrider_testkit::bench::print_facts;
use postrider_testkit::{Database, PostgresServer, Settings, Template, Version};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// One event per number `n`: about 200 bytes of payload, 10,000 keys.
pub(crate) const SAMPLE: &str = r#"
    'order.paid'::text as type, 'order-' || n as entity, 'customer-' || n % 10000 as key, 'tenant-' || n % 100 as tenant,
    ('{"order":' || n || ',"customer":"customer-' || n % 10000 || '","total":' || n % 9973 || ',"currency":"EUR","note":"'
        || repeat('x', 120) || '"}')::json as payload"#;

/// The columns of a bare insert, and what goes into them from a sample `e`: the same as what `emit` writes.
pub(crate) const BARE: (&str, &str) = (
    "slot, lane, id, type, entity, key, tenant, payload",
    r#"0, (hashtextextended(e.key collate "C", 0) & (postrider.lanes() - 1))::smallint, gen_random_uuid(),
       e.type, e.entity, e.key, e.tenant, e.payload"#,
);

/// A private server that is really durable.
pub(crate) struct World {
    pub(crate) server: PostgresServer,
}

impl World {
    pub(crate) async fn start() -> Result<Self> {
        let server = PostgresServer::private(Version::V15, Settings::durable()).await?;
        print_facts(&server).await?;
        Ok(Self { server })
    }

    /// A fresh database with the schema.
    pub(crate) async fn database(&self) -> Result<Database> {
        let template = Template::new("postrider", |url| async move {
            let mut connection = PgConnection::connect(&url).await?;
            schema::install(&mut connection, &Install::default()).await?;
            connection.close().await?;
            Ok(())
        });
        self.server.database(&template).await
    }
}

/// Fills the log in one transaction.
pub(crate) async fn fill(database: &Database, events: u32) -> Result<()> {
    let mut connection = database.connect().await?;
    run(&mut connection, &bare_insert(events)).await?;
    run(&mut connection, "vacuum analyze").await?;
    run(&mut connection, "checkpoint").await
}

/// The statement that inserts so many sample events without `emit`.
pub(crate) fn bare_insert(events: u32) -> String {
    let (columns, values) = BARE;
    format!(
        "insert into postrider.events ({columns}) select {values} from (select {SAMPLE} from generate_series(1, {events}) n) e"
    )
}

/// Runs a statement that needs no answer.
pub(crate) async fn run(connection: &mut PgConnection, statement: &str) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(statement))
        .execute(connection)
        .await
        .with_context(|| statement.chars().take(200).collect::<String>())?;
    Ok(())
}

pub(crate) fn options(database: &Database) -> Result<PgConnectOptions> {
    Ok(database.url().parse()?)
}

/// How many events a batch or a table holds, for arithmetic.
pub(crate) fn count(number: usize) -> Result<f64> {
    Ok(f64::from(u32::try_from(number)?))
}

/// Events per second of a reader that begins at the beginning, under a sink of its own, and delivers to nobody.
pub(crate) async fn read_all(database: &Database, sink: &str, events: u32) -> Result<f64> {
    let reading = ReaderOptions { start: Start::Earliest, page: 1000, ..ReaderOptions::new(sink) };
    let begin = Instant::now();
    let mut reader = Reader::open(options(database)?.into(), reading).await?;
    let mut found = 0;
    while found < usize::try_from(events)? {
        let batch = reader.next().await?;
        found += batch.len();
        reader.settle(&batch).await?;
    }
    let seconds = begin.elapsed().as_secs_f64();
    reader.close().await?;
    ensure!(found == usize::try_from(events)?, "{found} events were read, {events} are there");
    Ok(f64::from(events) / seconds)
}

/// A reader in a task of its own that settles everything at once.
pub(crate) struct Running {
    /// When each batch came, and how many events it had.
    pub(crate) batches: mpsc::UnboundedReceiver<(Instant, usize)>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<()>>,
}

impl Running {
    pub(crate) async fn start(database: &Database, sink: &str) -> Result<Self> {
        let mut reader = Reader::open(options(database)?.into(), ReaderOptions::new(sink)).await?;
        let (sender, batches) = mpsc::unbounded_channel();
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            loop {
                let batch = tokio::select! {
                    batch = reader.next() => batch?,
                    _ = &mut stopped => break,
                };
                // Nobody has to be interested.
                let _ = sender.send((Instant::now(), batch.len()));
                reader.settle(&batch).await?;
            }
            Ok(reader.close().await?)
        });
        Ok(Self { batches, stop, task })
    }

    /// The next batch, or what ended the reader.
    pub(crate) async fn next(&mut self) -> Result<(Instant, usize)> {
        match tokio::time::timeout(Duration::from_secs(30), self.batches.recv())
            .await
            .context("no event came")?
        {
            Some(batch) => Ok(batch),
            None => Err((&mut self.task).await?.err().unwrap_or_else(|| anyhow!("nobody told it to")))
                .context("the reader has ended"),
        }
    }

    /// How many events have come since the last call.
    pub(crate) fn drain(&mut self) -> usize {
        std::iter::from_fn(|| self.batches.try_recv().ok()).map(|(_, events)| events).sum()
    }

    pub(crate) async fn stop(self) -> Result<()> {
        let _ = self.stop.send(());
        self.task.await?
    }
}
