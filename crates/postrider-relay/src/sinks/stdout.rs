//! Lines of JSON on the standard output.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time;

use super::hand::Hand;
use super::lines::Lines;
use crate::sink::{BoxFuture, Message, Report, Sink, Unavailable, UnavailableKind};

/// A reader may be slow, a pager for one; after this long without a byte taken the sink says so.
const PATIENCE: Duration = Duration::from_secs(30);
/// Not open, or not for this. The same number on every Unix.
const EBADF: i32 = 9;

/// `stdout: {}`
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StdoutConfig {}

/// Writes one line for each event and flushes after each batch. Delivered means that the reader's pipe, or the terminal, has it.
pub struct Stdout {
    hand: Hand<Output>,
    lines: Lines,
}

struct Output {
    to: Box<dyn Write + Send>,
    /// The last write ended inside a line.
    is_torn: bool,
}

impl Stdout {
    /// On the standard output of this process.
    pub fn open() -> Result<Self, Unavailable> {
        if was_closed() {
            return Err(gone(
                "standard output was closed when the process began: there is nobody to take events (to do without them, write \
                 >/dev/null, or take the sink `null`)",
            ));
        }
        // Not `io::Stdout`, for which a write to what is not open has succeeded.
        let output = io::stdout().as_fd().try_clone_to_owned();
        let output = output.map_err(|error| Unavailable::new(kind(&error), error))?;
        Self::to(File::from(output))
    }

    /// On anything that takes bytes.
    pub fn to(output: impl Write + Send + 'static) -> Result<Self, Unavailable> {
        let output = Output { to: Box::new(output), is_torn: false };
        let hand = Hand::start("stdout sink", output)
            .map_err(|error| Unavailable::new(UnavailableKind::Blocked, error))?;
        Ok(Self { hand, lines: Lines::default() })
    }
}

impl Sink for Stdout {
    fn deliver<'a>(&'a mut self, batch: &'a [Message<'a>]) -> BoxFuture<'a, Report> {
        Box::pin(async move {
            let mut lines = std::mem::take(&mut self.lines);
            lines.fill(batch);
            let write = self.hand.run(move |output| (output.write(lines.bytes()), lines));
            let why = match time::timeout(PATIENCE, write).await {
                Ok(Some((Ok(()), lines))) => {
                    self.lines = lines.emptied();
                    return Report::delivered(batch.len());
                }
                // Nobody can open the other end of a pipe again, nor open this one otherwise.
                Ok(Some((Err(error), _))) if error.kind() == io::ErrorKind::BrokenPipe => {
                    gone("standard output is closed: who read it has ended")
                }
                Ok(Some((Err(error), _))) if error.raw_os_error() == Some(EBADF) => {
                    gone("standard output is not open for writing")
                }
                Ok(Some((Err(error), _))) => Unavailable::new(kind(&error), error),
                Ok(None) => Unavailable::new(UnavailableKind::Connection, "the writing thread has died"),
                Err(_) => Unavailable::new(
                    UnavailableKind::Timeout,
                    "nobody has read the standard output for 30 seconds",
                ),
            };
            Report::unavailable(batch.len(), why)
        })
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, Result<(), Unavailable>> {
        // Every delivery was flushed.
        Box::pin(async { Ok(()) })
    }
}

impl Output {
    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        if self.is_torn {
            // Half a line cannot be taken back; it is at least kept apart from the next.
            self.to.write_all(b"\n")?;
            self.is_torn = false;
        }
        while !bytes.is_empty() {
            match self.to.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.is_torn = bytes[count - 1] != b'\n';
                    bytes = &bytes[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.to.flush()
    }
}

/// Whether there was no standard output when the process began. Rust's runtime has put the null device in its place then, for reading and
/// writing; a shell's `>/dev/null` is for writing alone. Where the system does not tell, it is taken for open.
fn was_closed() -> bool {
    let is_null = || fs::read_link("/proc/self/fd/1").is_ok_and(|path| path == Path::new("/dev/null"));
    fs::read_to_string("/proc/self/fdinfo/1").is_ok_and(|info| is_for_both(&info)) && is_null()
}

/// Whether a file is open for reading and writing. The line is `flags: 0100002`, in octal, of which the last digit is the way it is open.
fn is_for_both(info: &str) -> bool {
    info.lines().any(|line| line.starts_with("flags:") && line.ends_with('2'))
}

fn gone(why: &str) -> Unavailable {
    Unavailable::new(UnavailableKind::Gone, why)
}

fn kind(error: &io::Error) -> UnavailableKind {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => UnavailableKind::Full,
        io::ErrorKind::WouldBlock => UnavailableKind::Blocked,

        _ => UnavailableKind::Connection,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_a_file_is_open_is_told_by_its_flags() {
        let info = |flags: &str| format!("pos:\t2\nflags:\t{flags}\nmnt_id:\t22\nino:\t2\n");
        assert!(is_for_both(&info("0100002")), "by the runtime");
        assert!(!is_for_both(&info("0100001")), "by a shell");
        assert!(!is_for_both(&info("0100000")));
    }
}
