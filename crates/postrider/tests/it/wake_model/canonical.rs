//! Fewer states: one stands for all that go on alike.

use std::cmp::Ordering;

use postrider::log::wake::{Action, Event, Sleeper};

use super::world::{At, Flight, Model, Mutant, Producer, World, small};

impl World {
    /// The one state that stands for all that go on alike. Nothing is ever done with an xid or a ticket but to compare it, so only
    /// the order of those counts that can still meet; which producer or relay is which does not count.
    pub(super) fn canonical(mut self, model: Model) -> Self {
        self.renumber_xids(model);
        self.renumber_tickets();
        self.producers.sort_unstable();
        if self.relays[0] > self.relays[1] {
            self.relays.swap(0, 1);
        }
        self
    }

    /// A producer's xid is only ever compared with those that relays wait for, now or later: what counts is how many of these are
    /// older.
    fn renumber_xids(&mut self, model: Model) {
        let mut awaited = 0_u32;
        for relay in &mut self.relays {
            if !relay.sleeper.is_armed() || !matches!(relay.sleeper.next(), Action::Look | Action::Watch) {
                relay.awaits = 0;
            }
            awaited |= 1 << relay.awaits;
            if let Flight::Xid(xid) | Flight::XidThenTicket(xid) = relay.flight {
                awaited |= 1 << xid;
            }
        }
        if model.mutant == Some(Mutant::WaitForXip) {
            // Here the order of the producers counts too: it decides which of them the next snapshot names.
            awaited |= 1 << self.completed;
            for producer in &self.producers {
                if let Producer::Running(xid, _) = producer {
                    awaited |= 1 << xid;
                }
            }
        } else {
            self.completed = 0;
        }
        awaited &= !1;
        // Those that are awaited become 2, 4, 6; the others fall in between. 0 stays what it is, none.
        let number = |xid: u8| match xid {
            0 => 0,
            _ => 2 * below(awaited, xid) + if awaited & (1 << xid) == 0 { 1 } else { 2 },
        };
        for producer in &mut self.producers {
            if let Producer::Running(xid, _) = producer {
                *xid = number(*xid);
            }
        }
        for relay in &mut self.relays {
            let to = number(relay.awaits);
            match &mut relay.flight {
                Flight::Xid(xid) | Flight::XidThenTicket(xid) => *xid = number(*xid),
                // Compared with what this relay waits for and nothing else.
                Flight::Looked(_, xmin) => {
                    *xmin = match (*xmin).cmp(&relay.awaits) {
                        Ordering::Less => to - 1,
                        Ordering::Equal => to,
                        Ordering::Greater => to + 1,
                    }
                }
                Flight::Nothing | Flight::Disarmed | Flight::WillDisarm(_) => {}
            }
            if to != 0 {
                relay.sleeper = awaiting(&relay.sleeper, relay.awaits, to);
            }
            relay.awaits = to;
        }
        self.completed = number(self.completed);
        self.next_xid = 2 * below(awaited, 31) + 2;
    }

    /// Tickets are compared with one another; those that `disarmed` has passed for good are all alike.
    fn renumber_tickets(&mut self) {
        let (mut tickets, mut floor) = (0_u32, self.disarmed);
        self.each_ticket(|ticket| {
            tickets |= 1 << ticket;
            ticket
        });
        for relay in &self.relays {
            if let Flight::WillDisarm(target) = relay.flight {
                floor = floor.min(target);
            }
        }
        tickets &= !((1 << floor) - 1);
        self.each_ticket(|ticket| if ticket == 0 { 0 } else { below(tickets, ticket) + 1 });
    }

    /// Puts another ticket in the place of each.
    fn each_ticket(&mut self, mut change: impl FnMut(u8) -> u8) {
        self.armed = change(self.armed);
        self.disarmed = change(self.disarmed);
        for producer in &mut self.producers {
            if let Producer::Running(_, At::Armed(ticket) | At::RingArmed(ticket) | At::Ready(ticket)) =
                producer
            {
                *ticket = change(*ticket);
            }
        }
        for relay in &mut self.relays {
            for ticket in &mut relay.pending {
                *ticket = change(*ticket);
            }
            if let Flight::WillDisarm(ticket) = &mut relay.flight {
                *ticket = change(*ticket);
            }
            if let Action::Disarm(ticket) = relay.sleeper.next() {
                relay.sleeper = disarming(&relay.sleeper, small(ticket), change(small(ticket)));
            }
        }
    }
}

/// How many of the set are below.
fn below(set: u32, number: u8) -> u8 {
    small((set & ((1 << number) - 1)).count_ones().into())
}

/// The same sleeper, but waiting for another xid. What is built for `from` must be the sleeper we have, so nothing else is lost.
fn awaiting(sleeper: &Sleeper, from: u8, to: u8) -> Sleeper {
    for watching in [false, true] {
        let build = |xid: u8| {
            let mut sleeper = Sleeper::default();
            sleeper.doze();
            sleeper.on(Event::Ticket(0));
            sleeper.on(Event::Xid(xid.into()));
            if watching {
                sleeper.on(Event::Looked { found: false, xmin: 0 });
            }
            sleeper
        };
        if build(from) == *sleeper {
            return build(to);
        }
    }
    panic!("{sleeper:?} does more than wait for {from}")
}

/// The same sleeper, but with another ticket to disarm.
fn disarming(sleeper: &Sleeper, from: u8, to: u8) -> Sleeper {
    for dozing in [false, true] {
        let build = |ticket: u8| {
            let mut sleeper = Sleeper::default();
            sleeper.on(Event::Notified(ticket.into()));
            if dozing {
                sleeper.doze();
            }
            sleeper
        };
        if build(from) == *sleeper {
            return build(to);
        }
    }
    panic!("{sleeper:?} does more than disarm {from}")
}
