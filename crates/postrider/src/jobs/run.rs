//! A worker at work: who does what, and in which order it stops.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinHandle, JoinSet};
use uuid::Uuid;

use super::beat::{Identity, Name, Pulse, beat};
use super::claimer::Claimer;
use super::error::Result;
use super::floor::{Floor, Shared};
use super::link::Link;
use super::settler::settle;
use super::strangers::Strangers;
use super::telemetry::Telemetry;
use super::tend::tend;
use super::worker::{Worker, WorkerOptions};

/// How often it is looked for results that have waited long enough for the rest of their claim.
const TICK: Duration = Duration::from_millis(10);
/// So long a worker that stops tries to say how jobs ended, even where the time to drain is over: it takes a moment, if the database is there.
const LAST_WORDS: Duration = Duration::from_secs(2);

pub(super) async fn run(worker: Worker, stop: impl Future<Output = ()> + Send) -> Result<()> {
    let Worker { pool, options, handlers, crons, states } = worker;
    let server = pool.connect_options();
    let link = |what| Link::new(&server, what);
    let mut claims = link("claiming");
    let mut stop = pin!(stop);
    let lease = tokio::select! {
        lease = first_lease(&mut claims, &options) => lease?,
        () = &mut stop => return Ok(()),
    };
    let first = Uuid::now_v7();
    let (claimant, claimant_now) = watch::channel(first);
    let (claimants, all_claimants) = watch::channel(vec![Name { id: first, claims: None }]);
    let (safe_until, is_safe) = watch::channel(Instant::now());
    let (cancelled, cancellations) = watch::channel(Arc::new(HashSet::new()));
    let (stopping, is_stopping) = watch::channel(false);
    let (wants, asked) = mpsc::channel(1);
    let (bring, mut brought) = mpsc::channel(1);
    let (settlements, to_settle) = mpsc::unbounded_channel();

    let mut helpers = JoinSet::new();
    let identity = Identity { name: options.name.clone(), queues: options.queues.clone(), lease };
    helpers.spawn(beat(link("heartbeat"), identity, all_claimants, Pulse { safe_until, cancelled }));
    let telemetry = Arc::new(Telemetry::new(handlers.keys()));
    helpers.spawn(tend(link("tending"), lease, crons, options.queues.clone(), Arc::clone(&telemetry)));
    let mut settler = tokio::spawn(settle(link("settling"), Arc::clone(&telemetry), to_settle));
    let claimer = Claimer {
        link: claims,
        options: (*server).clone(),
        queues: options.queues.clone(),
        idle: options.idle,
        lease: options.lease,
        hint: options.hint,
        claimant,
        failed: None,
        stopping: is_stopping,
    };
    let claimer = tokio::spawn(claimer.run(asked, bring));

    let shared = Shared {
        pool: pool.clone(),
        handlers,
        states: Arc::new(states),
        cancellations,
        timeout: options.timeout,
        silence: options.silence,
        telemetry,
        strangers: Strangers::default(),
    };
    let mut floor =
        Floor::new(shared, &options, is_safe.clone(), wants, settlements, claimant_now, claimants);
    let mut tick = tokio::time::interval(TICK);
    let mut is_safe = is_safe;
    let failed = loop {
        floor.turn();
        tokio::select! {
            ended = floor.ended() => floor.settle(ended),
            Some(jobs) = brought.recv() => floor.take(jobs),
            _ = tick.tick() => floor.flush(),
            Ok(()) = is_safe.changed() => {}
            () = &mut stop => break None,
            // It ends by itself only if something is wrong.
            ended = &mut settler => break Some(ended),
        }
    };

    let told_to_stop = Instant::now();
    stopping.send_replace(true);
    floor.stop();
    let drained = async {
        loop {
            tokio::select! {
                // Until the claimer is gone, which may bring a last batch.
                jobs = brought.recv() => match jobs {
                    Some(jobs) => floor.give_back(jobs),
                    None if floor.is_empty() => break,
                    None => { let ended = floor.ended().await; floor.settle(ended); }
                },
                ended = floor.ended() => floor.settle(ended),
                _ = tick.tick() => floor.flush(),
            }
        }
    };
    let in_time = tokio::time::timeout(options.drain, drained).await.is_ok();
    if !in_time {
        tracing::warn!("handlers did not end in time; their jobs are given back");
        floor.abandon().await;
    }
    claimer.abort();
    let names = floor.leave();
    let result = match failed {
        Some(ended) => ended,
        None => stored(settler, options.drain.saturating_sub(told_to_stop.elapsed()).max(LAST_WORDS)).await,
    };
    helpers.abort_all();
    if let Ok(left) = tokio::time::timeout(LAST_WORDS, leave(link("leaving"), names)).await {
        left?;
    }
    result.unwrap_or_else(|error| {
        tracing::error!(%error, "the task that stores results ended");
        Ok(())
    })
}

/// Waits until everything is stored, for so long: a worker that is told to stop does not wait for a database that is away.
async fn stored(mut settler: JoinHandle<Result<()>>, longest: Duration) -> Result<Result<()>, JoinError> {
    let Ok(ended) = tokio::time::timeout(longest, &mut settler).await else {
        settler.abort();
        tracing::warn!(
            "how jobs ended could not be stored before the worker had to end; they run again when the lease has run out"
        );
        return Ok(Ok(()));
    };
    ended
}

/// Connects for the first time. A server that is away is waited for; what is wrong otherwise is said at once.
async fn first_lease(link: &mut Link, options: &WorkerOptions) -> Result<Duration> {
    loop {
        match lease(link, options).await {
            Err(error) if error.is_transient() => link.lost(&error).await,
            known => return known,
        }
    }
}

async fn lease(link: &mut Link, options: &WorkerOptions) -> Result<Duration> {
    let connection = link.get().await?;
    if let Some(lease) = options.lease {
        return Ok(lease);
    }
    let shortest = sqlx::query_scalar("select postrider.job_lease($1)").bind(&options.queues);
    Ok(Duration::from_secs_f64(shortest.fetch_one(connection).await?))
}

/// Nothing is claimed under these names any more.
async fn leave(mut link: Link, names: Vec<Uuid>) -> Result<()> {
    // A database that is away finds out by itself.
    let Ok(connection) = link.get().await else { return Ok(()) };
    for name in names {
        sqlx::query("select postrider.end_job_worker($1)").bind(name).execute(&mut *connection).await?;
    }
    Ok(())
}
