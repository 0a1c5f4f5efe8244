//! Data goes to standard output, talk to standard error.

use std::env;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use serde_json::value::RawValue;

use crate::exit::Exit;
use crate::failure::Failure;

/// Tells a person. Nobody listening is no reason to fail.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Prints the result.
pub(crate) fn data(text: &str) -> Result<(), Failure> {
    stream(text).map(drop)
}

/// Prints a part of a result that goes on. Answers whether anybody still reads it.
pub(crate) fn stream(text: &str) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // `postrider sql | head` has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => {
            let error = anyhow::Error::new(error).context("cannot write to standard output");
            Err(Failure::new(Exit::Failed, error))
        }
        Ok(()) => Ok(true),
    }
}

/// Comes back when nobody reads the result any more: a pipe tells whoever asks, not only whoever writes.
pub(crate) async fn unread() {
    let stdout = io::stdout();
    loop {
        let mut asked = [PollFd::new(&stdout, PollFlags::empty())];
        let is_answered = rustix::event::poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok();
        if is_answered && asked[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Prints the result as one line of JSON.
pub(crate) fn json(document: &serde_json::Value) -> Result<(), Failure> {
    data(&format!("{document}\n"))
}

/// Whether the result goes to a person who wants colours.
pub(crate) fn is_colourful() -> bool {
    io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Text of others on one line of a terminal: a key may contain the sequences that clear a screen or forge a line.
pub(crate) fn plain(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    safe
}

/// JSON as it was written, but for line breaks between its parts; inside of strings they are escaped.
pub(crate) fn on_one_line(json: &str) -> Option<Box<RawValue>> {
    RawValue::from_string(json.replace(['\n', '\r'], " ")).ok()
}

/// Rows under their headings. Columns of numbers are set to the right.
pub(crate) fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let widths: Vec<usize> = headings
        .iter()
        .enumerate()
        .map(|(column, heading)| {
            let widest = cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0);
            widest.max(heading.chars().count())
        })
        .collect();
    let is_number = |cell: &String| cell.chars().all(|c| c.is_ascii_digit() || ",.-".contains(c));
    let to_the_right: Vec<bool> = (0..headings.len())
        .map(|column| cells(column).all(is_number) && cells(column).next().is_some())
        .collect();
    let mut text = String::new();
    let heading: Vec<String> = headings.iter().map(|heading| (*heading).to_owned()).collect();
    for row in std::iter::once(&heading).chain(rows) {
        let mut line = String::new();
        for ((cell, width), right) in row.iter().zip(&widths).zip(&to_the_right) {
            let _ = if *right { write!(line, "{cell:>width$}  ") } else { write!(line, "{cell:<width$}  ") };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// `1 event`, `2 events`, `12,000 events`.
pub(crate) fn events(count: impl Into<i128>) -> String {
    let count = count.into();
    if count == 1 { "1 event".to_owned() } else { format!("{} events", thousands(count)) }
}

/// With commas between the thousands.
pub(crate) fn thousands(number: impl Into<i128>) -> String {
    let digits = number.into().to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows =
            [vec!["web".to_owned(), "7".to_owned()], vec!["warehouse".to_owned(), "12,000".to_owned()]];
        assert_eq!(
            table(&["SINK", "EVENTS"], &rows),
            "SINK       EVENTS\nweb             7\nwarehouse  12,000\n"
        );
    }

    #[test]
    fn thousands_are_told_apart() {
        for (number, text) in
            [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567"), (-1_000, "-1,000")]
        {
            assert_eq!(thousands(number), text);
        }
    }

    #[test]
    fn what_would_move_the_cursor_is_escaped() {
        assert_eq!(plain("a\u{1b}[2Jb\nc ü"), "a\\u{1b}[2Jb\\nc ü");
    }
}
