//! The commands that prepare and run servers.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail};

use super::Stop;
use crate::user::User;

/// A program with arguments and environment.
#[derive(Clone, Debug)]
pub struct CommandLine {
    words: Vec<String>,
    environment: Vec<String>,
    small_disk: Option<(String, u64)>,
    inside: Option<(PathBuf, PathBuf)>,
}

impl CommandLine {
    /// A command without arguments.
    pub fn new(program: impl AsRef<Path>) -> Self {
        Self {
            words: vec![program.as_ref().to_string_lossy().into_owned()],
            environment: Vec::new(),
            small_disk: None,
            inside: None,
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.words.push(arg.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.words.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<str>) -> Self {
        self.environment.push(format!("{name}={}", value.as_ref()));
        self
    }

    /// Lets the program see a file system of so many bytes at `dir`, in memory. Nobody else sees it, and it goes with the program.
    #[must_use]
    pub fn small_disk(mut self, dir: &Path, bytes: u64) -> Self {
        self.small_disk = Some((dir.to_string_lossy().into_owned(), bytes));
        self
    }

    /// Lets the program see `root` as the root of all files, and `dir` in it as `/srv`: for programs that this machine cannot run.
    #[must_use]
    pub fn inside(mut self, root: &Path, dir: &Path) -> Self {
        self.inside = Some((root.to_owned(), dir.to_owned()));
        self
    }

    /// As the words after `setpriv`, each of which execs the next in place.
    pub(super) fn into_words(self, user: &User, stop: &Stop) -> Vec<String> {
        let mut words = match self.small_disk {
            Some((dir, bytes)) => user.with_small_disk(&dir, bytes),
            None => Vec::new(),
        };
        if let Some((root, dir)) = &self.inside {
            words.extend(user.inside(root, dir));
        }
        words.extend(user.prefix());
        // The kernel stops the server should even its guardian be killed.
        words.extend(["--pdeathsig".to_owned(), stop.signal_name().to_owned(), "--".to_owned()]);
        if !self.environment.is_empty() {
            words.push("env".to_owned());
            words.extend(self.environment);
        }
        words.extend(self.words);
        words
    }
}

/// Runs a command that ends by itself; its standard error is in the error if it fails.
pub fn run_to_end(command: &mut Command) -> Result<Output> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("running {command:?}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} failed with {}:\n{}", output.status, said.trim());
    }
    Ok(output)
}
