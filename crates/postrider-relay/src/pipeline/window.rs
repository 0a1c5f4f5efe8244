//! What was read and is not settled yet: what to send next, what is done, how far each lane may be settled. No IO.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use postrider::log::parking::{Parking, Refused, ToPark};
use postrider::log::{Batch, Record, Settlement};

/// Records of one lane of a batch, next to each other.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) batch: Arc<Batch>,
    serial: u64,
    lane: i16,
    range: Range<usize>,
}

impl Part {
    pub(super) fn lane(&self) -> i16 {
        self.lane
    }

    pub(super) fn records(&self) -> &[Record] {
        &self.batch.lane(self.lane)[self.range.clone()]
    }
}

/// What became of a record that was taken from the window.
#[derive(Debug)]
pub(super) enum Fate {
    /// Delivered, or not wanted by the filter.
    Done,
    /// To be parked.
    Parked(Box<ToPark>),
    /// Still to be sent.
    Unsent,
}

/// One lane of one batch.
#[derive(Debug)]
struct Lane {
    number: i16,
    len: usize,
    /// Everything before is done.
    frontier: usize,
    /// What is done beyond the frontier; empty as long as nothing is.
    beyond: Vec<bool>,
    /// Done and to be parked when the progress past it is stored, in order.
    parking: VecDeque<(usize, ToPark)>,
    /// Everything before is stored.
    settled: usize,
}

impl Lane {
    fn is_done(&self, index: usize) -> bool {
        index < self.frontier || self.beyond.get(index).copied().unwrap_or_default()
    }

    fn finish(&mut self, index: usize) {
        if index != self.frontier {
            self.beyond.resize(self.len, false);
            self.beyond[index] = true;
            return;
        }
        self.frontier += 1;
        while self.frontier < self.len && self.beyond.get(self.frontier).copied().unwrap_or_default() {
            self.frontier += 1;
        }
    }

    fn done(&self) -> usize {
        self.frontier + self.beyond.iter().skip(self.frontier).filter(|done| **done).count()
    }

    /// The first run of records that are not done, from `from` on and before `to`.
    fn run(&self, from: usize, to: usize, most: usize) -> Range<usize> {
        let start = (from.max(self.frontier)..to).find(|index| !self.is_done(*index)).unwrap_or(to);
        let end = (start..to.min(start + most)).find(|index| self.is_done(*index));
        start..end.unwrap_or(to.min(start + most))
    }

    /// Everything from here on is not done.
    fn end_of_done(&self) -> usize {
        self.beyond.iter().rposition(|done| *done).map_or(self.frontier, |last| self.frontier.max(last + 1))
    }
}

/// One batch.
#[derive(Debug)]
struct Open {
    serial: u64,
    batch: Arc<Batch>,
    lanes: Vec<Lane>,
}

impl Open {
    fn parts(&self) -> Vec<Part> {
        let part = |lane: &Lane| Part {
            batch: Arc::clone(&self.batch),
            serial: self.serial,
            lane: lane.number,
            range: 0..lane.len,
        };
        self.lanes.iter().map(part).collect()
    }
}

/// How far each lane was when a settlement was made.
#[derive(Debug)]
pub(super) struct Settling {
    marks: Vec<(u64, Vec<(i16, usize)>)>,
    /// The epoch in which each lane had come to us.
    tenures: BTreeMap<i16, i64>,
    /// How many events it moves past.
    pub(super) events: usize,
}

impl Settling {
    /// Whether a lane of a batch is the one that this spoke of.
    pub(super) fn speaks_of(&self, batch: &Batch, lane: i16) -> bool {
        batch.since(lane).is_some_and(|since| self.tenures.get(&lane) == Some(&since))
    }
}

/// All batches that are not settled, oldest first.
#[derive(Debug, Default)]
pub(super) struct Window {
    open: VecDeque<Open>,
    next_serial: u64,
    unsent: usize,
    /// Done and not settled.
    unsettled: usize,
}

impl Window {
    /// Takes a batch, and answers its lanes.
    pub(super) fn push(&mut self, batch: Batch) -> Vec<Part> {
        let lanes = batch.lanes().map(|(number, records)| Lane {
            number,
            len: records.len(),
            frontier: 0,
            beyond: Vec::new(),
            parking: VecDeque::new(),
            settled: 0,
        });
        let lanes = lanes.collect();
        self.unsent += batch.len();
        self.open.push_back(Open { serial: self.next_serial, batch: Arc::new(batch), lanes });
        self.next_serial += 1;
        self.open.back().map(Open::parts).unwrap_or_default()
    }

    /// All lanes of all batches.
    pub(super) fn parts(&self) -> Vec<Part> {
        self.open.iter().flat_map(Open::parts).collect()
    }

    /// Records that are neither done nor known to be sent.
    pub(super) fn unsent(&self) -> usize {
        self.unsent
    }

    /// Of these, the ones in some lanes.
    pub(super) fn unsent_in(&self, lanes: &[i16]) -> usize {
        let lanes = self.lanes().filter(|lane| lanes.contains(&lane.number));
        lanes.map(|lane| lane.len - lane.done()).sum()
    }

    /// Up to where something of these lanes is done and not settled: in which batch, and how far into it.
    fn ends_of_begun(&self, lanes: &[i16]) -> BTreeMap<i16, (u64, usize)> {
        let all = self.open.iter().flat_map(|open| open.lanes.iter().map(|lane| (open.serial, lane)));
        all.filter(|(_, lane)| lanes.contains(&lane.number) && lane.done() > lane.settled)
            .map(|(serial, lane)| (lane.number, (serial, lane.end_of_done())))
            .collect()
    }

    /// Whether something in a lane is done and not settled.
    pub(super) fn is_owing(&self, number: i16) -> bool {
        self.lanes().any(|lane| lane.number == number && lane.done() > lane.settled)
    }

    fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.open.iter().flat_map(|open| &open.lanes)
    }

    /// Records that are done and not settled.
    pub(super) fn unsettled(&self) -> usize {
        self.unsettled
    }

    /// The seqs of those.
    pub(super) fn unsettled_seqs(&self) -> impl Iterator<Item = i64> {
        self.open.iter().flat_map(|open| {
            open.lanes.iter().flat_map(|lane| {
                let records = open.batch.lane(lane.number).iter().enumerate().skip(lane.settled);
                records.filter(|(index, _)| lane.is_done(*index)).map(|(_, record)| record.seq)
            })
        })
    }

    /// Whether the records of a part are still ours.
    pub(super) fn has(&self, part: &Part) -> bool {
        let open = self.open.iter().find(|open| open.serial == part.serial);
        open.is_some_and(|open| open.lanes.iter().any(|lane| lane.number == part.lane))
    }

    /// All batches, oldest first.
    pub(super) fn batches(&self) -> impl Iterator<Item = &Batch> {
        self.open.iter().map(|open| &*open.batch)
    }

    /// Whether a settlement would move anything.
    pub(super) fn can_settle(&self) -> bool {
        if self.unsettled == 0 {
            return false;
        }
        let mut unfinished = HashSet::new();
        self.lanes().any(|lane| {
            let ready = !unfinished.contains(&lane.number);
            if lane.frontier < lane.len {
                unfinished.insert(lane.number);
            }
            ready && lane.frontier > lane.settled
        })
    }

    /// The oldest batch.
    pub(super) fn oldest(&self) -> Option<&Batch> {
        self.open.front().map(|open| &*open.batch)
    }

    /// The next records to send, in order. Of lanes that are `retiring` only what something later waits for that is done already: without
    /// it that could never be settled.
    pub(super) fn next(&self, most: usize, retiring: &[i16]) -> Vec<Part> {
        let awaited = self.ends_of_begun(retiring);
        let mut parts = Vec::new();
        let mut room = most;
        for open in &self.open {
            for lane in &open.lanes {
                let end = match awaited.get(&lane.number) {
                    _ if !retiring.contains(&lane.number) => lane.len,
                    Some((serial, _)) if open.serial < *serial => lane.len,
                    Some((serial, end)) if open.serial == *serial => *end,
                    _ => 0,
                };
                let mut from = 0;
                while room > 0 {
                    let range = lane.run(from, end, room);
                    if range.is_empty() {
                        break;
                    }
                    room -= range.len();
                    from = range.end;
                    parts.push(Part {
                        batch: Arc::clone(&open.batch),
                        serial: open.serial,
                        lane: lane.number,
                        range,
                    });
                }
            }
        }
        parts
    }

    /// Takes note of what became of the records of a part. Those of a batch that is gone mean nothing any more.
    pub(super) fn on_fates(&mut self, part: &Part, fates: impl IntoIterator<Item = Fate>) {
        let lane = self
            .open
            .iter_mut()
            .find(|open| open.serial == part.serial)
            .and_then(|open| open.lanes.iter_mut().find(|lane| lane.number == part.lane));
        let Some(lane) = lane else { return };
        for (index, fate) in part.range.clone().zip(fates) {
            if lane.is_done(index) {
                continue;
            }
            match fate {
                Fate::Unsent => continue,
                Fate::Done => {}
                Fate::Parked(event) => {
                    // In order, although an earlier one may have been tried again later: settling takes them from the front.
                    let place = lane.parking.partition_point(|(before, _)| *before < index);
                    lane.parking.insert(place, (index, *event));
                }
            }
            lane.finish(index);
            self.unsent -= 1;
            self.unsettled += 1;
        }
    }

    /// Everything that can be settled now, and a mark of how far that was.
    pub(super) fn settlement(&mut self, strict: bool) -> (Settlement, Settling) {
        let mut settlement = Settlement::default();
        settlement.parking = Parking { strict, events: Vec::new() };
        let mut settling = Settling { marks: Vec::new(), tenures: BTreeMap::new(), events: 0 };
        // Lanes with something left to do: what comes later in them has to wait.
        let mut unfinished = HashSet::new();
        for open in &mut self.open {
            let ready = |lane: &Lane| !unfinished.contains(&lane.number);
            settlement.add(&open.batch, |number, _| {
                open.lanes.iter().find(|lane| lane.number == number && ready(lane)).map(|lane| lane.frontier)
            });
            let mut marks = Vec::new();
            for lane in open.lanes.iter_mut().filter(|lane| !unfinished.contains(&lane.number)) {
                while lane.parking.front().is_some_and(|(index, _)| *index < lane.frontier) {
                    settlement.parking.events.extend(lane.parking.pop_front().map(|(_, event)| event));
                }
                settling.events += lane.frontier - lane.settled;
                marks.push((lane.number, lane.frontier));
                settling.tenures.extend(open.batch.since(lane.number).map(|since| (lane.number, since)));
            }
            unfinished
                .extend(open.lanes.iter().filter(|lane| lane.frontier < lane.len).map(|lane| lane.number));
            settling.marks.push((open.serial, marks));
        }
        (settlement, settling)
    }

    /// It is stored.
    pub(super) fn on_settled(&mut self, settling: &Settling) {
        for (serial, marks) in &settling.marks {
            let Some(open) = self.open.iter_mut().find(|open| open.serial == *serial) else { continue };
            for (number, frontier) in marks {
                if let Some(lane) = open.lanes.iter_mut().find(|lane| lane.number == *number) {
                    self.unsettled -= frontier - lane.settled;
                    lane.settled = *frontier;
                }
            }
        }
        self.drop_settled();
    }

    fn drop_settled(&mut self) {
        while self.open.front().is_some_and(|open| open.lanes.iter().all(|lane| lane.settled == lane.len)) {
            self.open.pop_front();
        }
    }

    /// Forgets the lanes that are not to be kept: somebody reads them again, which may be us. Tells what is done in them and not stored,
    /// with the refusal of what was to be parked; what only waits behind something is decided anew. Answers the keys of what was to be
    /// parked of them.
    pub(super) fn retain(
        &mut self,
        is_kept: impl Fn(&Batch, i16) -> bool,
        mut done: impl FnMut(&Record, Option<&Refused>),
    ) -> Vec<String> {
        let mut keys = Vec::new();
        for open in &mut self.open {
            for lane in open.lanes.extract_if(.., |lane| !is_kept(&open.batch, lane.number)) {
                self.unsent -= lane.len - lane.done();
                self.unsettled -= lane.done() - lane.settled;
                let mut parking = lane.parking.iter().peekable();
                for (index, record) in open.batch.lane(lane.number).iter().enumerate().skip(lane.settled) {
                    match parking.next_if(|(place, _)| *place == index) {
                        Some((_, event)) if event.refused.is_none() => {}
                        Some((_, event)) => done(record, event.refused.as_ref()),
                        None if lane.is_done(index) => done(record, None),
                        None => {}
                    }
                }
                keys.extend(lane.parking.into_iter().filter_map(|(_, event)| event.record.key));
            }
        }
        self.drop_settled();
        keys
    }
}
