//! A batch as lines of JSON.

use crate::sink::Message;

/// A buffer that grew beyond this is not kept for the next batch.
const KEPT: usize = 4 << 20;

/// One line for each event, in one buffer.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    bytes: Vec<u8>,
    /// Where each line ends, behind its line feed.
    ends: Vec<usize>,
}

impl Lines {
    /// Nothing, to be filled again.
    pub(crate) fn emptied(mut self) -> Self {
        if self.bytes.capacity() > KEPT {
            return Self::default();
        }
        self.bytes.clear();
        self.ends.clear();
        self
    }

    /// Holds this batch.
    pub(crate) fn fill(&mut self, batch: &[Message<'_>]) {
        self.bytes.reserve(batch.iter().map(|message| message.body.len() + 1).sum());
        for message in batch {
            push_line(&mut self.bytes, &message.body);
            self.ends.push(self.bytes.len());
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    /// The lines one by one, each with its line feed.
    pub(crate) fn each(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }
}

/// The type `json` keeps the white space it was written with, and a payload may have come with line breaks. In JSON they can stand
/// only between tokens, never inside a string, so a space says the same.
fn push_line(out: &mut Vec<u8>, body: &[u8]) {
    let start = out.len();
    out.extend_from_slice(body);
    let mut at = start;
    while let Some(found) = memchr::memchr2(b'\n', b'\r', &out[at..]) {
        out[at + found] = b' ';
        at += found + 1;
    }
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_break_between_tokens_becomes_a_space() {
        let mut out = Vec::new();
        push_line(&mut out, b"{\"a\":\r\n  1.50,\n\"b\":\"x\\ny\"\n}");
        push_line(&mut out, b"");
        assert_eq!(out, b"{\"a\":    1.50, \"b\":\"x\\ny\" }\n\n");
    }
}
