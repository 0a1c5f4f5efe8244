//! Events behind one that is kept: they are kept too, or they would overtake it.

use std::fmt::Write as _;

use super::generate::Generator;

/// Whether anything is kept, of whatever table.
const IS_KEPT: &str = "coalesce(pg_sequence_last_value('postrider.capture_failures_failure_seq'), 0) > coalesce(pg_sequence_last_value('postrider.recaptured'), 0)";

/// Whether what was kept since the transaction began is hidden from it. Sequences are not: they tell that there is something, but not of
/// which key.
const SEES_THE_PAST: &str = "current_setting('transaction_isolation') in ('repeatable read', 'serializable')";

impl Generator<'_> {
    /// An event of a row.
    pub(super) fn wait(&self, out: &mut String) -> std::fmt::Result {
        writeln!(
            out,
            "        if verbs is not null and {IS_KEPT} then
            if {SEES_THE_PAST} or postrider.waits_behind(tg_relid, key) then
                {};
                verbs := null;
            end if;
        end if;",
            self.keep("'55000', 'an event before it waits to be recorded'")
        )
    }
}

/// Whether a TRUNCATE has to wait.
pub(super) fn truncate_waits() -> String {
    format!("postrider.has_failures(tg_relid) or {IS_KEPT} and {SEES_THE_PAST}")
}
