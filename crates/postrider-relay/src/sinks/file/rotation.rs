//! Files that were full: `events.ndjson.000001` is the oldest, so a shell's `*` lists them in order.
//!
//! Numbers only grow and a file is renamed once. Shifting `.1` to `.2` would rename every file each time, under the hands of
//! whoever is reading them, and a crash half-way would leave a gap.
//!
//! Somebody else's file may have such a name (`events.ndjson.20300131`, or another sink's path). It is neither counted nor removed: one of ours
//! ends with a whole line of JSON, and nobody has it locked.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::tail;

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
    let mut full = named(path)?;
    full.retain(|(_, path)| is_ours(path));
    Ok(full)
}

/// The name for the next one: behind the last of ours, and nobody's yet.
pub(crate) fn next(path: &Path) -> io::Result<PathBuf> {
    let last = named(path)?.into_iter().rev().find(|(_, path)| is_ours(path));
    let mut number = last.map_or(1, |(number, _)| number.saturating_add(1));
    loop {
        let name = numbered(path, number);
        if fs::symlink_metadata(&name).is_err() {
            return Ok(name);
        }
        number = number.wrapping_add(1);
    }
}

fn is_ours(path: &Path) -> bool {
    tail::is_filled(path).unwrap_or(false)
}

/// The files with such a name.
fn named(path: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
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
        if let Some(number) = number.filter(|number| numbered(path, *number).file_name() == Some(&entry_name))
        {
            found.push((number, entry.path()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The name that a full file gets.
fn numbered(path: &Path, number: u64) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number:06}"));
    PathBuf::from(name)
}
