//! Server settings, and the name they give a shared server.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// Settings of a server, as in `postgresql.conf`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings(BTreeMap<String, String>);

impl Settings {
    /// What the shared servers run with: unsafe against power cuts, otherwise like a production server.
    ///
    /// `max_prepared_transactions` stays 0, as it is by default: the wake-up hint is silent otherwise.
    pub fn for_tests() -> Self {
        Self::empty()
            .set("fsync", "off")
            .set("wal_level", "logical")
            .set("max_connections", 300)
            .set("max_replication_slots", 20)
            .set("max_wal_senders", 20)
            .set("shared_buffers", "256MB")
            .set("max_wal_size", "4GB")
            .set("log_min_messages", "warning")
    }

    /// As [`Settings::for_tests`], but two-phase commit works.
    pub fn with_prepared_transactions() -> Self {
        Self::for_tests().set("max_prepared_transactions", 64)
    }

    /// As [`Settings::for_tests`], but a commit is on disk when it returns: for measurements.
    pub fn durable() -> Self {
        Self::for_tests().set("fsync", "on")
    }

    /// None: what the server does by itself.
    pub fn empty() -> Self {
        Self(BTreeMap::new())
    }

    /// Sets one, replacing an earlier value.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "values are literals, numbers as well as texts")]
    pub fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.0.insert(name.to_owned(), value.to_string());
        self
    }

    /// Lines for `postgresql.conf`.
    pub(super) fn lines(&self) -> String {
        let mut lines = String::new();
        for (name, value) in &self.0 {
            let _ = writeln!(lines, "{name} = '{}'", value.replace('\'', "''"));
        }
        lines
    }

    /// What tells servers of one version apart: nothing for the usual settings, else a short hash. All
    /// processes of a run are built by one compiler, so the hash is the same in each.
    pub(super) fn suffix(&self) -> String {
        if *self == Self::for_tests() {
            return String::new();
        }
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        format!("-{:08x}", hasher.finish() & 0xffff_ffff)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::for_tests()
    }
}

#[cfg(test)]
mod tests {
    use super::Settings;

    #[test]
    fn only_unusual_settings_have_a_server_of_their_own() {
        assert_eq!(Settings::for_tests().set("fsync", "off").suffix(), "");
        let prepared = Settings::with_prepared_transactions().suffix();
        assert_eq!(prepared, Settings::with_prepared_transactions().suffix());
        assert_ne!(prepared, Settings::durable().suffix());
    }

    #[test]
    fn values_are_quoted() {
        assert_eq!(Settings::empty().set("search_path", "a, 'b'").lines(), "search_path = 'a, ''b'''\n");
    }
}
