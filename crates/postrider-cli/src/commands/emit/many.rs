//! Events of a file or a pipe, in transactions.

use std::io;
use std::time::Duration;

use postrider::log;
use serde_json::json;
use sqlx::PgConnection;

use super::lines::{Line, Source};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;
use crate::progress::Progress;

/// A pipe that is silent for so long gets committed what it has brought.
const SILENCE: Duration = Duration::from_millis(200);
/// One statement carries a batch: larger ones than this only cost memory on both sides.
const MOST_BYTES: usize = 16_000_000;

/// The lines of one transaction.
#[derive(Default)]
struct Batch {
    lines: Vec<Line>,
    bytes: usize,
}

/// What is committed.
#[derive(Default)]
struct Committed {
    /// The number of the last line.
    line: u64,
    events: u64,
    bytes: u64,
}

pub(super) async fn emit(
    connection: &mut PgConnection,
    source: Source,
    batch_lines: usize,
    skip: u64,
    json: bool,
) -> Result<Exit, Failure> {
    let mut progress = Progress::new(source.bytes);
    let mut lines = source.read();
    let mut batch = Batch::default();
    let mut committed = Committed { line: skip, ..Committed::default() };
    let mut skipped = 0;
    let result = loop {
        let line = tokio::time::timeout(SILENCE, lines.recv()).await;
        match line {
            Ok(Some(Ok(line))) if line.number <= skip => {
                skipped = line.number;
                committed.bytes += line.text.len() as u64 + 1;
            }
            Ok(Some(Ok(line))) => {
                if let Err(failure) = batch.take(line) {
                    break Err(failure);
                }
                if batch.lines.len() < batch_lines && batch.bytes < MOST_BYTES {
                    continue;
                }
                if let Err(failure) = batch.commit(connection, &mut committed).await {
                    break Err(failure);
                }
            }
            Ok(Some(Err(error))) => break Err(unreadable(&error, &batch, &committed)),
            Ok(None) if skipped < skip => {
                committed.line = skipped;
                break Err(Stop::too_short(skip, skipped));
            }
            Ok(None) => break batch.commit(connection, &mut committed).await,
            Err(_silent) => {
                if let Err(failure) = batch.commit(connection, &mut committed).await {
                    break Err(failure);
                }
            }
        }
        progress.show(committed.bytes, committed.events);
    };
    progress.end();
    let (exit, error) = match result {
        Ok(()) => (Exit::Fine, None),
        Err(stop) => (stop.exit, Some((stop.error, stop.goes_on))),
    };
    if json {
        output::json(&json!({
            "committed": committed.events,
            "last_line": committed.line,
            "error": error.as_ref().map(|(error, _)| format!("{error:#}")),
        }))?;
    }
    match error {
        None => {
            output::say(&format!("{} committed", output::events(committed.events)));
            Ok(exit)
        }
        Some((error, false)) => Err(Failure::new(exit, error)),
        Some((error, true)) => {
            let failure = Failure::new(exit, error);
            output::say(&failure.to_string());
            output::say(&format!(
                "{} committed, up to line {}; go on with --skip {}",
                output::events(committed.events),
                committed.line,
                committed.line
            ));
            Ok(exit)
        }
    }
}

/// Why it ended early.
struct Stop {
    exit: Exit,
    error: anyhow::Error,
    /// Whether the lines behind what is committed can follow, once it is mended.
    goes_on: bool,
}

impl Stop {
    fn at(line: u64, error: anyhow::Error) -> Self {
        Self {
            exit: Exit::Failed,
            error: error.context(format!("line {line}: nothing of its transaction was written")),
            goes_on: true,
        }
    }

    /// Most probably it is another file than the one that an earlier run read.
    fn too_short(skip: u64, lines: u64) -> Self {
        let has = if lines == 1 { "1 line".to_owned() } else { format!("{lines} lines") };
        let error = anyhow::anyhow!(
            "--skip {skip} leaves out more than there is: the input has {has}. Nothing was written; is it the input of the earlier run?"
        );
        Self { exit: Exit::Failed, error, goes_on: false }
    }
}

fn unreadable(error: &io::Error, batch: &Batch, committed: &Committed) -> Stop {
    let line = batch.lines.last().map_or(committed.line, |line| line.number) + 1;
    Stop::at(line, anyhow::anyhow!("it cannot be read: {error}"))
}

impl Batch {
    fn take(&mut self, line: Line) -> Result<(), Stop> {
        if !line.is_blank() {
            line.check().map_err(|complaint| {
                Stop::at(line.number, anyhow::anyhow!("it is not an event: {complaint}"))
            })?;
        }
        self.bytes += line.text.len() + 1;
        self.lines.push(line);
        Ok(())
    }

    /// One statement, which is a transaction of its own.
    async fn commit(&mut self, connection: &mut PgConnection, committed: &mut Committed) -> Result<(), Stop> {
        let Some(last) = self.lines.last().map(|line| line.number) else {
            return Ok(());
        };
        let mut text = String::with_capacity(self.bytes + 2);
        let mut numbers = Vec::with_capacity(self.lines.len());
        text.push('[');
        for line in self.lines.iter().filter(|line| !line.is_blank()) {
            if !numbers.is_empty() {
                text.push(',');
            }
            text.push_str(&line.text);
            numbers.push(line.number);
        }
        text.push(']');
        if !numbers.is_empty() {
            sqlx::query("select count(*) from postrider.emit_many($1::text)")
                .bind(text)
                .execute(connection)
                .await
                .map_err(|error| refused(error, &numbers))?;
        }
        committed.line = last;
        committed.events += numbers.len() as u64;
        committed.bytes += self.bytes as u64;
        *self = Self::default();
        Ok(())
    }
}

/// The server counts from the first event of the statement, a person from the first line of the file.
fn refused(error: sqlx::Error, numbers: &[u64]) -> Stop {
    let (first, last) = (numbers.first().copied().unwrap_or(0), numbers.last().copied().unwrap_or(0));
    let message = error.as_database_error().map(|said| said.message().to_owned());
    let error = log::Error::from(error);
    let exit = Exit::of_log(&error);
    let error = anyhow::Error::new(error);
    let Some(message) = message else {
        let text =
            format!("lines {first} to {last}: no answer came, and whether they are committed is not known");
        return Stop { exit, error: error.context(text), goes_on: true };
    };
    match place_in(&message).and_then(|place| numbers.get(place.checked_sub(1)?)) {
        Some(line) => Stop::at(*line, error),
        None => Stop {
            exit,
            error: error.context(format!("lines {first} to {last}: nothing of them was written")),
            goes_on: true,
        },
    }
}

/// The number in `event 7 of emit_many`.
fn place_in(message: &str) -> Option<usize> {
    let (before, _) = message.split_once(" of emit_many")?;
    before.rsplit_once("event ")?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_refused_event_is_found_in_the_message() {
        assert_eq!(place_in("postrider: event 'a' is over a limit (event 12 of emit_many)"), Some(12));
        assert_eq!(place_in("postrider: event 3 of emit_many is not an event"), Some(3));
        assert_eq!(place_in("permission denied"), None);
    }
}
