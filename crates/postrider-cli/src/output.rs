//! Data goes to standard output, talk to standard error.

use std::io::{self, Write as _};

use crate::exit::Exit;
use crate::failure::Failure;

/// Tells a person. Nobody listening is no reason to fail.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Prints the result.
pub(crate) fn data(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // `postrider sql | head` has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => {
            let error = anyhow::Error::new(error).context("cannot write to standard output");
            Err(Failure::new(Exit::Failed, error))
        }
        Ok(()) => Ok(()),
    }
}

/// Prints the result as one line of JSON.
pub(crate) fn json(document: &serde_json::Value) -> Result<(), Failure> {
    data(&format!("{document}\n"))
}
