//! One sink's pipeline: reading, delivering and settling overlap; one thing of each kind is on its way at a time.

mod backoff;
mod deliver;
mod errand;
mod held;
mod lanes;
mod outlet;
mod parked;
mod recent;
mod refusals;
mod remembered;
mod retries;
mod settle;
mod supervise;
mod tell;
mod window;

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::log::{self, Batch, Mood, Reader};
use tokio::sync::{Notify, watch};

use self::deliver::Delivery;
use self::errand::{Desk, Errand};
use self::held::HeldKeys;
use self::outlet::Outlet;
use self::recent::{Known, Recent};
use self::refusals::Refusals;
use self::remembered::Remembered;
use self::retries::Retries;
use self::settle::Settlements;
use self::tell::Sending;
use self::window::Window;
use crate::face::Face;
use crate::settings::SinkSettings;
use crate::sink::{BoxFuture, UnavailableKind};
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
    desk: Desk,
    face: Face,
    telemetry: Telemetry,
    stop: watch::Receiver<Stop>,
    window: Window,
    /// Lanes that others are to have: nothing is begun in them.
    retiring: Vec<i16>,
    held: HeldKeys,
    /// `None` while a delivery is on its way with it.
    outlet: Option<Outlet>,
    delivering: Option<BoxFuture<'static, Box<Delivery>>>,
    sending: Option<Sending>,
    settlements: Settlements,
    /// What is parked by the settlement that is on its way.
    parking: Vec<settle::OnItsWay>,
    settling: Option<BoxFuture<'static, settle::Settled>>,
    /// Done in an earlier life of the window.
    remembered: Remembered,
    recent: Recent,
    /// To be looked for after a failover.
    doubtful: Option<Known>,
    retries: Retries,
    refusals: Refusals,
    errand: Option<errand::Running>,
    /// How often in a row the sink was unavailable, and until when it is left alone.
    failures: u32,
    /// What was told of that last, and whether that it is over is still to be told.
    trouble_told: Option<(UnavailableKind, Instant)>,
    is_trouble_told: bool,
    rests_until: Option<Instant>,
    /// Whether somebody paused it; `None` until the database was asked for the first time.
    paused: Option<bool>,
    /// Why nothing can be stored just now.
    trouble: Option<settle::Unstored>,
    /// Whether anything was stored since it began.
    has_settled: bool,
    /// Rung by everything that was read.
    has_read: Arc<Notify>,
    /// Slots that the reader had emptied before their time when it was last counted.
    shortened: u64,
    /// When operators were told something last, and of which mood.
    told: Option<(Instant, Mood)>,
}

impl Pipeline {
    /// Runs until it is told to stop or the log needs a person.
    async fn run(&mut self) -> log::error::Result<()> {
        loop {
            self.forget_lost();
            self.give_way();
            self.leave_to_others();
            self.get_over_trouble();
            self.get_over_failures();
            self.tell_refusals(Instant::now());
            self.show();
            self.start_delivery();
            self.start_settling();
            self.start_errand();
            if self.is_over() {
                return Ok(());
            }
            match self.wait().await {
                Happened::Read(batch) => {
                    let batch = batch?;
                    self.has_read.notify_one();
                    // What a connection read that is gone must not be mixed with what the next one reads again.
                    self.forget_lost();
                    let parts = self.window.push(batch);
                    self.recall(&parts);
                }
                Happened::Delivered(delivery) => self.on_delivery(*delivery),
                Happened::Settled(settled) => self.on_settled(settled)?,
                Happened::Errand(done) => self.on_errand(done)?,
                Happened::Nothing => {}
            }
        }
    }

    async fn wait(&mut self) -> Happened {
        let unsent = self.window.unsent() - self.window.unsent_in(&self.retiring);
        let wants_more = !self.is_draining() && unsent < self.settings.max_batch as usize;
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
        // Who drains begins neither a question nor a delivery: to look for their time would be to look all the time.
        let begins = !self.is_draining();
        let retry = (begins && self.errand.is_none()).then(|| self.retries.next_look());
        let rest = self.rests_until.filter(|_| begins && self.delivering.is_none());
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

    /// Where it has nothing to deliver any more, what it could not do is not its concern any more.
    fn get_over_failures(&mut self) {
        let is_idle = self.delivering.is_none()
            && self.window.unsent() == 0
            && !self.retries.is_owing()
            && self.opening().is_none();
        if self.failures > 0 && (is_idle || self.reader.tenures().is_empty()) {
            self.failures = 0;
        }
    }
}

/// The end of what is on its way, if something is.
async fn of<T>(running: &mut Option<BoxFuture<'static, T>>) -> T {
    match running {
        Some(running) => running.await,
        None => pending().await,
    }
}
