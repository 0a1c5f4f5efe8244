//! What is in hand and not begun: in order per key, and by itself where it has to be.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use tokio::time::Instant;

/// What has an order of its own: a key, or a message that has none.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Line {
    Key(String),
    Alone(u64),
}

#[derive(Debug)]
struct Waiting<D> {
    item: D,
    /// Nothing else may be at work beside it.
    is_suspect: bool,
}

/// The items of each line in order; one of a line at a time, those that are suspected of ending the process one at a time altogether.
#[derive(Debug)]
pub(super) struct Desk<D> {
    lines: HashMap<Line, VecDeque<Waiting<D>>>,
    /// Lines whose first item may be begun, in the order in which they became so.
    ready: VecDeque<Line>,
    resting: BTreeSet<(Instant, Line)>,
    busy: HashSet<Line>,
    is_reserved: bool,
    /// For lines of their own.
    next: u64,
}

impl<D> Desk<D> {
    pub(super) fn new() -> Self {
        Self {
            lines: HashMap::new(),
            ready: VecDeque::new(),
            resting: BTreeSet::new(),
            busy: HashSet::new(),
            is_reserved: false,
            next: 0,
        }
    }

    /// Behind everything of its key.
    pub(super) fn push(&mut self, key: Option<String>, item: D, is_suspect: bool) {
        let line = key.map_or_else(
            || {
                self.next += 1;
                Line::Alone(self.next)
            },
            Line::Key,
        );
        let waiting = Waiting { item, is_suspect };
        if let Some(items) = self.lines.get_mut(&line) {
            items.push_back(waiting);
        } else {
            self.lines.insert(line.clone(), VecDeque::from([waiting]));
            self.ready.push_back(line);
        }
    }

    /// The next to be begun, if anything may be. Its line is busy until [`finish`](Self::finish) or [`put_back`](Self::put_back).
    pub(super) fn next(&mut self, now: Instant) -> Option<(Line, D)> {
        while self.resting.first().is_some_and(|(due, _)| *due <= now) {
            self.ready.extend(self.resting.pop_first().map(|(_, line)| line));
        }
        if self.is_reserved {
            return None;
        }
        let line = self.ready.front()?.clone();
        let items = self.lines.get_mut(&line)?;
        let is_suspect = items.front()?.is_suspect;
        if is_suspect && !self.busy.is_empty() {
            return None;
        }
        let item = items.pop_front()?.item;
        self.ready.pop_front();
        self.is_reserved = is_suspect;
        self.busy.insert(line.clone());
        Some((line, item))
    }

    /// What was begun of this line is settled.
    pub(super) fn finish(&mut self, line: Line) {
        self.busy.remove(&line);
        self.is_reserved = false;
        match self.lines.get(&line) {
            Some(items) if !items.is_empty() => self.ready.push_back(line),
            _ => drop(self.lines.remove(&line)),
        }
    }

    /// What was begun of this line is to be begun again, not before then, and before everything behind it; by itself, if nothing is known of it yet.
    pub(super) fn put_back(&mut self, line: Line, item: D, due: Instant, is_suspect: bool) {
        self.busy.remove(&line);
        self.is_reserved = false;
        let items = self.lines.entry(line.clone()).or_default();
        items.push_front(Waiting { item, is_suspect });
        self.resting.insert((due, line));
    }

    /// When something will be ready.
    pub(super) fn wakes(&self) -> Option<Instant> {
        self.resting.first().map(|(due, _)| *due)
    }

    /// Everything that was not begun.
    pub(super) fn clear(&mut self) -> Vec<D> {
        self.ready.clear();
        self.resting.clear();
        let items = self.lines.values_mut().flat_map(std::mem::take).map(|waiting| waiting.item).collect();
        let Self { lines, busy, .. } = self;
        // Those go when they finish: what comes for them meanwhile waits.
        lines.retain(|line, _| busy.contains(line));
        items
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn desk(items: &[(&'static str, u32, bool)]) -> Desk<u32> {
        let mut desk = Desk::new();
        for (key, item, is_suspect) in items {
            let key = Some(*key).filter(|key| !key.is_empty()).map(str::to_owned);
            desk.push(key, *item, *is_suspect);
        }
        desk
    }

    #[tokio::test]
    async fn one_of_a_key_at_a_time_and_in_order() {
        let now = Instant::now();
        let mut desk =
            desk(&[("a", 1, false), ("a", 2, false), ("b", 3, false), ("", 4, false), ("", 5, false)]);
        let begun: Vec<_> = std::iter::from_fn(|| desk.next(now)).collect();
        assert_eq!(begun.iter().map(|(_, item)| *item).collect::<Vec<_>>(), [1, 3, 4, 5]);
        desk.finish(begun[0].0.clone());
        assert_eq!(desk.next(now).map(|(_, item)| item), Some(2));
    }

    #[tokio::test]
    async fn what_comes_again_later_keeps_its_place() {
        let now = Instant::now();
        let mut desk = desk(&[("a", 1, false), ("a", 2, false), ("b", 3, false)]);
        let (line, item) = desk.next(now).unwrap();
        let due = now + Duration::from_secs(5);
        desk.put_back(line, item, due, false);
        assert_eq!(desk.wakes(), Some(due));
        assert_eq!(desk.next(now).map(|(_, item)| item), Some(3));
        assert!(desk.next(now).is_none(), "2 waits behind 1");
        assert_eq!(desk.next(due).map(|(_, item)| item), Some(1));
    }

    #[tokio::test]
    async fn a_suspect_is_begun_when_nothing_else_is_at_work_and_nothing_beside_it() {
        let now = Instant::now();
        let mut desk = desk(&[("a", 1, false), ("b", 2, true), ("c", 3, true), ("d", 4, false)]);
        let (first, _) = desk.next(now).unwrap();
        assert!(desk.next(now).is_none(), "1 is at work");
        desk.finish(first);
        let (second, item) = desk.next(now).unwrap();
        assert_eq!(item, 2);
        assert!(desk.next(now).is_none(), "2 is by itself");
        desk.finish(second);
        let (third, item) = desk.next(now).unwrap();
        assert_eq!(item, 3);
        // The database failed: of 3 nobody knows any more than before.
        desk.put_back(third, item, now, true);
        let (fourth, item) = desk.next(now).unwrap();
        assert_eq!(item, 4);
        assert!(desk.next(now).is_none(), "4 is at work");
        desk.finish(fourth);
        assert_eq!(desk.next(now).map(|(_, item)| item), Some(3));
        assert!(desk.next(now).is_none(), "3 is by itself again");
    }

    #[tokio::test]
    async fn what_is_cleared_comes_back_behind_what_is_at_work() {
        let now = Instant::now();
        let mut desk = desk(&[("a", 1, false), ("a", 2, false), ("b", 3, false)]);
        let (line, _) = desk.next(now).unwrap();
        let mut cleared = desk.clear();
        cleared.sort_unstable();
        assert_eq!(cleared, [2, 3]);
        desk.push(Some("a".into()), 2, false);
        assert!(desk.next(now).is_none(), "1 is still at work");
        desk.finish(line);
        assert_eq!(desk.next(now).map(|(_, item)| item), Some(2));
    }
}
