//! Every interleaving of the wake-up protocol: two relays that run the real [`Sleeper`](postrider::log::wake::Sleeper), three
//! producers that do what `postrider.emit` does. A sleep never ends by itself in the model, so a relay that no
//! notification wakes is stuck. Broken variants show that the search would notice, and what each rule is good for.

mod canonical;
mod relay;
mod search;
mod twin;
mod world;

use search::{Found, Worlds, explore};
use world::{Model, Mutant};

/// Looks and disarms that a notification can overtake before the relay hears of them.
const LOOSE: Model = Model { producers: 3, at_once: false, reduced: true, mutant: None };
/// As [`Reader`](postrider::log::Reader) does it: one thing at a time.
const TIGHT: Model = Model { at_once: true, ..LOOSE };

fn explored(model: Model) -> Found {
    let (found, _) = explore(model);
    println!("{model:?}: {found}");
    found
}

fn broken(mutant: Mutant) -> Found {
    explored(Model { producers: 2, mutant: Some(mutant), ..TIGHT })
}

#[test]
fn nobody_oversleeps() {
    let found = explored(LOOSE);
    assert!(found.states > 500_000, "{found}");
    assert_eq!((found.stuck, found.overslept, found.deaf), (0, 0, 0), "{found}");
}

#[test]
fn nobody_oversleeps_or_makes_noise_doing_one_thing_at_a_time() {
    let found = explored(TIGHT);
    assert!(found.states > 100_000, "{found}");
    assert_eq!((found.stuck, found.overslept, found.deaf, found.noisy), (0, 0, 0, 0), "{found}");
}

/// Where the relay hears of a disarm only after the next notification, `Event::Disarmed` forgets the newer ticket. That costs one
/// notification for nothing, no event.
#[test]
fn a_ticket_received_while_disarming_is_forgotten() {
    let found = explored(Model { producers: 2, ..LOOSE });
    assert_eq!(found.stuck, 0, "{found}");
    assert!(found.noisy > 0, "{found}");
}

/// The reduced search reaches the same states as the plain one, once those that go on alike are taken together.
#[test]
fn the_reduction_loses_nothing() {
    for mutant in [None].into_iter().chain(Mutant::ALL.map(Some)) {
        for at_once in [true, false] {
            let model = Model { producers: 1, at_once, mutant, ..LOOSE };
            let (found, reduced) = explore(model);
            let (plain, all) = explore(Model { reduced: false, ..model });
            let alike: Worlds = all.into_iter().map(|world| world.canonical(model)).collect();
            assert!(alike == reduced.into_iter().collect(), "{model:?}");
            assert_eq!(found.stuck > 0, plain.stuck > 0, "{model:?}");
        }
    }
}

#[test]
fn stuck_without_a_look_after_the_ticket() {
    assert!(broken(Mutant::NoLookAfterTicket).stuck > 0);
}

/// A snapshot's xip names nobody above the highest xid that has ended: the youngest running writers are in none.
#[test]
fn stuck_when_waiting_for_the_xip_of_a_snapshot() {
    assert!(broken(Mutant::WaitForXip).stuck > 0);
}

/// `nextval` takes the xid of its transaction before it moves the sequence, so ticket and xid need a transaction each.
#[test]
fn stuck_when_the_xid_is_older_than_the_ticket() {
    assert!(broken(Mutant::XidBeforeTicket).stuck > 0);
}

#[test]
fn stuck_when_the_producer_checks_the_bell_before_it_has_its_xid() {
    assert!(broken(Mutant::BellBeforeXid).stuck > 0);
}

/// The simple ticket scheme: a late notification disarms the ticket that another relay sleeps on.
#[test]
fn stuck_when_the_notified_disarm_everything() {
    let found = broken(Mutant::DisarmEverything);
    assert!(found.stuck > 0 && found.deaf > 0);
}

/// A relay that was woken by nobody must not disarm: others sleep on that ticket, or on an older one.
#[test]
fn stuck_when_the_unnotified_disarm() {
    let found = broken(Mutant::DisarmUnbidden);
    assert!(found.stuck > 0 && found.deaf > 0);
}

/// Not stuck: without the lock `disarmed` can only fall back to a lower ticket that somebody received, and the lower it is
/// the more is notified. The lock, and the greatest, save notifications, not events.
#[test]
fn only_noisy_when_disarming_without_the_lock() {
    for at_once in [true, false] {
        let found = explored(Model { producers: 2, at_once, mutant: Some(Mutant::DisarmUnlocked), ..LOOSE });
        assert_eq!((found.stuck, found.overslept, found.deaf), (0, 0, 0));
        assert!(found.noisy > 0);
    }
}

/// Only noisy while nothing can be received between a look and the relay's hearing of it: whoever is not asleep looks once more
/// before it is. But a notification thrown away in that gap was the one that the look missed.
#[test]
fn stuck_when_a_notification_during_a_look_is_ignored() {
    let tight = broken(Mutant::IgnoreWhenAwake);
    assert_eq!((tight.stuck, tight.overslept, tight.deaf), (0, 0, 0));
    assert!(tight.noisy > 0);
    let loose = explored(Model { producers: 2, mutant: Some(Mutant::IgnoreWhenAwake), ..LOOSE });
    assert!(loose.stuck > 0);
}
