//! How much to ask for, by the size of the events that came last.

use super::round::Round;

/// Makes rounds of about the size that is wanted.
#[derive(Debug, Default)]
pub(super) struct PageSize {
    /// Of one event, in bytes; 0 while none was seen.
    usual: usize,
}

/// What to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    /// Records per lane.
    pub(super) page: i64,
    /// Lanes per statement.
    pub(super) lanes: usize,
    /// What has to be left to ask for more.
    pub(super) worth: usize,
}

impl Request {
    /// One record of one lane.
    pub(super) const LEAST: Self = Self { page: 1, lanes: 1, worth: 1 };

    /// Whether less cannot be asked for.
    pub(super) fn is_least(self) -> bool {
        self.page == 1 && self.lanes == 1
    }
}

impl PageSize {
    /// Of so many lanes, `most` records each at most, to bring about so many bytes.
    pub(super) fn request(&self, most: u32, bytes: usize, lanes: usize) -> Request {
        let fitting = bytes / self.usual.max(1);
        let page = i64::try_from(fitting / lanes.max(1)).unwrap_or(i64::MAX);
        Request {
            page: page.clamp(1, i64::from(most.max(1))),
            lanes: fitting.clamp(1, lanes.max(1)),
            worth: self.usual.max(1),
        }
    }

    /// Takes note of what came. A round without anything says that whatever comes next may be of any size.
    pub(super) fn learn<'a>(&mut self, rounds: impl IntoIterator<Item = &'a Round>) {
        let (mut events, mut bytes) = (0, 0);
        for record in rounds.into_iter().flat_map(|round| round.pages.values()).flat_map(|page| &page.records)
        {
            events += 1;
            bytes += record.size();
        }
        let usual = bytes.checked_div(events).unwrap_or_default();
        // A round of a few says little about those to come.
        self.usual = if events < 8 { usual.max(self.usual / 2) } else { usual };
    }

    /// Events may be as large as this.
    pub(super) fn expect(&mut self, bytes: usize) {
        self.usual = self.usual.max(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_events_are_asked_for_one_by_one_and_small_ones_by_the_page() {
        let mut pages = PageSize::default();
        let request = |pages: &PageSize| pages.request(1000, 8_000_000, 16);
        assert_eq!(request(&pages), Request { page: 1000, lanes: 16, worth: 1 });
        pages.expect(5_000);
        assert_eq!(request(&pages), Request { page: 100, lanes: 16, worth: 5_000 });
        pages.expect(2_000_000);
        assert_eq!(request(&pages), Request { page: 1, lanes: 4, worth: 2_000_000 });
        pages.expect(40_000_000);
        assert!(request(&pages).is_least());
        // What was large once is not for ever.
        for _ in 0..30 {
            pages.learn([]);
        }
        assert_eq!(request(&pages).page, 1000);
    }
}
