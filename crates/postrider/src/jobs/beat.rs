//! The heartbeat: as long as it is heard, what the worker has claimed is its own.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use uuid::Uuid;

use super::error::Result;
use super::link::Link;

const BEAT: &str = "select postrider.extend_jobs($1, make_interval(secs => $2), $3, $4, $5)";

/// What is said with every beat.
#[derive(Debug, Clone)]
pub(super) struct Identity {
    pub(super) name: String,
    pub(super) queues: Vec<String>,
    pub(super) lease: Duration,
}

/// A name under which something is claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) id: Uuid,
    /// What is kept alive under it: everything, or, of a name under which an answer may have been lost, what this worker knows of. Or the
    /// jobs that nobody here has heard of would hang for as long as any other of that name takes.
    pub(super) claims: Option<Vec<i64>>,
}

/// What the heartbeat tells the others.
#[derive(Debug)]
pub(super) struct Pulse {
    /// Until when, by this machine's monotonic clock, nobody can have taken anything over.
    pub(super) safe_until: watch::Sender<Instant>,
    pub(super) cancelled: watch::Sender<Arc<HashSet<i64>>>,
}

/// Beats for ever, for each of the names under which something is claimed.
pub(super) async fn beat(
    mut link: Link,
    identity: Identity,
    mut claimants: watch::Receiver<Vec<Name>>,
    pulse: Pulse,
) {
    loop {
        let began = Instant::now();
        let names = claimants.borrow_and_update().clone();
        match once(&mut link, &identity, &names).await {
            Ok(cancelled) => {
                // From before it was sent: the server's lease begins later than that.
                pulse.safe_until.send_replace(began + identity.lease);
                pulse.cancelled.send_if_modified(|known| {
                    let is_news = **known != cancelled;
                    if is_news {
                        *known = Arc::new(cancelled);
                    }
                    is_news
                });
            }
            Err(error) => {
                link.lost(&error).await;
                continue;
            }
        }
        tokio::select! {
            () = tokio::time::sleep((identity.lease / 3).saturating_sub(began.elapsed()).max(Duration::from_millis(50))) => {}
            changed = claimants.changed() => if changed.is_err() { return },
        }
    }
}

async fn once(link: &mut Link, identity: &Identity, names: &[Name]) -> Result<HashSet<i64>> {
    let connection = link.get().await?;
    let mut cancelled = HashSet::new();
    for name in names {
        let ids: Vec<i64> = sqlx::query_scalar(BEAT)
            .bind(name.id)
            .bind(identity.lease.as_secs_f64())
            .bind(&identity.name)
            .bind(&identity.queues)
            .bind(name.claims.as_deref())
            .fetch_all(&mut *connection)
            .await?;
        cancelled.extend(ids);
    }
    Ok(cancelled)
}
