//! Writers that go on whatever happens to the server, and the books about what they wrote.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use postrider_testkit::Ledger;
use sqlx::{Connection as _, PgConnection};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::support::{PATIENCE, Probe};

/// Every writer has keys of its own and numbers their events.
const KEYS: i32 = 5;

/// Some hundred events per second and writer, in small transactions.
pub struct Load {
    ledger: Arc<Ledger>,
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
    marks: u64,
}

impl Load {
    pub fn start(url: &str, writers: u32) -> Self {
        Self::with(url, writers, "set synchronous_commit = on")
    }

    /// Runs something first on every connection.
    pub fn with(url: &str, writers: u32, setting: &'static str) -> Self {
        let (ledger, stop) = (Arc::new(Ledger::new()), Arc::new(AtomicBool::new(false)));
        let writer = |number| {
            let (url, ledger, stop) = (url.to_owned(), Arc::clone(&ledger), Arc::clone(&stop));
            tokio::spawn(async move { write(&url, number, setting, &ledger, &stop).await })
        };
        let tasks = (0..writers).map(writer).collect();
        Self { ledger, stop, tasks, marks: 0 }
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Writes an event now, and answers how long it took to arrive.
    pub async fn mark(&mut self, connection: &mut PgConnection, probe: &Probe) -> Duration {
        self.marks += 1;
        let id: Uuid = sqlx::query_scalar("select postrider.emit($1::text, '{}', key => 'mark')")
            .bind(self.marks.to_string())
            .fetch_one(connection)
            .await
            .unwrap();
        let begun = Instant::now();
        self.ledger.attempt(id, "mark", self.marks);
        self.ledger.commit(id);
        let id = id.to_string();
        while !probe.has(&id) {
            assert!(
                begun.elapsed() < PATIENCE,
                "mark {} has not come, {} of {}",
                self.marks,
                probe.count(),
                self.ledger.committed()
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        begun.elapsed()
    }

    /// Waits until so many more events are committed.
    pub async fn more(&self, events: usize) {
        let (goal, begun) = (self.ledger.committed() + events, Instant::now());
        while self.ledger.committed() < goal {
            assert!(begun.elapsed() < PATIENCE, "the writers stand still");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Ends the writers; what they wrote is final then.
    pub async fn stop(self) -> Arc<Ledger> {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        self.ledger
    }
}

async fn write(url: &str, writer: u32, setting: &'static str, ledger: &Ledger, stop: &AtomicBool) {
    let mut connection = None;
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let Some(open) = &mut connection else {
            connection = connect(url, setting).await;
            if connection.is_none() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            continue;
        };
        number += 1;
        if transaction(open, writer, number, ledger).await.is_err() {
            connection = None;
        }
        tokio::time::sleep(Duration::from_millis(4)).await;
    }
}

async fn connect(url: &str, setting: &'static str) -> Option<PgConnection> {
    let mut connection = PgConnection::connect(url).await.ok()?;
    sqlx::raw_sql(setting).execute(&mut connection).await.ok()?;
    Some(connection)
}

async fn transaction(
    connection: &mut PgConnection,
    writer: u32,
    number: u64,
    ledger: &Ledger,
) -> Result<(), sqlx::Error> {
    let mut transaction = connection.begin().await?;
    let events: Vec<(Uuid, String)> = sqlx::query_as(
        "select postrider.emit($2::text, '{}', key => k.key), k.key
         from (select format('w%s-%s', $1, n) as key from generate_series(1, $3) n) k",
    )
    .bind(i64::from(writer))
    .bind(number.to_string())
    .bind(KEYS)
    .fetch_all(&mut *transaction)
    .await?;
    for (id, key) in &events {
        ledger.attempt(*id, key, number);
    }
    let committed = transaction.commit().await;
    for (id, _) in &events {
        match committed {
            Ok(()) => ledger.commit(*id),
            Err(_) => ledger.in_doubt(*id),
        }
    }
    committed
}
