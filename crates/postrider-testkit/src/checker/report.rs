//! The comparison and its result.

use std::collections::{HashMap, HashSet};
use std::fmt;

use uuid::Uuid;

use super::receipts::Delivery;
use super::{Entry, Fate};

/// How many offenders of a kind are named.
const SAMPLES: usize = 5;

/// What a sink received, measured against what was committed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Events that were written, whatever became of them.
    pub attempted: usize,
    /// Events whose commit returned.
    pub committed: usize,
    /// Events whose commit may or may not have happened: neither lost nor phantom.
    pub in_doubt: usize,
    /// Different events received that are committed or in doubt.
    pub delivered: usize,
    /// Committed events that were not received.
    pub lost: Offenders,
    /// Events received that did not commit, or with a key or number that is not theirs.
    pub phantom: Offenders,
    /// Deliveries beyond an event's first.
    pub duplicated: Offenders,
    /// Events received by a reader for the first time after a later one of the same key. Redeliveries of what
    /// was received before do not count.
    pub misordered: Offenders,
}

/// How many events offend, and the first few of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offenders {
    /// How many.
    pub count: usize,
    /// Some of them.
    pub samples: Vec<Uuid>,
}

impl Offenders {
    fn add(&mut self, id: Uuid) {
        self.count += 1;
        if self.samples.len() < SAMPLES {
            self.samples.push(id);
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl Report {
    /// Nothing lost, nothing invented, nothing twice, everything in order.
    pub fn is_exact(&self) -> bool {
        self.is_faithful() && self.duplicated.is_empty()
    }

    /// As [`Report::is_exact`], but duplicates are allowed: what is promised across crashes.
    pub fn is_faithful(&self) -> bool {
        self.lost.is_empty() && self.phantom.is_empty() && self.misordered.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attempted, committed, in_doubt, delivered, .. } = self;
        write!(
            f,
            "{attempted} attempted, {committed} committed, {in_doubt} in doubt, {delivered} delivered"
        )?;
        let kinds = [
            ("lost", &self.lost),
            ("phantom", &self.phantom),
            ("duplicated", &self.duplicated),
            ("misordered", &self.misordered),
        ];
        for (kind, offenders) in kinds {
            write!(f, "; {} {kind}", offenders.count)?;
            for (n, id) in offenders.samples.iter().enumerate() {
                write!(f, "{}{id}", if n == 0 { ": " } else { ", " })?;
            }
            if offenders.count > offenders.samples.len() {
                f.write_str(", …")?;
            }
        }
        Ok(())
    }
}

pub(super) fn compare(ledger: &HashMap<Uuid, Entry>, deliveries: &[Delivery]) -> Report {
    let mut report = Report { attempted: ledger.len(), ..Report::default() };
    let mut received: HashSet<Uuid> = HashSet::with_capacity(ledger.len());
    let mut highest: HashMap<(u32, &str), u64> = HashMap::new();
    for delivery in deliveries {
        if !received.insert(delivery.id) {
            report.duplicated.add(delivery.id);
            continue;
        }
        let is_true = ledger.get(&delivery.id).is_some_and(|entry| {
            entry.fate != Fate::Attempted && entry.key == delivery.key && entry.number == delivery.number
        });
        if !is_true {
            // An invention has no place in any order.
            report.phantom.add(delivery.id);
            continue;
        }
        report.delivered += 1;
        let highest = highest.entry((delivery.reader, &delivery.key)).or_insert(delivery.number);
        if delivery.number < *highest {
            report.misordered.add(delivery.id);
        }
        *highest = delivery.number.max(*highest);
    }
    for (id, entry) in ledger {
        match entry.fate {
            Fate::Attempted => {}
            Fate::InDoubt => report.in_doubt += 1,
            Fate::Committed => {
                report.committed += 1;
                if !received.contains(id) {
                    report.lost.add(*id);
                }
            }
        }
    }
    report
}
