//! Whose turn it is to have a large event in memory: one reader's at a time, of all that share their room.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// Who keeps its turn for longer waits for somebody, a sink that is away for one, and that must not hold up the others. They go on, and
/// its event stays in memory beside theirs.
pub(super) const LONGEST: Duration = Duration::from_secs(10);

/// All who wait, and whose turn it is.
#[derive(Debug, Default)]
pub(super) struct Turns {
    line: Mutex<Line>,
    moved: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Line {
    drawn: u64,
    /// The first one's turn it is.
    places: VecDeque<Place>,
}

#[derive(Debug)]
struct Place {
    number: u64,
    /// Since when it is the first.
    since: Option<Instant>,
    /// Whether it knows.
    is_taken: bool,
}

/// A place in the line, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    number: u64,
    turns: Arc<Turns>,
}

impl Turns {
    /// A place behind all who wait.
    pub(super) fn queue(self: &Arc<Self>) -> Turn {
        let mut line = self.line();
        line.drawn += 1;
        let number = line.drawn;
        line.push(number);
        Turn { number, turns: Arc::clone(self) }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    fn push(&mut self, number: u64) {
        self.places.push_back(Place { number, since: None, is_taken: false });
    }

    /// How long it may take at most until it is worth while to ask again; nothing if its turn has come.
    fn wait(&mut self, number: u64, now: Instant) -> Option<Duration> {
        loop {
            let Some(first) = self.places.front_mut() else {
                // Its turn was over before it knew.
                self.push(number);
                continue;
            };
            let since = *first.since.get_or_insert(now);
            if first.number == number {
                if !std::mem::replace(&mut first.is_taken, true) {
                    first.since = Some(now);
                }
                return None;
            }
            let left = LONGEST.saturating_sub(now.saturating_duration_since(since));
            if left.is_zero() {
                self.places.pop_front();
                continue;
            }
            if !self.places.iter().any(|place| place.number == number) {
                self.push(number);
            }
            return Some(left);
        }
    }
}

impl Turn {
    /// Whether it has come.
    pub(super) fn has_come(&self) -> bool {
        self.turns.line().wait(self.number, Instant::now()).is_none()
    }

    /// Waits until it may have come.
    pub(super) async fn may_come(&self) {
        let mut moved = self.turns.moved.subscribe();
        let wait = self.turns.line().wait(self.number, Instant::now());
        if let Some(longest) = wait {
            // The sender lives as long as we do.
            let _ = tokio::time::timeout(longest, moved.changed()).await;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.line().places.retain(|place| place.number != self.number);
        self.turns.moved.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_after_another_in_the_order_they_came() {
        let turns = Arc::new(Turns::default());
        let (first, second, third) = (turns.queue(), turns.queue(), turns.queue());
        assert!(!third.has_come() && !second.has_come() && first.has_come());
        drop(first);
        assert!(!third.has_come() && second.has_come());
        drop(third);
        drop(second);
        assert!(turns.queue().has_come());
    }

    #[test]
    fn who_stays_for_too_long_is_passed_and_harms_nobody_when_it_goes() {
        let turns = Arc::new(Turns::default());
        let (stuck, next, last) = (turns.queue(), turns.queue(), turns.queue());
        let now = Instant::now();
        let wait = |turn: &Turn, at| turns.line().wait(turn.number, at);
        assert_eq!(wait(&stuck, now), None);
        assert_eq!(wait(&next, now + LONGEST / 4), Some(LONGEST / 4 * 3));
        assert_eq!(wait(&next, now + LONGEST), None);
        // Its own time begins when it takes its turn.
        assert_eq!(wait(&last, now + LONGEST), Some(LONGEST));
        drop(stuck);
        assert_eq!(wait(&last, now + LONGEST), Some(LONGEST), "it was not its turn that ended");
        drop(next);
        assert_eq!(wait(&last, now + LONGEST), None);
    }

    #[test]
    fn who_waits_for_its_turn_and_does_not_take_it_holds_nobody_up_for_ever() {
        let turns = Arc::new(Turns::default());
        let (absent, other) = (turns.queue(), turns.queue());
        let now = Instant::now();
        let wait = |turn: &Turn, at| turns.line().wait(turn.number, at);
        assert_eq!(wait(&other, now), Some(LONGEST));
        assert_eq!(wait(&other, now + LONGEST), None);
        // It comes back, to the end of the line.
        assert_eq!(wait(&absent, now + LONGEST), Some(LONGEST));
        drop(other);
        assert_eq!(wait(&absent, now + LONGEST), None);
    }

    #[tokio::test]
    async fn who_waits_is_told() {
        let turns = Arc::new(Turns::default());
        let (first, second) = (turns.queue(), turns.queue());
        assert!(first.has_come());
        let waiting = tokio::spawn(async move {
            while !second.has_come() {
                second.may_come().await;
            }
        });
        tokio::task::yield_now().await;
        drop(first);
        tokio::time::timeout(LONGEST / 2, waiting).await.unwrap().unwrap();
    }
}
