//! How long whoever looks at a table rests.

use std::time::{Duration, Instant};

/// Between two lives: the longer, the more of them have ended soon.
pub(super) struct Pauses(Duration);

impl Pauses {
    const LEAST: Duration = Duration::from_millis(250);
    const MOST: Duration = Duration::from_secs(15);

    pub(super) fn new() -> Self {
        Self(Self::LEAST)
    }

    /// After a life that began then.
    pub(super) fn after(&mut self, begun: Instant) -> Duration {
        let pause = if begun.elapsed() > Self::MOST { Self::LEAST } else { self.0 };
        self.0 = (2 * pause).min(Self::MOST);
        pause
    }
}

/// Shortly after something happened, longer and longer while nothing does.
pub(super) struct Pace {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Pace {
    pub(super) fn new((min, max): (Duration, Duration)) -> Self {
        Self { min, max, next: min }
    }

    pub(super) fn reset(&mut self) {
        self.next = self.min;
    }

    /// After a look that took so long.
    pub(super) fn after(&mut self, is_busy: bool, took: Duration) -> Duration {
        let pause = if is_busy { self.min } else { self.next };
        self.next = (2 * pause).min(self.max).max(self.min);
        // Where looking takes long, because much waits for a sink, it is looked less often; where something came of it, the time
        // went into that.
        pause.max(if is_busy { took } else { 4 * took })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_while_nothing_happens_and_begin_anew_when_something_does() {
        let millis = Duration::from_millis;
        let mut pace = Pace::new((millis(250), millis(2000)));
        let mut rest = |is_busy| pace.after(is_busy, Duration::ZERO).as_millis();
        assert_eq!([0; 5].map(|_| rest(false)), [250, 500, 1000, 2000, 2000]);
        assert_eq!([rest(true), rest(true), rest(false), rest(false)], [250, 250, 500, 1000]);
        pace.reset();
        assert_eq!(pace.after(false, Duration::ZERO), millis(250), "somebody has notified");
        assert_eq!(pace.after(false, millis(1000)), millis(4000), "looking takes long");
        assert_eq!(pace.after(true, millis(1000)), millis(1000), "and something comes of it");
    }
}
