//! The world of the model: two relays, a few producers, what the server keeps for them, and every step that can be next.

use postrider::log::wake::{Action, Sleeper, hint};

/// Relays in the model.
pub(super) const RELAYS: usize = 2;
/// Producers at most.
pub(super) const PRODUCERS: usize = 3;
/// The time, and until when every ticket is good: sleep does not end in the model.
const NOW: u64 = 0;
const ARMED_UNTIL: u64 = 1;

/// A rule of the protocol that is broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mutant {
    /// The relay sleeps as soon as it has its ticket.
    NoLookAfterTicket,
    /// The relay takes no xid; it waits for the running transactions that its snapshot names.
    WaitForXip,
    /// The relay takes its xid and then the ticket, as it would with both in one transaction.
    XidBeforeTicket,
    /// The producer looks at the bell and only then takes its xid.
    BellBeforeXid,
    /// Whoever is notified sets `disarmed` to what `armed` is now.
    DisarmEverything,
    /// A relay that finds rows without having been notified disarms as well.
    DisarmUnbidden,
    /// `disarmed` is read and written in two steps, without the relays' lock.
    DisarmUnlocked,
    /// A notification that comes to a relay not asleep is thrown away.
    IgnoreWhenAwake,
}

impl Mutant {
    /// Each of them.
    pub(super) const ALL: [Self; 8] = [
        Self::NoLookAfterTicket,
        Self::WaitForXip,
        Self::XidBeforeTicket,
        Self::BellBeforeXid,
        Self::DisarmEverything,
        Self::DisarmUnbidden,
        Self::DisarmUnlocked,
        Self::IgnoreWhenAwake,
    ];
}

/// What is explored.
#[derive(Debug, Clone, Copy)]
pub(super) struct Model {
    /// How many of the producers take part.
    pub(super) producers: usize,
    /// A look, or a disarm, and the relay's learning of its result are one step: nothing is received in between.
    pub(super) at_once: bool,
    /// States that go on alike are one.
    pub(super) reduced: bool,
    /// The broken rule.
    pub(super) mutant: Option<Mutant>,
}

/// A transaction that emits one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Producer {
    Idle,
    /// Its xid, 0 while it has none.
    Running(u8, At),
    Ended,
}

/// How far `postrider.emit` has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum At {
    /// The row is written.
    Written,
    /// `emit` has read `armed`.
    Armed(u8),
    /// `ring_bell` was called.
    Ring,
    /// `ring_bell` has read `armed`.
    RingArmed(u8),
    /// Only the commit is left, which notifies this ticket; 0 is none.
    Ready(u8),
}

/// What a relay has asked of the server and not yet heard of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Flight {
    Nothing,
    /// Its own transaction, running.
    Xid(u8),
    /// The same with the ticket still to be taken, for [`Mutant::XidBeforeTicket`].
    XidThenTicket(u8),
    /// A look: whether rows were there, and the xmin.
    Looked(bool, u8),
    /// `disarmed` is set.
    Disarmed,
    /// `disarmed` was read and will be set to this, for [`Mutant::DisarmUnlocked`].
    WillDisarm(u8),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Relay {
    pub(super) sleeper: Sleeper,
    pub(super) flight: Flight,
    /// The xid that the sleeper waits for, 0 when it does not.
    pub(super) awaits: u8,
    /// A committed row is there that it has not seen.
    pub(super) unseen: bool,
    /// Delivered and not received, in the order of the commits; 0 is none.
    pub(super) pending: [u8; PRODUCERS],
}

/// One state of everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct World {
    pub(super) relays: [Relay; RELAYS],
    pub(super) producers: [Producer; PRODUCERS],
    pub(super) next_xid: u8,
    /// The highest xid that has ended, for [`Mutant::WaitForXip`].
    pub(super) completed: u8,
    pub(super) armed: u8,
    pub(super) disarmed: u8,
}

/// What is wrong with a state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Wrong {
    /// A relay sleeps, a committed row is unseen by it, and nobody is left who could wake it.
    pub(super) stuck: bool,
    /// The same, whether or not a producer still runs that may happen to notify.
    pub(super) overslept: bool,
    /// A relay sleeps, nothing is on its way to it, and a new producer would not notify.
    pub(super) deaf: bool,
}

/// A step that was taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    /// Who took it.
    pub(super) who: &'static str,
    /// What was done.
    pub(super) what: &'static str,
    /// It makes later producers notify for nothing: `disarmed` fell, or a relay let go of a ticket it had received
    /// before `disarmed` was there.
    pub(super) noisy: bool,
}

impl World {
    /// Nobody has done anything.
    pub(super) fn new(model: Model) -> Self {
        let relay = Relay {
            sleeper: Sleeper::default(),
            flight: Flight::Nothing,
            awaits: 0,
            unseen: false,
            pending: [0; PRODUCERS],
        };
        let mut producers = [Producer::Ended; PRODUCERS];
        producers[..model.producers].fill(Producer::Idle);
        Self { relays: [relay.clone(), relay], producers, next_xid: 2, completed: 0, armed: 1, disarmed: 1 }
    }

    /// What is wrong here.
    pub(super) fn wrong(&self) -> Wrong {
        let mut wrong = Wrong::default();
        for relay in &self.relays {
            if relay.flight != Flight::Nothing
                || relay.pending[0] != 0
                || relay.sleeper.next() != Action::Sleep
            {
                continue;
            }
            let running = self.producers.iter().any(|p| matches!(p, Producer::Running(..)));
            wrong.stuck |= relay.unseen && !running;
            wrong.overslept |= relay.unseen;
            wrong.deaf |= hint(self.armed.into(), self.disarmed.into(), NOW, ARMED_UNTIL).is_none();
        }
        wrong
    }

    /// Every step that can be next, with the state after it.
    pub(super) fn steps(&self, model: Model, into: &mut Vec<(Step, World)>) {
        let mut add = |who, what, noisy, world: World| {
            let world = if model.reduced { world.canonical(model) } else { world };
            into.push((Step { who, what, noisy }, world));
        };
        for index in 0..PRODUCERS {
            let producer = self.producers[index];
            // Reduced, producers are sorted: of two in the same state one is enough.
            let twin = model.reduced && self.producers[..index].last() == Some(&producer);
            if producer == Producer::Ended || twin {
                continue;
            }
            let mut world = self.clone();
            let what = world.produce(model, index);
            add("producer", what, false, world);
            if let Producer::Running(xid, _) = producer {
                let mut world = self.clone();
                world.end(index, xid);
                add("producer", "rolls back", false, world);
            }
        }
        for index in 0..RELAYS {
            for act in [Self::relay, Self::receive] {
                let mut world = self.clone();
                if let Some((what, let_go)) = act(&mut world, model, index) {
                    let noisy = world.disarmed < self.disarmed || u64::from(world.disarmed) < let_go;
                    add(["relay 0", "relay 1"][index], what, noisy, world);
                }
            }
        }
    }

    /// The next step of a producer, in the order of `postrider.emit` and `postrider.ring_bell`.
    fn produce(&mut self, model: Model, index: usize) -> &'static str {
        let xid_first = model.mutant != Some(Mutant::BellBeforeXid);
        let (after, what) = match self.producers[index] {
            Producer::Idle if xid_first => (Producer::Running(self.take_xid(), At::Written), "takes its xid"),
            Producer::Idle => (Producer::Running(0, At::Written), "begins"),
            Producer::Running(xid, At::Written) => {
                (Producer::Running(xid, At::Armed(self.armed)), "reads armed")
            }
            Producer::Running(xid, At::Armed(armed)) => {
                let at = if armed > self.disarmed { At::Ring } else { At::Ready(0) };
                (Producer::Running(xid, at), "reads disarmed")
            }
            Producer::Running(xid, At::Ring) => {
                (Producer::Running(xid, At::RingArmed(self.armed)), "reads armed in ring_bell")
            }
            Producer::Running(xid, At::RingArmed(armed)) => {
                let ticket = hint(armed.into(), self.disarmed.into(), NOW, ARMED_UNTIL).map_or(0, small);
                (Producer::Running(xid, At::Ready(ticket)), "reads disarmed in ring_bell")
            }
            Producer::Running(0, at) => (Producer::Running(self.take_xid(), at), "takes its xid"),
            Producer::Running(xid, At::Ready(ticket)) => {
                for relay in &mut self.relays {
                    relay.unseen = true;
                    // Room for one from each producer, and none is left behind a gap.
                    if let Some(free) = relay.pending.iter_mut().find(|pending| **pending == 0) {
                        *free = ticket;
                    }
                }
                self.end(index, xid);
                return if ticket == 0 { "commits" } else { "commits and notifies" };
            }
            Producer::Ended => return "has ended",
        };
        self.producers[index] = after;
        what
    }

    fn end(&mut self, index: usize, xid: u8) {
        self.completed = self.completed.max(xid);
        self.producers[index] = Producer::Ended;
    }

    pub(super) fn take_xid(&mut self) -> u8 {
        self.next_xid += 1;
        self.next_xid - 1
    }

    /// The lowest running xid, or the next one.
    pub(super) fn xmin(&self) -> u8 {
        let mut xmin = self.next_xid;
        for producer in &self.producers {
            if let Producer::Running(xid @ 1.., _) = *producer {
                xmin = xmin.min(xid);
            }
        }
        for relay in &self.relays {
            if let Flight::Xid(xid) | Flight::XidThenTicket(xid) = relay.flight {
                xmin = xmin.min(xid);
            }
        }
        xmin
    }
}

/// Tickets and xids are few.
pub(super) fn small(number: u64) -> u8 {
    number.try_into().expect("a number of the model")
}
