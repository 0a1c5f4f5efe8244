//! People at work in the issue tracker: they write rows, and every change becomes an event. Some transactions change their mind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::ensure;
use rand::random_range;
use sqlx::{PgPool, PgTransaction};
use tokio::task::JoinSet;
use tokio::time::sleep;
use uuid::Uuid;

use crate::books::Books;

pub(crate) const WRITERS: u32 = 4;

/// One in so many transactions is rolled back after its event was recorded.
pub(crate) const ROLLED_BACK: u32 = 8;

const PEOPLE: [&str; 6] = ["ada", "alan", "edna", "joan", "ken", "tony"];
const TITLES: [&str; 6] = [
    "Login fails on Mondays",
    "The cat sits on the server",
    "Export loses its last row",
    "Dark mode is too bright",
    "Search finds too much",
    "Printer prints pancakes",
];
const REMARKS: [&str; 5] = ["me too", "works for me", "fixed in main", "cannot reproduce", "is it Monday?"];

/// The writers at work.
pub(crate) struct Load {
    writers: JoinSet<anyhow::Result<()>>,
    stop: Arc<AtomicBool>,
}

impl Load {
    pub(crate) fn start(pool: &PgPool, books: &Arc<Books>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut writers = JoinSet::new();
        for _ in 0..WRITERS {
            writers.spawn(write(pool.clone(), Arc::clone(books), Arc::clone(&stop)));
        }
        Self { writers, stop }
    }

    /// Waits for a writer to fail.
    pub(crate) async fn failure(&mut self) -> anyhow::Error {
        match self.writers.join_next().await {
            Some(Ok(Err(error))) => error,
            Some(Err(error)) => error.into(),
            Some(Ok(Ok(()))) | None => std::future::pending().await,
        }
    }

    /// Lets every writer finish the transaction it is in.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.writers.join_next().await {
            ended??;
        }
        Ok(())
    }
}

/// An issue, and how many events it has had.
#[derive(Clone, Copy)]
struct Issue {
    id: i64,
    events: u64,
}

/// What somebody has done to an issue.
struct Done {
    /// Rows that are not as before: none if you were there first.
    changed: u64,
    is_closed: bool,
}

async fn write(pool: PgPool, books: Arc<Books>, stop: Arc<AtomicBool>) -> anyhow::Result<()> {
    const MOST_OPEN: usize = 20;
    let mut open: Vec<Issue> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let is_new = open.is_empty() || (open.len() < MOST_OPEN && random_range(0..4) == 0);
        let mut tx = pool.begin().await?;
        let (issue, done) = if is_new {
            (open_issue(&mut tx).await?, Done { changed: 1, is_closed: false })
        } else {
            let issue = open.swap_remove(random_range(0..open.len()));
            (issue, work_on(&mut tx, issue).await?)
        };
        let event = made(&mut tx, done.changed).await?;
        if let Some(id) = event {
            books.written(id, &issue.id.to_string(), issue.events);
        }
        if random_range(0..ROLLED_BACK) == 0 {
            tx.rollback().await?;
            // The issue is as it was before, or never was.
            if !is_new {
                open.push(issue);
            }
        } else {
            tx.commit().await?;
            if let Some(id) = event {
                books.committed(id);
            }
            if !done.is_closed {
                open.push(Issue { events: issue.events + done.changed, ..issue });
            }
        }
        sleep(Duration::from_millis(random_range(5..30))).await;
    }
    Ok(())
}

/// The event that the open transaction has made of its change. Nobody asked for it: the triggers made it.
async fn made(tx: &mut PgTransaction<'_>, changed: u64) -> anyhow::Result<Option<Uuid>> {
    let events: Vec<Uuid> =
        sqlx::query_scalar("select id from postrider.emitted()").fetch_all(&mut **tx).await?;
    ensure!(
        u64::try_from(events.len())? == changed,
        "{} events were made of {changed} changes: capture is at fault",
        events.len()
    );
    Ok(events.first().copied())
}

async fn open_issue(tx: &mut PgTransaction<'_>) -> sqlx::Result<Issue> {
    let id = sqlx::query_scalar("insert into issues (title) values ($1) returning id")
        .bind(any(&TITLES))
        .fetch_one(&mut **tx)
        .await?;
    Ok(Issue { id, events: 0 })
}

async fn work_on(tx: &mut PgTransaction<'_>, issue: Issue) -> sqlx::Result<Done> {
    const CLOSE: &str = "update issues set state = 'closed' where id = $1 and state <> 'closed'";
    const ASSIGN: &str = "update issues set assignee = $2 where id = $1 and assignee is distinct from $2";
    const COMMENT: &str =
        "insert into comments (issue_id, author, body) select id, $2, $3 from issues where id = $1";
    let what = random_range(0..5);
    let query = match what {
        0 => sqlx::query(CLOSE).bind(issue.id),
        1 => sqlx::query(ASSIGN).bind(issue.id).bind(any(&PEOPLE)),
        _ => sqlx::query(COMMENT).bind(issue.id).bind(any(&PEOPLE)).bind(any(&REMARKS)),
    };
    let changed = query.execute(&mut **tx).await?.rows_affected();
    Ok(Done { changed, is_closed: what == 0 })
}

fn any(words: &[&'static str]) -> &'static str {
    words[random_range(0..words.len())]
}
