//! Lines of a file or a pipe, with their numbers.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;
use serde::de::{Error as _, IgnoredAny};
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use crate::exit::Exit;
use crate::failure::Failure;

/// Where lines come from.
pub(super) struct Source {
    reader: Box<dyn Read + Send>,
    /// Its length, if it has one.
    pub(super) bytes: Option<u64>,
}

/// One line.
pub(super) struct Line {
    /// From 1.
    pub(super) number: u64,
    pub(super) text: String,
}

impl Source {
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        if path == Path::new("-") {
            return Ok(Self { reader: Box::new(io::stdin()), bytes: None });
        }
        let open = || -> io::Result<Self> {
            let file = File::open(path)?;
            let metadata = file.metadata()?;
            if metadata.is_dir() {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            let bytes = metadata.is_file().then_some(metadata.len());
            Ok(Self { reader: Box::new(file), bytes })
        };
        open()
            .with_context(|| format!("cannot read {}", path.display()))
            .map_err(|error| Failure::new(Exit::Failed, error))
    }

    /// Reads in a thread of its own: a pipe may be silent for hours while what it brought is to be committed.
    pub(super) fn read(self) -> mpsc::Receiver<io::Result<Line>> {
        const AHEAD: usize = 1000;
        let (lines, receiver) = mpsc::channel(AHEAD);
        std::thread::spawn(move || {
            for (number, text) in (1..).zip(BufReader::new(self.reader).lines()) {
                let is_over = text.is_err();
                // Nobody takes them any more: a bad line has ended the work.
                if lines.blocking_send(text.map(|text| Line { number, text })).is_err() || is_over {
                    return;
                }
            }
        });
        receiver
    }
}

/// A line must be such an object; what its values may be, the server decides.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "only parsed, to say what is wrong with it")]
struct Event<'l> {
    r#type: String,
    #[serde(borrow)]
    payload: &'l RawValue,
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    tenant: Option<String>,
    #[serde(default)]
    entity: Option<String>,
    #[serde(borrow, default)]
    headers: Option<&'l RawValue>,
}

impl Line {
    /// What is wrong with it, if anything.
    pub(super) fn check(&self) -> Result<(), String> {
        // An array of the fields' values would be read as well, and is not what the server takes.
        let read = if self.text.trim_start().starts_with('{') {
            serde_json::from_str::<Event<'_>>(&self.text).map(drop)
        } else {
            serde_json::from_str::<IgnoredAny>(&self.text)
                .and_then(|_| Err(serde_json::Error::custom("a JSON object is needed")))
        };
        read.map_err(|error| complaint(&error))
    }

    pub(super) fn is_blank(&self) -> bool {
        self.text.trim().is_empty()
    }
}

/// The parser counts from the beginning of what it was given, and knows nothing of the file: each line is the first to it.
fn complaint(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((said, _)) => format!("{said} at column {}", error.column()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<(), String> {
        Line { number: 1, text: text.to_owned() }.check()
    }

    #[test]
    fn a_line_is_an_event_or_says_why_not() {
        assert_eq!(check(r#"{"type": "a", "payload": null, "key": null, "headers": {"a": "b"}}"#), Ok(()));
        for (text, complaint) in [
            ("", "EOF"),
            ("[]", "a JSON object"),
            (r#"["a", 1]"#, "a JSON object"),
            ("x", "expected value"),
            (r#"{"type": "a"}"#, "missing field `payload`"),
            (r#"{"payload": 1}"#, "missing field `type`"),
            (r#"{"type": "a", "payload": 1, "kye": "7"}"#, "unknown field `kye`"),
            (r#"{"type": "a", "payload": 1,}"#, "trailing comma at column 28"),
            (r#"{"type": "a", "payload": 1, "key": 7}"#, "invalid type: integer"),
            (r#"{"type": "a", "payload": 1} x"#, "trailing"),
        ] {
            let said = check(text).unwrap_err();
            assert!(said.contains(complaint), "{text}: {said}");
        }
    }
}
