//! How fast events come, and how late.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::words;

/// The rate is that of the last second.
const WINDOW: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Pace {
    recent: VecDeque<(Instant, Duration)>,
    all: Vec<Duration>,
}

impl Pace {
    pub(crate) fn note(&mut self, at: Instant, lag: Duration) {
        self.recent.push_back((at, lag));
        self.all.push(lag);
    }

    /// Events in the last second, and their delays: the median and the 99th percentile.
    pub(crate) fn now(&mut self) -> (usize, Option<(Duration, Duration)>) {
        while self.recent.front().is_some_and(|(at, _)| at.elapsed() > WINDOW) {
            self.recent.pop_front();
        }
        let mut lags: Vec<Duration> = self.recent.iter().map(|(_, lag)| *lag).collect();
        (lags.len(), words::percentiles(&mut lags))
    }

    /// Median, 99th percentile and longest of all delays.
    pub(crate) fn whole(&mut self) -> Option<(Duration, Duration, Duration)> {
        let (half, most) = words::percentiles(&mut self.all)?;
        Some((half, most, *self.all.last()?))
    }
}
