//! A writer that takes passwords out of lines.

use std::io::{self, Write};

use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

use crate::failure::redact;

/// Makes writers that redact. The subscriber hands over one whole event per write, so no password is ever cut in two.
pub(super) struct Redacted<W> {
    to: W,
}

impl<W> Redacted<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to }
    }
}

impl<'w, W: MakeWriter<'w>> MakeWriter<'w> for Redacted<W> {
    type Writer = Redacting<W::Writer>;

    fn make_writer(&'w self) -> Self::Writer {
        Redacting { to: self.to.make_writer() }
    }

    fn make_writer_for(&'w self, metadata: &Metadata<'_>) -> Self::Writer {
        Redacting { to: self.to.make_writer_for(metadata) }
    }
}

pub(super) struct Redacting<W> {
    to: W,
}

impl<W: Write> Write for Redacting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.write_all(redact(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
