//! Files that were full: `events.ndjson.000001` is the oldest, so a shell's `*` lists them in order.
//!
//! Numbers only grow and a file is renamed once. Shifting `.1` to `.2` would rename every file each time, under the hands of
//! whoever is reading them, and a crash half-way would leave a gap.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// The directory of a file.
pub(crate) fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

/// Makes a creation or a renaming durable.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(directory(path))?.sync_all()
}

/// The full files, oldest first, by their numbers.
pub(crate) fn full(path: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let Some(name) = path.file_name() else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for entry in fs::read_dir(directory(path))? {
        let entry = entry?;
        let entry_name = entry.file_name();
        let number = entry_name
            .as_encoded_bytes()
            .strip_prefix(name.as_encoded_bytes())
            .and_then(|rest| rest.strip_prefix(b"."))
            .filter(|digits| digits.len() >= 6 && digits.iter().all(u8::is_ascii_digit))
            .and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        if let Some(number) = number {
            found.push((number, entry.path()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The name that a full file gets.
pub(crate) fn numbered(path: &Path, number: u64) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number:06}"));
    PathBuf::from(name)
}
