//! Each counter turns when it should, and the whole agrees with a naive model.

use rand::RngExt as _;
use rand::rngs::StdRng;

use super::*;
use crate::seed::Seed;

/// Events `1..=count` of one key, committed.
fn committed(count: u64) -> (Ledger, Receipts) {
    let ledger = Ledger::new();
    for number in 1..=count {
        ledger.attempt(id(number), "k", number);
        ledger.commit(id(number));
    }
    (ledger, Receipts::new())
}

fn id(number: u64) -> Uuid {
    Uuid::from_u64_pair(0, number)
}

fn receive(receipts: &Receipts, numbers: &[u64]) {
    for &number in numbers {
        receipts.record(0, id(number), "k", number);
    }
}

#[test]
fn all_in_order_is_exact() {
    let (ledger, receipts) = committed(3);
    receive(&receipts, &[1, 2, 3]);
    let report = ledger.check(&receipts);
    assert!(report.is_exact(), "{report}");
    assert_eq!((report.attempted, report.committed, report.delivered), (3, 3, 3));
}

#[test]
fn a_missing_event_is_lost() {
    let (ledger, receipts) = committed(3);
    receive(&receipts, &[1, 3]);
    let report = ledger.check(&receipts);
    assert_eq!(report.lost.samples, [id(2)]);
    assert!(!report.is_exact() && !report.is_faithful());
    assert!(report.misordered.is_empty(), "a hole is not disorder");
}

#[test]
fn what_rolled_back_or_was_never_written_is_a_phantom() {
    let (ledger, receipts) = committed(1);
    ledger.attempt(id(2), "k", 2);
    receive(&receipts, &[1, 2, 9]);
    let report = ledger.check(&receipts);
    assert_eq!(report.phantom.samples, [id(2), id(9)]);
    assert_eq!((report.attempted, report.committed, report.delivered), (2, 1, 1));
    assert!(!report.is_faithful());
}

#[test]
fn another_key_or_number_under_a_known_id_is_a_phantom() {
    let (ledger, receipts) = committed(2);
    receipts.record(0, id(1), "other", 1);
    receipts.record(0, id(2), "k", 3);
    assert_eq!(ledger.check(&receipts).phantom.count, 2);
}

#[test]
fn deliveries_beyond_the_first_are_duplicates_and_keep_their_order() {
    let (ledger, receipts) = committed(3);
    receive(&receipts, &[1, 2, 1, 2, 3, 1]);
    let report = ledger.check(&receipts);
    assert_eq!(report.duplicated.count, 3);
    assert!(report.is_faithful() && !report.is_exact());
}

#[test]
fn first_delivery_after_a_later_one_is_misordered() {
    let (ledger, receipts) = committed(4);
    receive(&receipts, &[1, 4, 2, 3]);
    let report = ledger.check(&receipts);
    assert_eq!(report.misordered.samples, [id(2), id(3)]);
    assert!(!report.is_faithful());
}

#[test]
fn order_is_a_matter_of_one_reader_and_one_key() {
    let (ledger, receipts) = committed(2);
    ledger.attempt(id(3), "other", 1);
    ledger.commit(id(3));
    receipts.record(1, id(2), "k", 2);
    receipts.record(2, id(1), "k", 1);
    receipts.record(1, id(3), "other", 1);
    assert!(ledger.check(&receipts).is_exact());
}

#[test]
fn doubt_is_neither_lost_nor_phantom() {
    let (ledger, receipts) = committed(1);
    for number in [2, 3] {
        ledger.attempt(id(number), "k", number);
        ledger.in_doubt(id(number));
    }
    receive(&receipts, &[1, 2]);
    let report = ledger.check(&receipts);
    assert!(report.is_exact(), "{report}");
    assert_eq!((report.in_doubt, report.delivered), (2, 2));
}

#[test]
fn samples_are_few_and_the_text_names_them() {
    let (ledger, receipts) = committed(20);
    let report = ledger.check(&receipts);
    assert_eq!((report.lost.count, report.lost.samples.len()), (20, 5));
    let text = report.to_string();
    assert!(text.starts_with("20 attempted, 20 committed, 0 in doubt, 0 delivered; 20 lost: 0000"), "{text}");
    assert!(text.ends_with(", …; 0 phantom; 0 duplicated; 0 misordered"), "{text}");
}

#[test]
fn agrees_with_a_naive_model() {
    let mut rng = Seed::from_env_or_random("agrees_with_a_naive_model").rng();
    for _ in 0..3000 {
        let model = Model::random(&mut rng);
        let report = model.play();
        let counts =
            [&report.lost, &report.phantom, &report.duplicated, &report.misordered].map(|kind| kind.count);
        assert_eq!(counts, model.counts(), "{model:?}");
    }
}

/// A small history, with everything counted the slow and obvious way.
#[derive(Debug)]
struct Model {
    /// Key, number and fate (0 attempted, 1 in doubt, 2 committed); the place in the list is the id.
    events: Vec<(String, u64, u8)>,
    /// Reader and event, in the order received. Events beyond the list were never written.
    deliveries: Vec<(u32, usize)>,
}

impl Model {
    fn random(rng: &mut StdRng) -> Self {
        let events: Vec<_> = (0..rng.random_range(0..8_u64))
            .map(|number| (format!("k{}", rng.random_range(0..3)), number, rng.random_range(0..3)))
            .collect();
        let deliveries = (0..rng.random_range(0..12))
            .map(|_| (rng.random_range(0..2), rng.random_range(0..=events.len())))
            .collect();
        Self { events, deliveries }
    }

    fn play(&self) -> Report {
        let (ledger, receipts) = (Ledger::new(), Receipts::new());
        for (n, (key, number, fate)) in self.events.iter().enumerate() {
            ledger.attempt(id(n as u64), key, *number);
            match fate {
                1 => ledger.in_doubt(id(n as u64)),
                2 => ledger.commit(id(n as u64)),
                _ => {}
            }
        }
        for &(reader, n) in &self.deliveries {
            let (key, number, _) = self.events.get(n).cloned().unwrap_or_default();
            receipts.record(reader, id(n as u64), &key, number);
        }
        ledger.check(&receipts)
    }

    fn counts(&self) -> [usize; 4] {
        let is_real = |n: usize| self.events.get(n).is_some_and(|event| event.2 > 0);
        let is_first = |at: usize| self.deliveries[..at].iter().all(|(_, n)| *n != self.deliveries[at].1);
        let firsts: Vec<_> =
            (0..self.deliveries.len()).filter(|at| is_first(*at)).map(|at| self.deliveries[at]).collect();
        let lost =
            (0..self.events.len()).filter(|n| self.events[*n].2 == 2 && firsts.iter().all(|(_, f)| f != n));
        let phantom = firsts.iter().filter(|(_, n)| !is_real(*n));
        let real: Vec<_> = firsts.iter().filter(|(_, n)| is_real(*n)).collect();
        let overtaken = |at: usize| {
            let (reader, n) = *real[at];
            let (key, number, _) = &self.events[n];
            real[..at]
                .iter()
                .any(|(r, m)| *r == reader && self.events[*m].0 == *key && self.events[*m].1 > *number)
        };
        let misordered = (0..real.len()).filter(|at| overtaken(*at));
        [lost.count(), phantom.count(), self.deliveries.len() - firsts.len(), misordered.count()]
    }
}
