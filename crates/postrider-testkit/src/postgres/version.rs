//! Which `PostgreSQL` versions are supported, and where their programs are.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

/// A supported major version of `PostgreSQL`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Version {
    V14,
    /// Debian's own, with all its client programs; the one most tests run on.
    #[default]
    V15,
    V16,
    V17,
    V18,
}

impl Version {
    /// All of them, oldest first.
    pub const ALL: [Self; 5] = [Self::V14, Self::V15, Self::V16, Self::V17, Self::V18];

    /// The number before the dot.
    pub fn major(self) -> u32 {
        match self {
            Self::V14 => 14,
            Self::V15 => 15,
            Self::V16 => 16,
            Self::V17 => 17,
            Self::V18 => 18,
        }
    }

    /// The newest version a distribution's package has installed, whichever that is: for a demonstration
    /// that should run anywhere. Tests name their version.
    pub fn any_installed() -> Result<Self> {
        let found = Self::ALL.into_iter().rev().find(|version| version.packaged().join("initdb").exists());
        found.context(
            "no PostgreSQL 14 to 18 is installed: run ./dev setup, or install your distribution's package",
        )
    }

    /// Where `initdb` and `postgres` of this version are.
    pub fn bin_dir(self) -> Result<PathBuf> {
        let downloaded = self.downloaded();
        // 15 is always the package's: some tests need the client programs that only come with it.
        let dir = if self == Self::V15 || !downloaded.exists() { self.packaged() } else { downloaded };
        ensure!(dir.join("initdb").exists(), "PostgreSQL {self} is not installed: run ./dev setup");
        Ok(dir)
    }

    fn packaged(self) -> PathBuf {
        Path::new("/usr/lib/postgresql").join(self.to_string()).join("bin")
    }

    fn downloaded(self) -> PathBuf {
        crate::cache().join(format!("pg/node_modules/pg{self}/native/bin"))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.major().fmt(f)
    }
}
