//! One sink's pipeline: reading, delivering and settling overlap; one thing of each kind is on its way at a time.

mod backoff;
mod deliver;
mod errand;
mod held;
mod outlet;
mod parked;
mod settle;
mod supervise;
mod window;

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::log::{self, Batch, Reader};
use sqlx::PgPool;
use tokio::sync::watch;

use self::deliver::Delivery;
use self::errand::Errand;
use self::held::HeldKeys;
use self::outlet::Outlet;
use self::parked::Retries;
use self::settle::Settlements;
use self::window::Window;
use crate::face::Face;
use crate::settings::SinkSettings;
use crate::sink::BoxFuture;
use crate::telemetry::Telemetry;

pub(crate) use self::supervise::{Fittings, supervise};

/// The loop turns at least this often, whatever happens.
const TURN: Duration = Duration::from_millis(500);

/// Whether to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stop {
    /// Yes.
    No,
    /// Settle what was sent, and end.
    Drain,
    /// End.
    Now,
}

/// What the loop waited for.
enum Happened {
    Read(log::error::Result<Batch>),
    Delivered(Box<Delivery>),
    Settled(settle::Settled),
    Errand(log::error::Result<Errand>),
    Nothing,
}

struct Pipeline {
    settings: Arc<SinkSettings>,
    reader: Reader,
    pool: PgPool,
    face: Face,
    telemetry: Telemetry,
    stop: watch::Receiver<Stop>,
    window: Window,
    held: HeldKeys,
    /// `None` while a delivery is on its way with it.
    outlet: Option<Outlet>,
    delivering: Option<BoxFuture<'static, Box<Delivery>>>,
    settlements: Settlements,
    settling: Option<BoxFuture<'static, settle::Settled>>,
    retries: Retries,
    errand: Option<errand::Running>,
    /// How often in a row the sink was unavailable, and until when it is left alone.
    failures: u32,
    rests_until: Option<Instant>,
    paused: bool,
}

impl Pipeline {
    /// Runs until it is told to stop or the log needs a person.
    async fn run(&mut self) -> log::error::Result<()> {
        loop {
            self.forget_lost();
            self.show();
            self.start_delivery();
            self.start_settling();
            self.start_errand();
            if self.is_over() {
                return Ok(());
            }
            match self.wait().await {
                Happened::Read(batch) => self.window.push(batch?),
                Happened::Delivered(delivery) => self.on_delivery(*delivery),
                Happened::Settled(settled) => self.on_settled(settled)?,
                Happened::Errand(done) => self.on_errand(done),
                Happened::Nothing => {}
            }
        }
    }

    async fn wait(&mut self) -> Happened {
        let wants_more = !self.is_draining() && self.window.unsent() < self.settings.max_batch as usize;
        let next_turn = self.next_turn().into();
        let happened = tokio::select! {
            // What frees the window goes before what fills it.
            biased;
            _ = self.stop.changed() => Happened::Nothing,
            settled = of(&mut self.settling) => Happened::Settled(settled),
            delivery = of(&mut self.delivering) => Happened::Delivered(delivery),
            done = of(&mut self.errand) => Happened::Errand(done),
            batch = self.reader.next(), if wants_more => Happened::Read(batch),
            () = tokio::time::sleep_until(next_turn) => Happened::Nothing,
        };
        match happened {
            Happened::Settled(_) => self.settling = None,
            Happened::Delivered(_) => self.delivering = None,
            Happened::Errand(_) => self.errand = None,
            Happened::Read(_) | Happened::Nothing => {}
        }
        happened
    }

    /// When there is something to do even if nothing happens.
    fn next_turn(&self) -> Instant {
        let settle = self.settlements.due(&self.window).filter(|_| self.settling.is_none());
        let retry = self.errand.is_none().then(|| self.retries.next_look());
        let rest = self.rests_until.filter(|_| self.delivering.is_none());
        [settle, retry, rest].into_iter().flatten().fold(Instant::now() + TURN, Instant::min)
    }

    fn is_draining(&self) -> bool {
        *self.stop.borrow() > Stop::No
    }

    /// Told to stop, and nothing is left that could be settled.
    fn is_over(&self) -> bool {
        let idle = self.delivering.is_none() && self.settling.is_none() && self.errand.is_none();
        match *self.stop.borrow() {
            Stop::No => false,
            Stop::Drain => idle && !self.window.can_settle() && self.retries.is_resolved(),
            Stop::Now => true,
        }
    }

    /// Forgets what was read in lanes that are not ours any more, or through a connection that is gone: it is read again. Before
    /// anything else is done: what is read next must not be mixed with it, nor sent when others may have sent it.
    fn forget_lost(&mut self) {
        let keys = self.window.retain(|batch, lane| self.reader.holds(batch, lane));
        keys.iter().for_each(|key| self.held.on_parked(key));
    }

    /// Forgets all other lanes of the window.
    fn keep(&mut self, is_kept: impl Fn(&Batch, i16) -> bool) {
        let keys = self.window.retain(is_kept);
        keys.iter().for_each(|key| self.held.on_parked(key));
    }
}

/// The end of what is on its way, if something is.
async fn of<T>(running: &mut Option<BoxFuture<'static, T>>) -> T {
    match running {
        Some(running) => running.await,
        None => pending().await,
    }
}
