//! What a pipeline asks of the database beside reading and settling: one thing at a time, through the relay's pool.

use std::time::Duration;

use postrider::log::error::Result;
use postrider::log::parking::{self, Attempt, Due, Holder};
use postrider::log::{Error, Servers};
use sqlx::PgPool;
use uuid::Uuid;

use super::Fittings;
use super::recent::Known;
use crate::relay;
use crate::sink::BoxFuture;

/// What came of an errand.
#[derive(Debug)]
pub(super) enum Errand {
    /// News of the sink.
    News {
        /// Somebody paused it.
        paused: bool,
        /// When the next parked event of our lanes is due.
        due_in: Option<Duration>,
    },
    /// The sink is gone.
    Forgotten,
    /// Parked events that are due.
    Due(Vec<Due>),
    /// None are.
    NothingDue {
        /// When the next one of our lanes is.
        due_in: Option<Duration>,
    },
    /// What was tried again is stored; nothing is parked of these keys any more.
    Resolved(Vec<String>),
    /// These were delivered, and this server has never had them.
    TakenBack(Vec<Uuid>),
    /// Something is parked of these keys, in these lanes with the epochs they came with.
    Held(Vec<(i16, i64)>, Vec<String>),
}

pub(super) type Running = BoxFuture<'static, Result<Errand>>;

/// An answer that never comes must not keep the next question from being asked: with strict ordering nothing is sent before it is
/// known what is parked.
fn within(patience: Duration, errand: impl Future<Output = Result<Errand>> + Send + 'static) -> Running {
    Box::pin(async move {
        let in_time = tokio::time::timeout(patience, errand).await;
        in_time.unwrap_or_else(|_| Err(Error::NoAnswer { seconds: patience.as_secs() }))
    })
}

/// How errands are run.
#[derive(Debug, Clone)]
pub(super) struct Desk {
    pool: PgPool,
    patience: Duration,
    servers: Servers,
    /// Which of them the pool connects to.
    place: Option<usize>,
}

impl Desk {
    pub(super) fn new(fittings: &Fittings) -> Self {
        let (pool, relay) = (fittings.pool.clone(), &fittings.relay);
        Self { pool, patience: relay.log.patience, servers: relay.database.clone(), place: None }
    }

    /// After a failover the reader has found another server. A pool knows one, and asks which at each attempt to connect.
    pub(super) fn follow(&mut self) {
        let place = Some(self.servers.place());
        if self.place != place {
            self.place = place;
            self.pool.set_connect_options(relay::parking(&self.servers));
        }
    }
}

pub(super) fn news(desk: Desk, holder: Holder, lanes: Vec<i16>, strict: bool) -> Running {
    within(desk.patience, async move {
        let mut connection = desk.pool.acquire().await?;
        let paused = sqlx::query_scalar("select paused_at is not null from postrider.sinks where sink = $1")
            .bind(holder.sink)
            .fetch_optional(&mut *connection)
            .await?;
        let Some(paused) = paused else { return Ok(Errand::Forgotten) };
        if !strict {
            parking::release(&mut connection, holder, &lanes).await?;
        }
        let due_in = parking::due_in(&mut connection, holder, &lanes).await?;
        Ok(Errand::News { paused, due_in })
    })
}

pub(super) fn due(desk: Desk, holder: Holder, lanes: Vec<i16>, strict: bool, limit: u32) -> Running {
    within(desk.patience, async move {
        let mut connection = desk.pool.acquire().await?;
        let due = parking::due(&mut connection, holder, &lanes, strict, limit).await?;
        if !due.is_empty() {
            return Ok(Errand::Due(due));
        }
        Ok(Errand::NothingDue { due_in: parking::due_in(&mut connection, holder, &lanes).await? })
    })
}

pub(super) fn resolve(desk: Desk, holder: Holder, attempts: Vec<Attempt>) -> Running {
    within(desk.patience, async move {
        let mut connection = desk.pool.acquire().await?;
        Ok(Errand::Resolved(parking::resolve(&mut connection, holder, &attempts).await?))
    })
}

pub(super) fn held(desk: Desk, holder: Holder, lanes: Vec<(i16, i64)>) -> Running {
    within(desk.patience, async move {
        let mut connection = desk.pool.acquire().await?;
        let numbers: Vec<i16> = lanes.iter().map(|(lane, _)| *lane).collect();
        let keys = parking::held_keys(&mut connection, holder.sink, &numbers).await?;
        Ok(Errand::Held(lanes, keys))
    })
}

/// Which of these events are not in the log any more. Their number is stored too: the log of a relay is not always at hand.
pub(super) fn taken_back(desk: Desk, holder: Holder, known: Known) -> Running {
    within(desk.patience, async move {
        let gone: Vec<Uuid> = sqlx::query_scalar(
            "with gone as materialized (
                 select k.id from unnest($1::smallint[], $2::bigint[], $3::uuid[]) as k (lane, seq, id)
                 where not exists (select from postrider.events e where e.lane = k.lane and e.seq = k.seq and e.id = k.id)),
             counted as (
                 update postrider.sinks set taken_back = taken_back + (select count(*) from gone), taken_back_at = clock_timestamp()
                 where sink = $4 and exists (select from gone))
             select id from gone",
        )
        .bind(known.lanes)
        .bind(known.seqs)
        .bind(known.ids)
        .bind(holder.sink)
        .fetch_all(&desk.pool)
        .await?;
        Ok(Errand::TakenBack(gone))
    })
}
