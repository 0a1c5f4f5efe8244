//! Everything a reader knows as long as one connection lives; a new connection starts from what is stored.

mod portions;

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use sqlx::{Connection as _, PgConnection};
use tokio::sync::watch;
use uuid::Uuid;

use crate::{capture, inbox};

use super::bell::Bell;
use super::error::{Error, Result};
use super::lanes::{Lanes, Place};
use super::lease::Silence;
use super::page_size::{PageSize, Request};
use super::progress::Tenure;
use super::reader::{ReaderOptions, SharedWishes, Wishes};
use super::report::{Report, Told};
use super::ring::Turn;
use super::round::{Budget, Page, Round};
use super::servers::Servers;
use super::settling::{Holding, Meanwhile};
use super::wake::Sleeper;
use super::{flush, identity, lease, parking, ring, session, share, sink};
use crate::schema;

use self::portions::{alone, next_lane, portions, read};

/// Pages with records, by lane.
pub(super) type Found = BTreeMap<i16, (Place, Page)>;

/// Looked for a little later than it is due, so that it is due by the server's clock too.
const OVERDUE: Duration = Duration::from_millis(10);

/// So much may be carried for nothing before a round is given up for a smaller one.
const MOST_WASTE: usize = 32 << 20;

/// What was read and is not known to be durable yet.
struct Unreleased {
    found: Found,
    inserted: u64,
    flushed: u64,
}

pub(super) struct Link {
    pub(super) id: Uuid,
    pub(super) timeline: i64,
    pub(super) connection: PgConnection,
    pub(super) bell: Bell,
    pub(super) sleeper: Sleeper,
    pub(super) tenure: Tenure,
    pub(super) lanes: Lanes,
    all_lanes: usize,
    /// For settling while the next round is read; with a settling that is on its way.
    settler: Option<PgConnection>,
    /// Where the next round begins.
    first_lane: i16,
    /// A lane whose next event is a large one, to be read alone.
    large: Option<i16>,
    unreleased: Option<Unreleased>,
    /// By our own monotonic clock, from before the heartbeat was sent: the server cannot have counted longer.
    lease_ends: Instant,
    next_heartbeat: Instant,
    /// What operators were told last of what is in flight.
    told: Told,
    next_sweep: Instant,
    /// Slots that it emptied before their time, since somebody took the number.
    pub(super) shortened: u64,
}

impl Link {
    pub(super) async fn connect(
        database: &Servers,
        options: &ReaderOptions,
        reader: Uuid,
        wishes: &SharedWishes,
        report: &watch::Receiver<Report>,
    ) -> Result<Self> {
        let (mut connection, server) = session::connect_to(database).await?;
        let timeline = identity::check(&mut connection).await?;
        let tenure = sink::open(&mut connection, &options.sink, options.start).await?;
        // To the same server, and before the bell, which can do without a connection.
        let settler = session::connect(&server).await?;
        let bell = Bell::hang(&server, &mut connection, options.hint).await?;
        let lanes: i32 = sqlx::query_scalar("select postrider.lanes()").fetch_one(&mut connection).await?;
        let now = Instant::now();
        let mut link = Self {
            id: Uuid::now_v7(),
            timeline,
            connection,
            bell,
            sleeper: Sleeper::default(),
            tenure,
            lanes: Lanes::default(),
            all_lanes: usize::try_from(lanes).unwrap_or_default(),
            settler: Some(settler),
            first_lane: 0,
            large: None,
            unreleased: None,
            lease_ends: now,
            next_heartbeat: now,
            told: Told::default(),
            next_sweep: now + options.sweep,
            shortened: 0,
        };
        // Lanes that this reader held through an earlier connection are its own again at once.
        link.keep_alive(options, reader, wishes, report).await?;
        Ok(link)
    }

    /// Somebody has handed lanes back: they are taken with a heartbeat, now.
    pub(super) fn heed_freed(&mut self) {
        if self.bell.take_freed() {
            self.next_heartbeat = Instant::now();
        }
    }

    /// How long until something has to be done whether or not events come.
    pub(super) fn next_duty(&self) -> Duration {
        self.next_heartbeat.saturating_duration_since(Instant::now())
    }

    /// There is news for operators: the next heartbeat comes soon, but sinks that come and go do not make it come all the time.
    pub(super) fn hasten(&mut self, options: &ReaderOptions) {
        const SOON: Duration = Duration::from_millis(200);
        let last = self.lease_ends.checked_sub(options.lease);
        self.next_heartbeat = self
            .next_heartbeat
            .min(last.map_or_else(Instant::now, |last| last + SOON.min(options.lease / 3)));
    }

    /// Heartbeat, fair sharing and the sweep, when they are due. Answers whether a look has to follow: other lanes, or a bell that may
    /// have rung unheard.
    pub(super) async fn keep_alive(
        &mut self,
        options: &ReaderOptions,
        reader: Uuid,
        wishes: &SharedWishes,
        report: &watch::Receiver<Report>,
    ) -> Result<bool> {
        let now = Instant::now();
        if now < self.next_heartbeat {
            return Ok(false);
        }
        self.next_heartbeat = now + options.lease / 3;
        let (connection, sink, report) = (&mut self.connection, self.tenure.sink, report.borrow().clone());
        lease::heartbeat_with(connection, reader, &options.name, sink, options.lease, &report).await?;
        let silence = if Instant::now() < self.lease_ends { Silence::No } else { Silence::Perhaps };
        self.lease_ends = now + options.lease;
        if self.told.is_due(&report, now) {
            lease::tell_in_flight(&mut self.connection, reader, &report).await?;
            self.told = Told::of(&report, now);
        }
        let mut swept = false;
        if now >= self.next_sweep {
            self.next_sweep = now + options.sweep;
            // Somebody may have upgraded it meanwhile.
            schema::check_version(&mut self.connection).await?;
            identity::check(&mut self.connection).await?;
            swept = self.bell.silence().is_none();
            self.bell.test(&mut self.connection).await?;
            // Somebody may hold the ring for a while: it is swept the next time, and reading goes on.
            match self.sweep(options).await {
                Err(error) if error.is_lock_timeout() => {
                    tracing::info!(%error, "the ring was busy and is swept later");
                }
                swept => swept?,
            }
        }
        // Who died just after a heartbeat would be missed only at the one after next, a third of a lease too late. Asked before lanes are
        // shared out: whose time runs out in between is found there.
        if let Some(overdue) = lease::next_overdue(&mut self.connection, reader, self.tenure.sink).await? {
            self.next_heartbeat = self.next_heartbeat.min(Instant::now() + overdue + OVERDUE);
        }
        let busy = self.busy(wishes);
        let sharing = if options.alone { share::decide_alone } else { share::decide };
        let (change, surplus) = lease::balance_by(
            &mut self.connection,
            reader,
            &self.tenure,
            &self.lanes.numbers(),
            &busy,
            sharing,
            silence,
        )
        .await?;
        self.lanes.retire(surplus);
        let Some((tenure, cursors)) = change else {
            return Ok(swept);
        };
        self.lanes.adopt(tenure.epoch, cursors);
        self.tenure = tenure;
        Ok(true)
    }

    /// Lanes that cannot be given up now. What was read of others and not begun is forgotten: they are read again from where they are
    /// settled, by whoever has them next.
    fn busy(&mut self, wishes: &SharedWishes) -> Vec<i16> {
        let Wishes { kept, given_back } = &*wishes.lock().unwrap_or_else(PoisonError::into_inner);
        let free = given_back.iter().filter(|(lane, _)| !kept.contains(lane));
        self.lanes.let_go(&free.map(|(lane, since)| (*lane, *since)).collect());
        let mut busy = self.lanes.busy();
        busy.extend(kept);
        busy
    }

    async fn sweep(&mut self, options: &ReaderOptions) -> Result<()> {
        lease::forget_silent(&mut self.connection).await?;
        capture::forget_departed(&mut self.connection).await?;
        parking::forget_unparked(&mut self.connection, options.retention.keep).await?;
        // First: the slot that it empties is one to turn to.
        let shortened = ring::shorten(&mut self.connection, options.retention).await?;
        if !shortened.slots.is_empty() {
            self.shortened += shortened.slots.len() as u64;
            tracing::warn!(
                slots = ?shortened.slots,
                "the log was larger than log.max_log_size: delivered events were removed before their retention was over"
            );
        }
        if !shortened.held.is_empty() {
            tracing::warn!(
                sinks = shortened.holders().join(", "),
                slots = ring::in_words(&shortened.held),
                "the log is larger than log.max_log_size and cannot be shortened: nothing is removed that the sinks named here have not settled"
            );
        }
        if let Turn::Held(slots) = ring::turn(&mut self.connection, options.retention).await?
            && slots.iter().any(|slot| slot.reason.needs_somebody())
        {
            tracing::warn!(
                slots = ring::in_words(&slots),
                "no slot of the ring can be emptied: the current one grows until the sinks named here have settled"
            );
        }
        ring::turn_progress(&mut self.connection).await?;
        // Events may be sent again for as long as the log has them.
        inbox::turn(&mut self.connection, Some(options.retention.keep)).await?;
        Ok(())
    }

    /// Whether there is a large event to be read, by whose turn it is.
    pub(super) fn has_large(&self) -> bool {
        self.large.is_some()
    }

    /// Reads one round over all lanes, or, if it may, the large event that is next in one of them. Answers the pages that have records, and
    /// the xmin of the round's snapshot, or `None` while too few standbys have what was read.
    ///
    /// May be dropped at any await: the lanes move only together with what is kept for the next call.
    pub(super) async fn look(
        &mut self,
        options: &ReaderOptions,
        pages: &mut PageSize,
        may_be_large: bool,
        meanwhile: &mut Meanwhile<'_>,
    ) -> Result<Option<(Found, u64)>> {
        let mut xmin = u64::MAX;
        if self.unreleased.is_none() {
            let rounds = self.read(options, pages, may_be_large, meanwhile).await?;
            let mut unreleased = Unreleased { found: Found::new(), inserted: 0, flushed: u64::MAX };
            for round in rounds {
                xmin = xmin.min(round.facts.xmin);
                unreleased.inserted = unreleased.inserted.max(round.facts.inserted);
                unreleased.flushed = unreleased.flushed.min(round.facts.flushed);
                for (lane, page) in round.pages {
                    // In every round, not only by the sweep: after a reset a snapshot must not move past what it hides.
                    identity::check_seq("a cursor stands at", page.end.position, round.facts.last_seq)?;
                    let place = self.lanes.on_read(lane, &page);
                    if let (Some(place), false) = (place, page.records.is_empty()) {
                        unreleased.found.insert(lane, (place, page));
                    }
                }
            }
            if unreleased.found.is_empty() {
                return Ok(Some((Found::new(), xmin)));
            }
            self.unreleased = Some(unreleased);
        }
        if let Some(unreleased) = &self.unreleased {
            flush::until_durable(&mut self.connection, unreleased.inserted, unreleased.flushed).await?;
            let inserted = unreleased.inserted;
            if !flush::is_at_standbys(&mut self.connection, inserted, options.standbys).await? {
                return Ok(None);
            }
        }
        // What was read under a lease that has run out may be somebody else's by now. The driver would find out, too: its next step begins
        // with the heartbeat that is overdue then, and what is ready goes with the lanes that were lost. Here it does not depend on what
        // comes next, and a round that outlasted its lease is read again with smaller pages.
        if Instant::now() > self.lease_ends {
            return Err(self.lost());
        }
        Ok(Some((self.unreleased.take().map(|unreleased| unreleased.found).unwrap_or_default(), xmin)))
    }

    async fn read(
        &mut self,
        options: &ReaderOptions,
        pages: &mut PageSize,
        may_be_large: bool,
        meanwhile: &mut Meanwhile<'_>,
    ) -> Result<Vec<Round>> {
        let groups = self.lanes.groups();
        let room = options.batch_bytes.get();
        let alone = self.large.filter(|_| may_be_large).and_then(|lane| alone(&groups, lane));
        let is_large = alone.is_some();
        let (request, portions, budget) = if let Some(portion) = alone {
            (Request::LEAST, vec![portion], Budget::new(room, usize::MAX))
        } else {
            let request = pages.request(options.page, room, groups.iter().map(BTreeMap::len).sum());
            let waste = if request.is_least() { usize::MAX } else { MOST_WASTE.max(room.saturating_mul(4)) };
            let portions = portions(&groups, self.first_lane, request.lanes);
            (request, portions, Budget::new(room, waste).without_larger_than(room))
        };
        let mut holding = Holding {
            link: self.id,
            lanes: &mut self.lanes,
            tenure: &mut self.tenure,
            settler: &mut self.settler,
            lease_ends: &mut self.lease_ends,
        };
        let reading = read(&mut self.connection, &portions, self.all_lanes, request, budget);
        let rounds = meanwhile.during(reading, &mut holding).await?;
        self.large = rounds.iter().find_map(|round| round.withheld);
        if is_large {
            // What it came in is not needed any more, and would be kept for the next one.
            self.connection.shrink_buffers();
        } else {
            self.first_lane = next_lane(&portions, &rounds);
            pages.learn(&rounds);
        }
        Ok(rounds)
    }

    /// What settling needs, apart from what reading needs.
    pub(super) fn holding(&mut self) -> Holding<'_> {
        Holding {
            link: self.id,
            lanes: &mut self.lanes,
            tenure: &mut self.tenure,
            settler: &mut self.settler,
            lease_ends: &mut self.lease_ends,
        }
    }

    /// Keeps the lease while something else takes its time.
    pub(super) async fn renew(&mut self, options: &ReaderOptions, reader: Uuid) -> Result<()> {
        let now = Instant::now();
        if lease::renew(&mut self.connection, reader, options.lease).await? {
            self.lease_ends = now + options.lease;
        }
        Ok(())
    }

    /// Until when nobody else can have taken its lanes.
    pub(super) fn lease_ends(&self) -> Instant {
        self.lease_ends
    }

    fn lost(&self) -> Error {
        Error::LeaseLost { sink: self.tenure.name.clone(), epoch: self.tenure.epoch }
    }
}
