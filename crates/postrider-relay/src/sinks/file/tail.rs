//! What stands behind the last line feed of a file.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use serde::Deserialize as _;
use serde::de::IgnoredAny;

/// So much is read at once: what others left may be larger than the memory.
const CHUNK: usize = 64 << 10;

/// How a file ends.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// With a line feed, or it is empty.
    Whole,
    /// With what can be the beginning of a line of ours, or with the zeros that a crash of the machine leaves.
    Torn {
        /// Where the last whole line ends.
        whole: u64,
    },
    /// With something else, which is not ours to cut off.
    Foreign,
}

/// Whether a file ends with something that no relay has written, so that a sink would not take it. It is only looked at.
pub fn ends_foreign(path: &Path) -> io::Result<bool> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    Ok(of(&mut file, length)? == Tail::Foreign)
}

/// Whether a sink can have filled this file: it ends with a whole line of JSON, and nobody writes to it.
pub(crate) fn is_filled(path: &Path) -> io::Result<bool> {
    // Opening a pipe would wait.
    if !fs::symlink_metadata(path)?.is_file() {
        return Ok(false);
    }
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    if length < 2 || file.try_lock_shared().is_err() || of(&mut file, length)? != Tail::Whole {
        return Ok(false);
    }
    let last = behind_last(&mut file, 0, length - 1, |part| memchr::memrchr(b'\n', part))?;
    file.seek(SeekFrom::Start(last))?;
    let line = BufReader::with_capacity(CHUNK, file.take(length - last));
    match serde_json::from_reader::<_, IgnoredAny>(line) {
        Ok(_) => Ok(true),
        Err(error) if error.is_io() => Err(error.into()),
        Err(_) => Ok(false),
    }
}

/// The end of the first `length` bytes.
pub(crate) fn of(file: &mut File, length: u64) -> io::Result<Tail> {
    let whole = behind_last(file, 0, length, |part| memchr::memrchr(b'\n', part))?;
    if whole == length {
        return Ok(Tail::Whole);
    }
    let written = behind_last(file, whole, length, |part| part.iter().rposition(|byte| *byte != 0))?;
    file.seek(SeekFrom::Start(whole))?;
    let is_ours = written == whole || begins_json(file.take(written - whole))?;
    Ok(if is_ours { Tail::Torn { whole } } else { Tail::Foreign })
}

/// Whether this is a JSON value, or becomes one when it goes on.
fn begins_json(text: impl Read) -> io::Result<bool> {
    let mut json = serde_json::Deserializer::from_reader(BufReader::with_capacity(CHUNK, text));
    match IgnoredAny::deserialize(&mut json).and_then(|_| json.end()) {
        Ok(()) => Ok(true),
        Err(error) if error.is_io() => Err(error.into()),
        Err(error) => Ok(error.is_eof()),
    }
}

/// Behind the last place from `start` to `end` that is found, or `start`.
fn behind_last(
    file: &mut File,
    start: u64,
    mut end: u64,
    find: impl Fn(&[u8]) -> Option<usize>,
) -> io::Result<u64> {
    let mut chunk = vec![0; CHUNK];
    while end > start {
        let from = end.saturating_sub(chunk.len() as u64).max(start);
        file.seek(SeekFrom::Start(from))?;
        // At most a chunk.
        let part = &mut chunk[..usize::try_from(end - from).unwrap_or(0)];
        file.read_exact(part)?;
        if let Some(at) = find(part) {
            return Ok(from + at as u64 + 1);
        }
        end = from;
    }
    Ok(start)
}
