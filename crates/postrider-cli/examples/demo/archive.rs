//! The file that the sink `archive` writes, followed line by line.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use crate::published::Published;

pub(crate) struct Archive {
    path: PathBuf,
    /// Behind the last whole line that was read. What comes after it may still be cut off: the rest of a line that a killed relay began.
    offset: u64,
}

impl Archive {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, offset: 0 }
    }

    /// The events of the lines that have come since the last call.
    pub(crate) fn read(&mut self) -> io::Result<Vec<Published>> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.offset += whole as u64;
        let text = String::from_utf8_lossy(&bytes[..whole]);
        Ok(text.lines().filter_map(Published::read).collect())
    }
}
