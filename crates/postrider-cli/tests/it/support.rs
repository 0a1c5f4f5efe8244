//! Running the binary.

use std::process::{Command, Output, Stdio};

use postrider_testkit::{Database, Template, Version, postgres};
use serde_json::Value;

/// An empty database on the default server.
pub(crate) async fn empty_database() -> Database {
    let server = postgres(Version::default()).await.unwrap();
    server.database(&Template::empty()).await.unwrap()
}

/// The binary with these words, and nothing in the environment that names a database.
pub(crate) fn postrider(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command.args(words).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("PG") || name == "DATABASE_URL" || name.starts_with("POSTRIDER_LOG") {
            command.env_remove(name);
        }
    }
    command
}

/// As [`postrider`], on a database.
pub(crate) fn postrider_on(url: &str, words: &[&str]) -> Command {
    let mut command = postrider(words);
    command.env("DATABASE_URL", url);
    command
}

/// How a command ended.
pub(crate) struct End {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl End {
    pub(crate) fn of(command: &mut Command) -> Self {
        Self::from(command.output().unwrap())
    }

    /// Fails with everything the command said unless it ended with `code`.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap()
    }
}

impl From<Output> for End {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}
