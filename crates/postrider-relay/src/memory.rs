//! Keeping to a limit of memory: first smaller batches, down to one event at a time, then an orderly end.

use std::time::Duration;

use postrider::log::{BatchBytes, Large};
use uuid::Uuid;

/// How often it is looked at.
pub(crate) const OFTEN: Duration = Duration::from_millis(250);
const SMALLEST_BATCH: usize = 64 << 10;
/// An event takes so many times its size while it is on its way, as it came, as a record, as a message, as what a sink makes of it, and
/// what the allocator does not give back at once: three were seen with events of 40 MB, nine with 20 MB on a busy machine.
const COPIES: u64 = 12;
/// For so many looks in a row it may be over its limit for an unknown reason: an event that is just being read is known when it is whole.
const UNEXPLAINED: u32 = 8;

/// Watches the memory of this process.
#[derive(Debug)]
pub(crate) struct Memory {
    limit: u64,
    batch_bytes: BatchBytes,
    usual: usize,
    /// The largest event of late, and how often it was not seen since.
    large: Option<(Large, u32)>,
    /// The last event that was too large.
    named: Option<Uuid>,
    /// How many looks in a row found too much, and no event that explains it.
    unexplained: u32,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Go on.
    Fine,
    /// Batches were made smaller.
    Shrunk,
    /// There is one event at a time, and this one alone is too large. Starting anew would find it again.
    TooLarge(Large),
    /// Smaller batches did not help.
    Over,
}

impl Memory {
    pub(crate) fn new(limit: u64, batch_bytes: BatchBytes) -> Self {
        Self {
            limit,
            batch_bytes,
            usual: BatchBytes::default().get(),
            large: None,
            named: None,
            unexplained: 0,
        }
    }

    /// Decides by the memory that is resident now.
    pub(crate) fn judge(&mut self, resident: u64) -> Verdict {
        self.look_for_large();
        let batch = self.batch_bytes.get();
        if resident > self.limit && batch <= SMALLEST_BATCH {
            let is_it = |large: &Large| resident.saturating_sub(large.bytes as u64 * COPIES) <= self.limit;
            let large = self.large.map(|(large, _)| large).filter(is_it);
            self.unexplained = if large.is_some() { 0 } else { self.unexplained + 1 };
            return match large {
                Some(large) if self.named.replace(large.id) == Some(large.id) => Verdict::Fine,
                Some(large) => Verdict::TooLarge(large),
                None if self.unexplained < UNEXPLAINED => Verdict::Fine,
                None => Verdict::Over,
            };
        }
        self.unexplained = 0;
        // Buffers are halved from four fifths of the limit on, and grow back below three fifths.
        if resident > self.limit / 5 * 4 && batch > SMALLEST_BATCH {
            self.batch_bytes.set((batch / 2).max(SMALLEST_BATCH));
            return Verdict::Shrunk;
        }
        if resident < self.limit / 5 * 3 && batch < self.usual {
            self.batch_bytes.set((batch * 2).min(self.usual));
        }
        Verdict::Fine
    }

    /// One that is just being read is not known yet, and what one that has gone took may not be given back at once.
    fn look_for_large(&mut self) {
        const REMEMBERED: u32 = 20;
        let before =
            self.large.filter(|(_, unseen)| *unseen < REMEMBERED).map(|(large, unseen)| (large, unseen + 1));
        let now = self.batch_bytes.largest().map(|large| (large, 0));
        self.large = match (now, before) {
            (Some((large, _)), Some((known, _))) if large.bytes < known.bytes => before,
            (now, before) => now.or(before),
        };
    }
}

/// Bytes of this process that are resident, where the system tells.
pub(crate) fn resident() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = statm.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_shrink_before_the_end_and_grow_back() {
        let bytes = BatchBytes::new(8 << 20);
        let mut memory = Memory::new(100 << 20, bytes.clone());
        assert_eq!(memory.judge(50 << 20), Verdict::Fine);
        for _ in 0..7 {
            assert_eq!(memory.judge(90 << 20), Verdict::Shrunk);
        }
        assert_eq!(bytes.get(), SMALLEST_BATCH);
        assert_eq!(memory.judge(90 << 20), Verdict::Fine);
        for _ in 1..UNEXPLAINED {
            assert_eq!(memory.judge(110 << 20), Verdict::Fine);
        }
        assert_eq!(memory.judge(110 << 20), Verdict::Over);
        assert_eq!(memory.judge(50 << 20), Verdict::Fine);
        assert_eq!(bytes.get(), SMALLEST_BATCH * 2);
    }

    /// Reading it takes a while, and only a whole one has a name.
    #[test]
    fn an_event_that_is_being_read_does_not_end_a_relay() {
        let bytes = BatchBytes::new(SMALLEST_BATCH);
        let mut memory = Memory::new(100 << 20, bytes);
        for _ in 0..2 * UNEXPLAINED {
            for _ in 1..UNEXPLAINED {
                assert_eq!(memory.judge(110 << 20), Verdict::Fine);
            }
            assert_eq!(memory.judge(70 << 20), Verdict::Fine);
        }
    }
}
