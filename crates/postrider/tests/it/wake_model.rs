//! Scratch
mod search;
mod world;
use world::*;
#[test]
fn all() {
    for at_once in [true, false] {
    for mutant in [None, Some(Mutant::NoLookAfterTicket), Some(Mutant::WaitForXip), Some(Mutant::XidBeforeTicket), Some(Mutant::BellBeforeXid), Some(Mutant::DisarmEverything), Some(Mutant::DisarmUnbidden), Some(Mutant::DisarmUnlocked), Some(Mutant::IgnoreWhenAwake)] {
        for producers in 1..=2 {
            let t = std::time::Instant::now();
            let f = search::explore(Model{producers, at_once, mutant});
            println!("{at_once} {producers} {mutant:?} {f:?} {:?}", t.elapsed());
        }
    }
    }
}
#[test]
fn three() {
    for at_once in [true, false] {
            let t = std::time::Instant::now();
            let f = search::explore(Model{producers: 3, at_once, mutant: None});
            println!("{at_once} 3 {f:?} {:?}", t.elapsed());
    }
}
