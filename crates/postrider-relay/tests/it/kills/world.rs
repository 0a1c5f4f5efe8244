//! What the tests of this folder share: a database under load, a collector, the books, and questions about who holds what.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use postrider_testkit::{Collector, Database, Ledger, Report, Seed};
use sqlx::PgConnection;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::adopted::{self, Adopted};
use super::load;
use super::process::{Order, RelayProcess, SINK};
use crate::support::{PATIENCE, database};

/// Small, so that the bound on duplicates means something.
pub const MAX_IN_FLIGHT: u32 = 100;
/// The lease of relays in these tests.
pub const LEASE: Duration = Duration::from_secs(1);

pub struct World {
    pub database: Database,
    pub collector: Collector,
    pub ledger: Ledger,
    pub seed: Seed,
    next_relay: AtomicU32,
    quiet: AtomicBool,
    pub adopted: Option<Adopted>,
}

impl World {
    pub async fn new(test: &str) -> Arc<Self> {
        Self::with(test, None).await
    }

    /// Events come by an adopted outbox table.
    pub async fn adopting(test: &str, adopted: Adopted) -> Arc<Self> {
        Self::with(test, Some(adopted)).await
    }

    async fn with(test: &str, adopted: Option<Adopted>) -> Arc<Self> {
        let world = Self {
            database: database().await,
            collector: Collector::start().await.unwrap(),
            ledger: Ledger::new(),
            seed: Seed::from_env_or_random(test),
            next_relay: AtomicU32::new(1),
            quiet: AtomicBool::new(false),
            adopted,
        };
        let mut connection = world.database.connect().await.unwrap();
        load::prepare(&mut connection).await;
        if let Some(adopted) = adopted {
            adopted::prepare(&mut connection, adopted).await;
        }
        Arc::new(world)
    }

    pub fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed)
    }

    pub fn commit(&self, written: &[Uuid]) {
        for id in written {
            self.ledger.commit(*id);
        }
    }

    /// What a relay is told by default.
    pub fn order(&self) -> Order {
        Order {
            number: self.next_relay.fetch_add(1, Ordering::Relaxed),
            database: self.database.url(),
            collector: self.collector.address().to_string(),
            lease: LEASE,
            max_in_flight: MAX_IN_FLIGHT,
            deadline: Duration::from_secs(20),
            eager: false,
            adopted: self.adopted,
            rabbitmq: None,
        }
    }

    pub fn relay(&self) -> RelayProcess {
        RelayProcess::start(&self.order())
    }

    /// One that does not lose its lanes to a machine which stands still for some seconds: where nothing may come twice but for what the
    /// test does.
    pub fn steady_relay(&self) -> RelayProcess {
        RelayProcess::start(&Order { lease: LEASE * 6, ..self.order() })
    }

    /// Everything that is settled now.
    pub async fn settled(&self, connection: &mut PgConnection) -> HashSet<Uuid> {
        let settled: Vec<String> = sqlx::query_scalar(
            "select coalesce(e.source_id, e.id::text) from postrider.events e join postrider.cursors c on c.lane = e.lane and c.sink = $1
             where e.seq <= c.position and (pg_visible_in_snapshot(e.xid, c.snapshot)
                or coalesce(e.seq <= c.late_position and pg_visible_in_snapshot(e.xid, c.target), false))",
        )
        .bind(SINK)
        .fetch_all(connection)
        .await
        .unwrap();
        settled.iter().map(|id| adopted::identity(id)).collect()
    }

    /// How many of these have not come.
    pub fn missing_of(&self, mut events: HashSet<Uuid>) -> usize {
        self.collector.strike(&mut events);
        events.len()
    }

    /// Of the last events that a relay sent, how many are not settled now.
    pub async fn unsettled_of(&self, relay: u32, connection: &mut PgConnection) -> usize {
        let settled = self.settled(connection).await;
        let sent = self.collector.last_from(relay, MAX_IN_FLIGHT as usize);
        sent.iter().filter(|id| !settled.contains(id)).count()
    }

    /// How many lanes belong to a relay, alive or not.
    pub async fn lanes_of(&self, relay: u32, connection: &mut PgConnection) -> i64 {
        sqlx::query_scalar(
            "select count(*) from postrider.leases l join postrider.readers r on r.reader = l.owner where r.name = $1",
        )
        .bind(format!("relay {relay}"))
        .fetch_one(connection)
        .await
        .unwrap()
    }

    /// Waits until a relay holds so many lanes; answers how long that took.
    pub async fn until_lanes(&self, relay: u32, lanes: i64, connection: &mut PgConnection) -> Duration {
        let begun = Instant::now();
        loop {
            let held = self.lanes_of(relay, connection).await;
            if held == lanes {
                return begun.elapsed();
            }
            assert!(begun.elapsed() < PATIENCE, "relay {relay} holds {held} lanes and should hold {lanes}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Emits an event for every key and waits until all of them have come; answers how long that took.
    pub async fn until_all_lanes_flow(&self, connection: &mut PgConnection) -> Duration {
        let begun = Instant::now();
        let mut marks: HashSet<Uuid> = HashSet::new();
        for key in 0..100 {
            let mut written = Vec::new();
            load::emit(self, connection, &format!("key-{key}"), 1, &mut written).await.unwrap();
            self.commit(&written);
            marks.extend(written);
        }
        loop {
            self.collector.strike(&mut marks);
            if marks.is_empty() {
                return begun.elapsed();
            }
            assert!(
                begun.elapsed() <= PATIENCE,
                "{} of 100 keys do not flow, {}",
                marks.len(),
                self.standing(connection).await
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Who holds each lane and how much is owed of it, for whoever has to find out why something does not come.
    async fn standing(&self, connection: &mut PgConnection) -> String {
        let lanes: Vec<String> = sqlx::query_scalar(
            "select format('lane %s: %s events owed, %s, lease %s, epoch %s', l.lane, b.events, coalesce(r.name, 'nobody''s'),
                r.expires_at - clock_timestamp(), l.epoch)
             from postrider.leases l
             left join postrider.readers r on r.reader = l.owner
             join postrider.backlog b on b.lane = l.lane and b.sink = $1
             order by l.lane",
        )
        .bind(SINK)
        .fetch_all(connection)
        .await
        .unwrap();
        format!("{} came in all\n{}", self.collector.arrivals().len(), lanes.join("\n"))
    }

    /// Ends the load.
    pub async fn end(&self, load: JoinSet<()>) {
        self.quiet.store(true, Ordering::Relaxed);
        load.join_all().await;
    }

    /// Ends the load, waits until everything has come, ends the relays well, and closes the books.
    pub async fn finish(&self, load: JoinSet<()>, relays: Vec<RelayProcess>) -> Report {
        self.end(load).await;
        let begun = Instant::now();
        while !self.ledger.check(self.collector.receipts()).lost.is_empty() && begun.elapsed() < PATIENCE {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for relay in relays {
            assert!(relay.stop().await.success());
        }
        self.ledger.check(self.collector.receipts())
    }
}
