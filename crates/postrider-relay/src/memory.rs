//! Keeping to a limit of memory: first smaller batches, then an orderly end.

use std::time::Duration;

use postrider::log::BatchBytes;

/// How often it is looked at.
pub(crate) const OFTEN: Duration = Duration::from_millis(250);
const SMALLEST_BATCH: usize = 64 << 10;

/// Watches the memory of this process.
#[derive(Debug)]
pub(crate) struct Memory {
    limit: u64,
    batch_bytes: BatchBytes,
    usual: usize,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Go on.
    Fine,
    /// Batches were made smaller.
    Shrunk,
    /// Smaller batches did not help.
    Over,
}

impl Memory {
    pub(crate) fn new(limit: u64, batch_bytes: BatchBytes) -> Self {
        let usual = batch_bytes.get();
        Self { limit, batch_bytes, usual }
    }

    /// Decides by the memory that is resident now.
    pub(crate) fn judge(&self, resident: u64) -> Verdict {
        let batch = self.batch_bytes.get();
        if resident > self.limit && batch <= SMALLEST_BATCH {
            return Verdict::Over;
        }
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
        let memory = Memory::new(100 << 20, bytes.clone());
        assert_eq!(memory.judge(50 << 20), Verdict::Fine);
        for _ in 0..7 {
            assert_eq!(memory.judge(90 << 20), Verdict::Shrunk);
        }
        assert_eq!(bytes.get(), SMALLEST_BATCH);
        assert_eq!(memory.judge(90 << 20), Verdict::Fine);
        assert_eq!(memory.judge(110 << 20), Verdict::Over);
        assert_eq!(memory.judge(50 << 20), Verdict::Fine);
        assert_eq!(bytes.get(), SMALLEST_BATCH * 2);
    }
}
