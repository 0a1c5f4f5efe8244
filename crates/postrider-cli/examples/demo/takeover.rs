//! From the end of a relay to the moment when everything it owed is in the file.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::books::Books;

/// Longer than any lease: what is missing then is worth a word.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Takeover {
    began: Instant,
    repeated_before: usize,
    filed_before: usize,
    resumed: Option<Resumed>,
}

/// Delivery goes on.
struct Resumed {
    after: Duration,
    committed: usize,
    /// What was committed and not delivered at that moment.
    owed: HashSet<Uuid>,
}

/// How it ended.
pub(crate) struct Outcome {
    /// How long nothing was delivered.
    pub(crate) gap: Duration,
    pub(crate) committed: usize,
    pub(crate) missing: usize,
    pub(crate) repeated: usize,
}

impl Takeover {
    /// A relay has ended, and everything it wrote is in the books.
    pub(crate) fn begin(books: &Books) -> Self {
        Self {
            began: Instant::now(),
            repeated_before: books.count_repeated(),
            filed_before: books.count_filed(),
            resumed: None,
        }
    }

    /// Looks, and says how it went once that is known.
    pub(crate) fn look(&mut self, books: &Books) -> Option<Outcome> {
        let after = self.began.elapsed();
        let is_late = after > PATIENCE;
        if self.resumed.is_none() && (is_late || books.count_filed() > self.filed_before) {
            self.resumed = Some(Resumed { after, committed: books.count_committed(), owed: books.owed() });
        }
        let resumed = self.resumed.as_ref()?;
        let missing = books.count_missing(&resumed.owed);
        (missing == 0 || is_late).then(|| Outcome {
            gap: resumed.after,
            committed: resumed.committed,
            missing,
            repeated: books.count_repeated() - self.repeated_before,
        })
    }
}
