//! People at work in the issue tracker: every change and its event in one transaction. Some transactions change their mind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use postrider::Event;
use rand::random_range;
use serde::Serialize;
use sqlx::{PgPool, PgTransaction};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::books::Books;

pub(crate) const WRITERS: u32 = 4;

/// One in so many transactions is rolled back after its event was emitted.
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

/// What somebody does to an issue.
#[derive(Serialize)]
#[serde(untagged)]
enum Change {
    Opened { title: &'static str },
    Commented { author: &'static str, body: &'static str },
    Assigned { assignee: &'static str },
    Closed { state: &'static str },
}

impl Change {
    fn event_type(&self) -> &'static str {
        match self {
            Self::Opened { .. } => "issue.opened",
            Self::Commented { .. } => "comment.added",
            Self::Assigned { .. } => "issue.assigned",
            Self::Closed { .. } => "issue.closed",
        }
    }
}

async fn write(pool: PgPool, books: Arc<Books>, stop: Arc<AtomicBool>) -> anyhow::Result<()> {
    const MOST_OPEN: usize = 20;
    let mut open: Vec<Issue> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let is_new = open.is_empty() || (open.len() < MOST_OPEN && random_range(0..4) == 0);
        let mut tx = pool.begin().await?;
        let (issue, change) = if is_new {
            open_issue(&mut tx).await?
        } else {
            let issue = open.swap_remove(random_range(0..open.len()));
            (issue, work_on(&mut tx, issue).await?)
        };
        let key = issue.id.to_string();
        let event = Event::new(change.event_type(), &change)?.key(&key).entity("issue");
        let id = postrider::emit(&mut tx, &event).await?;
        books.written(id, &key, issue.events);
        if random_range(0..ROLLED_BACK) == 0 {
            tx.rollback().await?;
            // The issue is as it was before, or never was.
            if !is_new {
                open.push(issue);
            }
        } else {
            tx.commit().await?;
            books.committed(id);
            if !matches!(change, Change::Closed { .. }) {
                open.push(Issue { events: issue.events + 1, ..issue });
            }
        }
        sleep(Duration::from_millis(random_range(5..30))).await;
    }
    Ok(())
}

async fn open_issue(tx: &mut PgTransaction<'_>) -> sqlx::Result<(Issue, Change)> {
    let title = any(&TITLES);
    let id = sqlx::query_scalar("insert into issues (title) values ($1) returning id")
        .bind(title)
        .fetch_one(&mut **tx)
        .await?;
    Ok((Issue { id, events: 0 }, Change::Opened { title }))
}

async fn work_on(tx: &mut PgTransaction<'_>, issue: Issue) -> sqlx::Result<Change> {
    let id = issue.id;
    let change = match random_range(0..5) {
        0 => {
            sqlx::query("update issues set state = 'closed' where id = $1")
                .bind(id)
                .execute(&mut **tx)
                .await?;
            Change::Closed { state: "closed" }
        }
        1 => {
            let assignee = any(&PEOPLE);
            sqlx::query("update issues set assignee = $2 where id = $1")
                .bind(id)
                .bind(assignee)
                .execute(&mut **tx)
                .await?;
            Change::Assigned { assignee }
        }
        _ => {
            let (author, body) = (any(&PEOPLE), any(&REMARKS));
            sqlx::query("insert into comments (issue_id, author, body) values ($1, $2, $3)")
                .bind(id)
                .bind(author)
                .bind(body)
                .execute(&mut **tx)
                .await?;
            Change::Commented { author, body }
        }
    };
    Ok(change)
}

fn any(words: &[&'static str]) -> &'static str {
    words[random_range(0..words.len())]
}
