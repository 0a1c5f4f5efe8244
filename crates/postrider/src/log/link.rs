//! Everything a reader knows as long as one connection lives; a new connection starts from what is stored.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::bell::{self, Bell};
use super::error::{Error, Result};
use super::lanes::Lanes;
use super::progress::{self, Tenure};
use super::reader::ReaderOptions;
use super::round::{self, Page};
use super::wake::Sleeper;
use super::{flush, identity, lease, ring, session, sink};

const SWEEP: Duration = Duration::from_secs(60);

pub(super) struct Link {
    pub(super) connection: PgConnection,
    pub(super) bell: Bell,
    pub(super) sleeper: Sleeper,
    pub(super) tenure: Tenure,
    pub(super) lanes: Lanes,
    all_lanes: usize,
    /// By our own monotonic clock, from before the heartbeat was sent: the server cannot have counted longer.
    lease_ends: Instant,
    next_heartbeat: Instant,
    next_sweep: Instant,
}

impl Link {
    pub(super) async fn connect(
        database: &PgConnectOptions,
        options: &ReaderOptions,
        reader: Uuid,
    ) -> Result<Self> {
        let mut connection = session::connect(database).await?;
        identity::check(&mut connection).await?;
        let tenure = sink::open(&mut connection, &options.sink, options.start).await?;
        let bell = Bell::hang(database, &mut connection, options.hint).await?;
        let lanes: i32 = sqlx::query_scalar("select postrider.lanes()")
            .fetch_one(&mut connection)
            .await?;
        let now = Instant::now();
        let mut link = Self {
            connection,
            bell,
            sleeper: Sleeper::default(),
            tenure,
            lanes: Lanes::default(),
            all_lanes: usize::try_from(lanes).unwrap_or_default(),
            lease_ends: now,
            next_heartbeat: now,
            next_sweep: now + SWEEP,
        };
        // Lanes that this reader held through an earlier connection are its own again at once.
        link.keep_alive(options, reader).await?;
        Ok(link)
    }

    /// How long until something has to be done whether or not events come.
    pub(super) fn next_duty(&self) -> Duration {
        self.next_heartbeat.saturating_duration_since(Instant::now())
    }

    /// Heartbeat, fair sharing and the sweep, when they are due. Answers whether the lanes changed.
    pub(super) async fn keep_alive(&mut self, options: &ReaderOptions, reader: Uuid) -> Result<bool> {
        let now = Instant::now();
        if now < self.next_heartbeat {
            return Ok(false);
        }
        self.next_heartbeat = now + options.lease / 3;
        lease::heartbeat(
            &mut self.connection,
            reader,
            &options.name,
            self.tenure.sink,
            options.lease,
        )
        .await?;
        self.lease_ends = now + options.lease;
        if now >= self.next_sweep {
            self.next_sweep = now + SWEEP;
            identity::check(&mut self.connection).await?;
            ring::turn(&mut self.connection, options.retention).await?;
            ring::turn_progress(&mut self.connection).await?;
        }
        let change = lease::balance(&mut self.connection, reader, &self.tenure, &self.lanes.busy()).await?;
        let Some((tenure, cursors)) = change else {
            return Ok(false);
        };
        self.tenure = tenure;
        self.lanes.adopt(cursors);
        Ok(true)
    }

    /// Reads one round over all lanes. Answers the pages that have records, and the xmin of the round's snapshot.
    pub(super) async fn look(&mut self, page: i64) -> Result<(BTreeMap<i16, Page>, u64)> {
        let groups = self.lanes.groups();
        let mut found = BTreeMap::new();
        let (mut xmin, mut inserted, mut flushed) = (u64::MAX, 0, u64::MAX);
        let mut take = |lanes: &mut Lanes, round: round::Round| {
            xmin = xmin.min(round.facts.xmin);
            inserted = inserted.max(round.facts.inserted);
            flushed = flushed.min(round.facts.flushed);
            for (lane, page) in round.pages {
                lanes.on_read(lane, &page);
                if !page.records.is_empty() {
                    found.insert(lane, page);
                }
            }
        };
        if let [group] = groups.as_slice() {
            let round = round::read(&mut self.connection, round::READ, self.all_lanes, group, page).await?;
            take(&mut self.lanes, round);
        } else {
            // Lanes that were settled at different moments come together by being read under one snapshot.
            let mut together = self
                .connection
                .begin_with("begin isolation level repeatable read read only")
                .await?;
            for group in &groups {
                let round = round::read(&mut together, round::READ, self.all_lanes, group, page).await?;
                take(&mut self.lanes, round);
            }
            together.commit().await?;
        }
        if !found.is_empty() {
            flush::until_durable(&mut self.connection, inserted, flushed).await?;
            // What was read under a lease that has run out may be somebody else's by now.
            if Instant::now() > self.lease_ends {
                return Err(self.lost());
            }
        }
        Ok((found, xmin))
    }

    /// Stores the settled cursors.
    pub(super) async fn settle(&mut self) -> Result<()> {
        let settled = progress::append(&mut self.connection, &mut self.tenure, &self.lanes.settled()).await?;
        self.lanes.bound_by(settled.bound);
        self.lanes.keep_only(&settled.lanes);
        Ok(())
    }

    pub(super) fn lost(&self) -> Error {
        Error::LeaseLost {
            sink: self.tenure.name.clone(),
            epoch: self.tenure.epoch,
        }
    }

    pub(super) async fn take_ticket(&mut self, sleep: Duration) -> Result<u64> {
        bell::take_ticket(&mut self.connection, sleep).await
    }
}
