//! The world of the model: two relays, a few producers, what the server keeps for them, and every step that can be next.

use postrider::log::wake::{Action, Event, Sleeper, hint};

/// Relays in the model.
pub const RELAYS: usize = 2;
/// Producers at most.
pub const PRODUCERS: usize = 3;
/// The time, and until when every ticket is good: sleep does not end in the model.
const NOW: u64 = 0;
const ARMED_UNTIL: u64 = 1;

/// A rule of the protocol that is broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
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

/// What is explored.
#[derive(Debug, Clone, Copy)]
pub struct Model {
    /// How many of the producers take part.
    pub producers: usize,
    /// A look, or a disarm, and the relay's learning of its result are one step: nothing is received in between.
    pub at_once: bool,
    /// The broken rule.
    pub mutant: Option<Mutant>,
}

/// A transaction that emits one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Producer {
    Idle,
    /// Its xid, 0 while it has none.
    Running(u8, At),
    /// The row is there; the relays that have seen it, a bit each.
    Committed(u8),
    /// Rolled back, or seen by all.
    Gone,
}

/// How far `postrider.emit` has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum At {
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
enum Flight {
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
struct Relay {
    sleeper: Sleeper,
    flight: Flight,
    /// Delivered and not received, in the order of the commits; 0 is none.
    pending: [u8; PRODUCERS],
}

/// One state of everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct World {
    relays: [Relay; RELAYS],
    producers: [Producer; PRODUCERS],
    next_xid: u8,
    /// The highest xid that has ended, for [`Mutant::WaitForXip`].
    completed: u8,
    armed: u8,
    disarmed: u8,
}

/// What is wrong with a state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wrong {
    /// A relay sleeps, a committed row is unseen by it, and nobody is left who could wake it.
    pub stuck: bool,
    /// The same, but a producer still runs that may happen to notify.
    pub overslept: bool,
    /// A relay sleeps, nothing is on its way to it, and a new producer would not notify.
    pub deaf: bool,
}

/// A step that was taken.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Who took it.
    pub who: &'static str,
    /// What was done.
    pub what: &'static str,
    /// It makes later producers notify for nothing: `disarmed` fell, or a relay let go of a ticket it had received
    /// before `disarmed` was there.
    pub noisy: bool,
}

impl World {
    /// Nobody has done anything.
    pub fn new(model: Model) -> Self {
        let relay = Relay { sleeper: Sleeper::default(), flight: Flight::Nothing, pending: [0; PRODUCERS] };
        let mut producers = [Producer::Gone; PRODUCERS];
        producers[..model.producers].fill(Producer::Idle);
        Self { relays: [relay.clone(), relay], producers, next_xid: 1, completed: 0, armed: 0, disarmed: 0 }
    }

    /// What is wrong here.
    pub fn wrong(&self) -> Wrong {
        let mut wrong = Wrong::default();
        for (index, relay) in self.relays.iter().enumerate() {
            if relay.flight != Flight::Nothing || relay.pending[0] != 0 || relay.sleeper.next() != Action::Sleep {
                continue;
            }
            let unseen = self.producers.iter().any(|p| matches!(p, Producer::Committed(seen) if seen & (1 << index) == 0));
            let running = self.producers.iter().any(|p| matches!(p, Producer::Running(..)));
            wrong.stuck |= unseen && !running;
            wrong.overslept |= unseen;
            wrong.deaf |= hint(self.armed.into(), self.disarmed.into(), NOW, ARMED_UNTIL).is_none();
        }
        wrong
    }

    /// Every step that can be next, with the state after it.
    pub fn steps(&self, model: Model, into: &mut Vec<(Step, World)>) {
        for index in 0..PRODUCERS {
            // Producers are alike and sorted: of two in the same state one is enough.
            if index > 0 && self.producers[index] == self.producers[index - 1] {
                continue;
            }
            for rolls_back in [false, true] {
                let mut world = self.clone();
                if let Some(what) = world.produce(model, index, rolls_back) {
                    into.push((Step { who: "producer", what, noisy: false }, world.canonical()));
                }
            }
        }
        for index in 0..RELAYS {
            for receives in [false, true] {
                let mut world = self.clone();
                let step = if receives { world.receive(model, index) } else { world.relay(model, index) };
                if let Some((what, let_go)) = step {
                    let noisy = world.disarmed < self.disarmed || u64::from(world.disarmed) < let_go;
                    into.push((Step { who: ["relay 0", "relay 1"][index], what, noisy }, world.canonical()));
                }
            }
        }
    }

    /// The next step of a producer, in the order of `postrider.emit` and `postrider.ring_bell`.
    fn produce(&mut self, model: Model, index: usize, rolls_back: bool) -> Option<&'static str> {
        let xid_first = model.mutant != Some(Mutant::BellBeforeXid);
        let (after, what) = match self.producers[index] {
            Producer::Running(xid, _) if rolls_back => {
                self.completed = self.completed.max(xid);
                (Producer::Gone, "rolls back")
            }
            _ if rolls_back => return None,
            Producer::Idle if xid_first => (Producer::Running(self.take_xid(), At::Written), "takes its xid"),
            Producer::Idle => (Producer::Running(0, At::Written), "begins"),
            Producer::Running(xid, At::Written) => (Producer::Running(xid, At::Armed(self.armed)), "reads armed"),
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
                self.completed = self.completed.max(xid);
                if ticket != 0 {
                    for relay in &mut self.relays {
                        // Each producer commits once, so there is room.
                        let free = relay.pending.iter().position(|&pending| pending == 0).unwrap();
                        relay.pending[free] = ticket;
                    }
                }
                (Producer::Committed(0), if ticket == 0 { "commits" } else { "commits and notifies" })
            }
            Producer::Committed(_) | Producer::Gone => return None,
        };
        self.producers[index] = after;
        Some(what)
    }

    /// A relay receives the oldest notification. Also returns the ticket it lets go of.
    fn receive(&mut self, model: Model, index: usize) -> Option<(&'static str, u64)> {
        let relay = &mut self.relays[index];
        let ticket = relay.pending[0];
        if ticket == 0 {
            return None;
        }
        relay.pending.rotate_left(1);
        relay.pending[PRODUCERS - 1] = 0;
        if model.mutant == Some(Mutant::IgnoreWhenAwake) && relay.sleeper.next() != Action::Sleep {
            return Some(("ignores a notification", ticket.into()));
        }
        relay.sleeper.on(Event::Notified(ticket.into()));
        Some(("receives a notification", 0))
    }

    /// A relay does what its [`Sleeper`] asks for, or hears what came of it. Also returns the ticket it lets go of.
    fn relay(&mut self, model: Model, index: usize) -> Option<(&'static str, u64)> {
        let flight = self.relays[index].flight;
        if flight != Flight::Nothing {
            return Some(self.land(model, index, flight));
        }
        let (flight, what) = match self.relays[index].sleeper.next() {
            Action::Look => {
                let found = self.look(index);
                (Flight::Looked(found, self.xmin()), if found { "looks and finds" } else { "looks and finds nothing" })
            }
            Action::TakeTicket if model.mutant == Some(Mutant::XidBeforeTicket) => {
                (Flight::XidThenTicket(self.take_xid()), "takes its xid before the ticket")
            }
            Action::TakeTicket => {
                self.take_ticket(index);
                if model.mutant == Some(Mutant::NoLookAfterTicket) {
                    let sleeper = &mut self.relays[index].sleeper;
                    sleeper.on(Event::Xid(0));
                    sleeper.on(Event::Looked { found: false, xmin: u64::MAX });
                }
                (Flight::Nothing, "takes a ticket")
            }
            Action::TakeXid if model.mutant == Some(Mutant::WaitForXip) => {
                // The xip of a snapshot names no xid above the highest that has ended.
                self.relays[index].sleeper.on(Event::Xid(self.completed.into()));
                (Flight::Nothing, "takes a snapshot to wait for")
            }
            Action::TakeXid => (Flight::Xid(self.take_xid()), "takes its xid"),
            Action::Disarm(ticket) => {
                let target = self.disarmed.max(small(ticket));
                match model.mutant {
                    Some(Mutant::DisarmUnlocked) => (Flight::WillDisarm(target), "reads disarmed"),
                    Some(Mutant::DisarmEverything) => {
                        self.disarmed = self.armed;
                        (Flight::Disarmed, "disarms everything")
                    }
                    _ => {
                        self.disarmed = target;
                        (Flight::Disarmed, "disarms")
                    }
                }
            }
            Action::Watch => {
                self.relays[index].sleeper.on(Event::TimedOut);
                (Flight::Nothing, "has watched for a while")
            }
            Action::Sleep => return None,
        };
        self.relays[index].flight = flight;
        if model.at_once && matches!(flight, Flight::Looked(..) | Flight::Disarmed) {
            let (_, let_go) = self.land(model, index, flight);
            return Some((what, let_go));
        }
        Some((what, 0))
    }

    /// A relay hears what came of its request.
    fn land(&mut self, model: Model, index: usize, flight: Flight) -> (&'static str, u64) {
        let relay = &mut self.relays[index];
        relay.flight = Flight::Nothing;
        match flight {
            Flight::Nothing => ("idles", 0),
            Flight::Xid(xid) => {
                relay.sleeper.on(Event::Xid(xid.into()));
                self.completed = self.completed.max(xid);
                ("ends its own transaction", 0)
            }
            Flight::XidThenTicket(xid) => {
                self.take_ticket(index);
                self.relays[index].sleeper.on(Event::Xid(xid.into()));
                ("takes a ticket and ends its own transaction", 0)
            }
            Flight::Looked(found, xmin) => {
                let was_armed = relay.sleeper.is_armed();
                relay.sleeper.on(Event::Looked { found, xmin: xmin.into() });
                if !found {
                    relay.sleeper.doze();
                } else if was_armed && model.mutant == Some(Mutant::DisarmUnbidden) {
                    relay.sleeper.on(Event::Notified(self.armed.into()));
                }
                ("hears what it found", 0)
            }
            Flight::Disarmed => {
                let Action::Disarm(let_go) = relay.sleeper.next() else { return ("disarmed", 0) };
                relay.sleeper.on(Event::Disarmed);
                ("hears that it has disarmed", let_go)
            }
            Flight::WillDisarm(target) => {
                self.disarmed = target;
                relay.flight = Flight::Disarmed;
                ("writes disarmed", 0)
            }
        }
    }

    fn take_xid(&mut self) -> u8 {
        self.next_xid += 1;
        self.next_xid - 1
    }

    fn take_ticket(&mut self, index: usize) {
        self.armed += 1;
        self.relays[index].sleeper.on(Event::Ticket(self.armed.into()));
    }

    /// Sees every committed row; whether there was a new one.
    fn look(&mut self, index: usize) -> bool {
        let bit = 1 << index;
        let mut found = false;
        for producer in &mut self.producers {
            if let Producer::Committed(seen) = producer
                && *seen & bit == 0
            {
                *seen |= bit;
                found = true;
            }
        }
        found
    }

    /// The lowest running xid, or the next one.
    fn xmin(&self) -> u8 {
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

    /// The one state that stands for all that differ only in which producer, or which relay, is which.
    fn canonical(mut self) -> Self {
        for producer in &mut self.producers {
            if *producer == Producer::Committed((1 << RELAYS) - 1) {
                *producer = Producer::Gone;
            }
        }
        self.producers.sort_unstable();
        self
    }
}

/// Tickets are few.
fn small(ticket: u64) -> u8 {
    ticket.try_into().unwrap()
}
