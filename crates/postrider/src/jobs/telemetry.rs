//! What is counted and timed about a worker, through the `metrics` facade.

use std::collections::HashMap;
use std::time::Instant;

use metrics::{Counter, Gauge, Histogram};
use sqlx::PgConnection;

use super::Outcome;
use super::error::Result;
use super::job::Job;
use super::unsettled::Ended;

const ENDS: [&str; 5] = ["done", "retried", "dead", "snoozed", "cancelled"];

/// The metrics of one kind of job.
#[derive(Debug)]
struct Kind {
    begun: Counter,
    ends: Vec<(&'static str, Counter)>,
    handling: Histogram,
}

impl Kind {
    fn new(kind: &str) -> Self {
        // Every end from the start at 0: an alarm on an increase would not see a counter that appears with 1.
        let end = |outcome: &'static str| {
            let labels = [("kind", kind.to_owned()), ("outcome", outcome.to_owned())];
            (outcome, metrics::counter!("postrider_jobs_ended_total", &labels))
        };
        let labels = [("kind", kind.to_owned())];
        Self {
            begun: metrics::counter!("postrider_jobs_begun_total", &labels),
            ends: ENDS.map(end).into(),
            handling: metrics::histogram!("postrider_jobs_handling_seconds", &labels),
        }
    }
}

/// The metrics of one worker.
#[derive(Debug)]
pub(super) struct Telemetry {
    kinds: HashMap<String, Kind>,
    running: Gauge,
    waiting: Gauge,
    refused: Counter,
    taken_over: Counter,
}

impl Telemetry {
    pub(super) fn new<'a>(kinds: impl Iterator<Item = &'a String>) -> Self {
        metrics::describe_counter!("postrider_jobs_begun_total", "Attempts that were begun, by kind");
        metrics::describe_counter!(
            "postrider_jobs_ended_total",
            "Attempts that have ended, by kind and outcome"
        );
        metrics::describe_histogram!("postrider_jobs_handling_seconds", "How long handlers took, by kind");
        metrics::describe_gauge!("postrider_jobs_running", "Handlers at work in this process");
        metrics::describe_gauge!(
            "postrider_jobs_waiting",
            "Jobs that this process has claimed and not begun"
        );
        metrics::describe_counter!(
            "postrider_jobs_refused_total",
            "Results that came too late: the lease had run out, and others have the jobs"
        );
        metrics::describe_counter!(
            "postrider_jobs_taken_over_total",
            "Jobs of workers that vanished, which this one has put back"
        );
        metrics::describe_gauge!(
            "postrider_jobs_queued",
            "Jobs of a queue by state; ready ones are counted up to 10000 a priority"
        );
        Self {
            kinds: kinds.map(|kind| (kind.clone(), Kind::new(kind))).collect(),
            running: metrics::gauge!("postrider_jobs_running"),
            waiting: metrics::gauge!("postrider_jobs_waiting"),
            refused: metrics::counter!("postrider_jobs_refused_total"),
            taken_over: metrics::counter!("postrider_jobs_taken_over_total"),
        }
    }

    pub(super) fn begun(&self, attempt: &Attempt) {
        if let Some(kind) = self.kinds.get(&attempt.kind) {
            kind.begun.increment(1);
        }
    }

    /// How an attempt ended, as far as it has: what is in doubt, and what came too late, the next one counts.
    pub(super) fn ended(&self, attempt: &Attempt, ended: &Ended) {
        let Some(kind) = self.kinds.get(&attempt.kind) else { return };
        kind.handling.record(attempt.begun.elapsed());
        let result = match ended {
            Ended::Said(result) | Ended::Settled(result) => result,
            Ended::Refused => return self.refused(),
            Ended::Doubtful(_) | Ended::Untouched => return,
        };
        let outcome = match result {
            Ok(Outcome::Done | Outcome::DoneWith(_)) => "done",
            Ok(Outcome::Snooze(_)) => "snoozed",
            Ok(Outcome::Cancel) => "cancelled",
            Ok(Outcome::Dead(_)) => "dead",
            Ok(Outcome::Retry { .. }) | Err(_) if attempt.is_last => "dead",
            Ok(Outcome::Retry { .. }) | Err(_) => "retried",
        };
        for (_, counter) in kind.ends.iter().filter(|(of, _)| *of == outcome) {
            counter.increment(1);
        }
    }

    pub(super) fn in_hand(&self, running: usize, waiting: usize) {
        let figure = |number: usize| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
        self.running.set(figure(running));
        self.waiting.set(figure(waiting));
    }

    pub(super) fn refused(&self) {
        self.refused.increment(1);
    }

    pub(super) fn taken_over(&self, jobs: u64) {
        self.taken_over.increment(jobs);
    }
}

/// An attempt that begins: what has to be known of it when its job is gone.
#[derive(Debug, Clone)]
pub(super) struct Attempt {
    kind: String,
    is_last: bool,
    begun: Instant,
}

impl<T> From<&Job<T>> for Attempt {
    fn from(job: &Job<T>) -> Self {
        Self { kind: job.kind.clone(), is_last: job.attempt >= job.max_attempts, begun: Instant::now() }
    }
}

/// How much lies in these queues.
pub(super) async fn measure(connection: &mut PgConnection, queues: &[String]) -> Result<()> {
    let rows: Vec<(String, i64, i64, i64, i64, i64)> = sqlx::query_as(
        "select queue, ready, running, scheduled, behind_key, dead from postrider.job_stats where queue = any ($1)",
    )
    .bind(queues)
    .fetch_all(connection)
    .await?;
    for (queue, ready, running, scheduled, behind_key, dead) in rows {
        let states = [
            ("ready", ready),
            ("running", running),
            ("scheduled", scheduled),
            ("behind_key", behind_key),
            ("dead", dead),
        ];
        for (state, jobs) in states {
            let labels = [("queue", queue.clone()), ("state", state.to_owned())];
            let figure = f64::from(u32::try_from(jobs).unwrap_or(u32::MAX));
            metrics::gauge!("postrider_jobs_queued", &labels).set(figure);
        }
    }
    Ok(())
}
