//! What operators are told by way of the database, where anybody may ask, also when this relay cannot be reached.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::pending;
use std::time::{Duration, Instant};

use postrider::log::{self, Mood, Report, lease};
use sqlx::PgPool;
use uuid::Uuid;

use super::{Fittings, Pipeline};
use crate::face::Face;
use crate::status::State;

/// The heartbeat takes along what was told last; this is as old as it may be then.
const OFTEN: Duration = Duration::from_millis(250);

/// What is on its way to the sink.
pub(super) struct Sending {
    pub(super) since: Instant,
    pub(super) seqs: Vec<i64>,
    pub(super) lanes: BTreeSet<i16>,
}

impl Pipeline {
    /// Hands the reader what its next heartbeat is to say.
    pub(super) fn tell(&mut self, state: &State) {
        let mood = match state.mood() {
            // Who paused it waits for this word: it comes when nothing can arrive any more.
            Mood::Paused if self.delivering.is_some() => Mood::Running,
            mood => mood,
        };
        if self.told.is_some_and(|(at, before)| before == mood && at.elapsed() < OFTEN) {
            return;
        }
        self.told = Some((Instant::now(), mood));
        let (sending, sending_since) = match &self.sending {
            Some(sending) => (sending.seqs.clone(), Some(sending.since)),
            None => (Vec::new(), None),
        };
        let unsettled = self.window.unsettled_seqs().take(Report::MOST).collect();
        self.reader.report(Report { mood, sending, sending_since, unsettled, ..report(&self.face, state) });
    }
}

/// How a sink is.
fn report(face: &Face, state: &State) -> Report {
    let since = face.status().since.elapsed().ok().and_then(|age| Instant::now().checked_sub(age));
    let trouble = state.trouble().map(|trouble| match state.advice() {
        Some(advice) => format!("{trouble}; {advice}"),
        None => trouble,
    });
    Report { mood: state.mood(), since, trouble, ..Report::default() }
}

/// What a pipeline says that cannot read, and has no heartbeat to say it with.
#[derive(Default)]
pub(super) struct Complaint(Option<Uuid>);

impl Complaint {
    /// Says that it failed and why; it stands for so long. A database that does not take it is no news to anybody.
    pub(super) async fn make(&mut self, fittings: &Fittings, sink: &str, face: &Face, stands: Duration) {
        let state = face.state();
        if state.mood() != Mood::Failed {
            return;
        }
        let report = report(face, &state);
        let id = *self.0.get_or_insert_with(Uuid::now_v7);
        let made = async {
            let mut connection = fittings.pool.acquire().await?;
            let sink: Option<i32> = sqlx::query_scalar("select sink from postrider.sinks where name = $1")
                .bind(sink)
                .fetch_optional(&mut *connection)
                .await?;
            match sink {
                Some(sink) => {
                    let relay = &fittings.relay.name;
                    lease::heartbeat_with(&mut connection, id, relay, sink, stands, &report).await
                }
                None => Ok(()),
            }
        };
        let made: log::error::Result<()> = made.await;
        if let Err(error) = made {
            tracing::debug!(sink, %error, "the database could not be told");
        }
    }

    /// Withdraws what was said when it is `proven` that it reads again, or after so long. Where this does not arrive, what was said runs out.
    pub(super) async fn withdraw_after(
        &mut self,
        proven: impl Future<Output = ()>,
        probation: Duration,
        pool: &PgPool,
    ) -> Infallible {
        if let Some(id) = self.0 {
            let _ = tokio::time::timeout(probation, proven).await;
            self.0 = None;
            if let Ok(mut connection) = pool.acquire().await {
                let _ = lease::release(&mut connection, id).await;
            }
        }
        pending().await
    }
}
