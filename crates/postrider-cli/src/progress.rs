//! How far it is, for a person in front of a terminal.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use crate::output;

const EVERY: Duration = Duration::from_millis(100);
const WIDTH: u64 = 30;

/// A bar that is drawn over and over on one line of standard error; nothing if that is not a terminal.
pub(crate) struct Progress {
    total: Option<u64>,
    started: Instant,
    next: Instant,
    shown: bool,
}

impl Progress {
    pub(crate) fn new(total: Option<u64>) -> Self {
        let now = Instant::now();
        Self { total, started: now, next: now + EVERY, shown: false }
    }

    pub(crate) fn show(&mut self, bytes: u64, events: u64) {
        let now = Instant::now();
        if now < self.next || !io::stderr().is_terminal() {
            return;
        }
        self.next = now + EVERY;
        self.shown = true;
        let _ = write!(io::stderr(), "\r{}\x1b[K", bar(self.total, bytes, events, now - self.started));
    }

    /// Takes the bar away, so that what is said next begins on a line of its own.
    pub(crate) fn end(&mut self) {
        if std::mem::take(&mut self.shown) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn bar(total: Option<u64>, bytes: u64, events: u64, elapsed: Duration) -> String {
    let millis = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX).max(1);
    let rate = events.saturating_mul(1000) / millis;
    let figures = format!("{} · {}/s", output::events(events), output::thousands(rate));
    let Some(total) = total.filter(|total| *total > 0) else {
        return figures;
    };
    let bytes = bytes.min(total);
    let filled = usize::try_from(WIDTH * bytes / total).unwrap_or(0);
    let empty = usize::try_from(WIDTH).unwrap_or(0).saturating_sub(filled);
    format!("[{}{}] {:>3} % · {figures}", "█".repeat(filled), "·".repeat(empty), 100 * bytes / total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_what_is_done() {
        let text = bar(Some(200), 100, 1500, Duration::from_secs(1));
        assert!(
            text.starts_with(&format!("[{}{}]  50 % · 1,500 events", "█".repeat(15), "·".repeat(15))),
            "{text}"
        );
        assert_eq!(bar(None, 0, 10, Duration::from_secs(1)), "10 events · 10/s");
    }
}
