//! The blocking half: one open, locked file.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::config::{FileConfig, Fsync};
use super::error::cannot;
use super::holder;
use super::rotation;
use super::tail::{self, Tail};
use crate::sink::{Unavailable, UnavailableKind};
use crate::sinks::lines::Lines;

/// Writes lines. Whatever fails is tried anew with the next batch, from opening the file on if need be.
pub(crate) struct Writer {
    config: FileConfig,
    open: Option<Open>,
}

struct Open {
    file: File,
    /// Device and inode: a path may come to mean another file.
    identity: (u64, u64),
    /// Of what was delivered. Behind it is nothing, or the rest of a write that failed.
    length: u64,
    /// The rest of a write that failed could not be cut off yet.
    is_torn: bool,
}

impl Writer {
    pub(crate) fn new(config: FileConfig) -> Self {
        Self { config, open: None }
    }

    /// Opens the file unless it is open and still the one at its path.
    pub(crate) fn open(&mut self) -> Result<(), Unavailable> {
        self.ready().map(|_| ())
    }

    /// How many of the lines are in the file now, and why not all.
    pub(crate) fn append(&mut self, lines: &Lines) -> (usize, Result<(), Unavailable>) {
        if self.config.fsync != Fsync::Always {
            return match self.put(lines.bytes()) {
                Ok(()) => (lines.count(), Ok(())),
                Err(why) => (0, Err(why)),
            };
        }
        for (count, line) in lines.each().enumerate() {
            if let Err(why) = self.put(line) {
                return (count, Err(why));
            }
        }
        (lines.count(), Ok(()))
    }

    /// Lets go of the file and its lock.
    pub(crate) fn close(&mut self) {
        self.open = None;
    }

    /// Writes whole lines, all or nothing.
    fn put(&mut self, bytes: &[u8]) -> Result<(), Unavailable> {
        let length = self.ready()?.length;
        if let Some(most) = self.config.rotate
            && length > 0
            && length + bytes.len() as u64 > most.0
        {
            self.rotate()?;
        }
        let fsync = self.config.fsync != Fsync::Never;
        let open = self.ready()?;
        let written = open.file.write_all(bytes);
        let (action, result) = match written {
            Ok(()) if fsync => ("fsync", open.file.sync_data()),
            written => ("write to", written),
        };
        if let Err(error) = result {
            open.is_torn = true;
            // If it fails now, it is tried again before the next write.
            let cut = open.cut();
            if action == "fsync" && cut.is_ok() {
                // The system may have dropped the pages it could not write, and forgotten: begin with a fresh view of the file.
                self.open = None;
            }
            return Err(cannot(action, &self.config.path)(error));
        }
        open.length += bytes.len() as u64;
        Ok(())
    }

    /// The file, open, locked, whole, and the one that the path means.
    fn ready(&mut self) -> Result<&mut Open, Unavailable> {
        let path = &self.config.path;
        if let Some(open) = &mut self.open {
            if open.is_torn {
                open.cut().map_err(cannot("cut a torn line off", path))?;
            }
            // One call to the system, against writing for ever into a file that somebody has moved or removed.
            let is_same = fs::metadata(path)
                .is_ok_and(|there| identity(&there) == open.identity && there.len() == open.length);
            if !is_same {
                self.open = None;
            }
        }
        match &mut self.open {
            Some(open) => Ok(open),
            none => Ok(none.insert(Open::new(&self.config)?)),
        }
    }

    fn rotate(&mut self) -> Result<(), Unavailable> {
        let path = &self.config.path;
        let next = rotation::next(path).map_err(cannot("list the files beside", path))?;
        fs::rename(path, next).map_err(cannot("rename", path))?;
        self.open = None;
        self.ready()?;
        self.remove_old()
    }

    fn remove_old(&self) -> Result<(), Unavailable> {
        let path = &self.config.path;
        let Some(keep) = self.config.keep else { return Ok(()) };
        let full = rotation::full(path).map_err(cannot("list the files beside", path))?;
        let surplus = full.len().saturating_sub(keep.get() as usize);
        for (_, old) in &full[..surplus] {
            if let Err(error) = fs::remove_file(old) {
                tracing::warn!(path = %old.display(), %error, "an old file could not be removed; tried again at the next rotation");
            }
        }
        Ok(())
    }
}

impl Open {
    fn new(config: &FileConfig) -> Result<Self, Unavailable> {
        let path = &config.path;
        // Opening a pipe would wait for its reader.
        if let Ok(there) = fs::metadata(path)
            && !there.is_file()
        {
            let why = format!("{} is no regular file", path.display());
            return Err(Unavailable::new(UnavailableKind::Missing, why));
        }
        let is_new = !path.exists();
        let mut file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .map_err(cannot("open", path))?;
        lock(&file, path)?;
        let metadata = file.metadata().map_err(cannot("look at", path))?;
        // Between opening and locking, whoever had the lock may have renamed the file.
        let there = fs::metadata(path).map_err(cannot("look at", path))?;
        if identity(&there) != identity(&metadata) {
            return Err(in_use(&file, path));
        }
        let length = whole_lines(&mut file, metadata.len(), path)?;
        if is_new && config.fsync != Fsync::Never {
            rotation::sync_directory(path).map_err(cannot("fsync the directory of", path))?;
        }
        Ok(Self { file, identity: identity(&metadata), length, is_torn: false })
    }

    /// Back to what was delivered.
    fn cut(&mut self) -> io::Result<()> {
        self.file.set_len(self.length)?;
        self.is_torn = false;
        Ok(())
    }
}

fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

fn lock(file: &File, path: &Path) -> Result<(), Unavailable> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(in_use(file, path)),
        Err(TryLockError::Error(error)) => Err(cannot("lock", path)(error)),
    }
}

fn in_use(file: &File, path: &Path) -> Unavailable {
    let holder = file.metadata().ok().and_then(|metadata| holder::of(identity(&metadata)));
    let holder = holder.unwrap_or_else(|| "another process".to_owned());
    let why = format!("{holder} holds the lock of {}; one sink can have a file", path.display());
    Unavailable::new(UnavailableKind::InUse, why)
}

/// How long the file is once a torn line was cut off. A crash in the middle of a write leaves the beginning of a line; its event was not
/// settled and comes again. What cannot be that is somebody else's, and stays.
fn whole_lines(file: &mut File, length: u64, path: &Path) -> Result<u64, Unavailable> {
    match tail::of(file, length).map_err(cannot("read the end of", path))? {
        Tail::Whole => Ok(length),
        Tail::Torn { whole } => {
            let bytes = length - whole;
            tracing::warn!(path = %path.display(), bytes, "the file ends inside a line; the torn line was cut off, its event comes again");
            file.set_len(whole).map_err(cannot("cut a torn line off", path))?;
            Ok(whole)
        }
        Tail::Foreign => {
            let why = format!(
                "{} ends with something that is no event, and was left as it is; name another path, or move the file away",
                path.display()
            );
            Err(Unavailable::new(UnavailableKind::Missing, why))
        }
    }
}
