//! What a relay does: everything its [`Sleeper`](postrider::log::wake::Sleeper) asks for, and nothing else.

use postrider::log::wake::{Action, Event};

use super::world::{Flight, Model, Mutant, PRODUCERS, World, small};

impl World {
    /// A relay receives the oldest notification. Also returns the ticket it lets go of.
    pub(super) fn receive(&mut self, model: Model, index: usize) -> Option<(&'static str, u64)> {
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

    /// A relay does what its sleeper asks for, or hears what came of it. Also returns the ticket it lets go of.
    pub(super) fn relay(&mut self, model: Model, index: usize) -> Option<(&'static str, u64)> {
        let flight = self.relays[index].flight;
        if flight != Flight::Nothing {
            return Some(self.land(model, index, flight));
        }
        let (flight, what) = match self.relays[index].sleeper.next() {
            Action::Look => {
                let found = std::mem::take(&mut self.relays[index].unseen);
                (
                    Flight::Looked(found, self.xmin()),
                    if found { "looks and finds" } else { "looks and finds nothing" },
                )
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
                self.relays[index].awaits = self.completed;
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
                relay.awaits = xid;
                self.completed = self.completed.max(xid);
                ("ends its own transaction", 0)
            }
            Flight::XidThenTicket(xid) => {
                self.take_ticket(index);
                self.relays[index].sleeper.on(Event::Xid(xid.into()));
                self.relays[index].awaits = xid;
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
                let Action::Disarm(let_go) = relay.sleeper.next() else {
                    return ("disarmed", 0);
                };
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

    fn take_ticket(&mut self, index: usize) {
        self.armed += 1;
        self.relays[index].sleeper.on(Event::Ticket(self.armed.into()));
    }
}
