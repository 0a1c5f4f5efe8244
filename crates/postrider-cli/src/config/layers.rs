//! Where values come from beside the file, and which of them wins.
//!
//! A flag comes before a variable of ours (`POSTRIDER_RELAY_DRAIN`), that before the file, that before the default. `DATABASE_URL` and
//! the variables of libpq come after the file: they are there for other programs too, and a file that names a database means it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use postrider_relay::units::{Size, Span};

use super::environment::Environment;
use super::finding::Finding;
use super::raw::{Listen, Start};
use super::shape::{NAME, Shape};
use super::sinks;
use super::tree::{Entry, Node, Place};

/// Looked for where nothing else is said.
const FILE: &str = "postrider.yaml";

/// Which file is read.
#[derive(Args, Clone, Default)]
pub(crate) struct Source {
    /// The configuration file [default: postrider.yaml, if it is there]
    // Not a path for clap, which refuses an empty one: a variable that is set to nothing is how many tools say that it is not set.
    #[arg(long, value_name = "PATH", env = "POSTRIDER_CONFIG", hide_env_values = true)]
    config: Option<OsString>,
}

impl Source {
    /// The file that was named, or the one in this folder if there is one.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        match self.config.as_ref().filter(|path| !path.is_empty()) {
            Some(path) => Some(PathBuf::from(path)),
            None => Some(PathBuf::from(FILE)).filter(|path| Path::exists(path)),
        }
    }
}

/// What the command line says in place of the file. Not `Debug`: it may hold a password.
#[derive(Args, Clone, Default)]
pub(crate) struct Overrides {
    /// The database, as postgres://USER@HOST:PORT/NAME
    ///
    /// Others on this machine can see the command line: a password is better kept in a variable, in PGPASSWORD or in ~/.pgpass.
    /// Without it, the file's `database` is taken, then the variables that other commands take.
    // A plain string: a parser's complaint would repeat the value, with its password.
    #[arg(long, value_name = "URL")]
    pub(crate) database: Option<String>,

    /// Deliver only here, whatever sinks the file has
    ///
    /// One of `stdout`, `file:PATH`, `redis://HOST:PORT`, `nats://HOST:PORT`, `amqp://HOST:PORT`, `kafka://HOST:PORT` and `null`.
    #[arg(long, value_name = "PLACE", value_parser = place)]
    pub(crate) to: Option<String>,

    /// Where the sink of --to begins if it is new: now, earliest or a time such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "START", requires = "to", value_parser = checked::<Start>)]
    pub(crate) start: Option<String>,

    /// The name shown to operators for this relay
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Memory above which the relay drains and ends, such as 500MB
    #[arg(long, value_name = "SIZE", value_parser = checked::<Size>)]
    pub(crate) memory_limit: Option<String>,

    /// How long draining may take at the end, such as 10s
    #[arg(long, value_name = "DURATION", value_parser = checked::<Span>)]
    pub(crate) drain: Option<String>,

    /// Where metrics and health are served, or off
    #[arg(long, value_name = "ADDRESS", value_parser = checked::<Listen>)]
    pub(crate) listen: Option<String>,

    /// The form of log lines
    #[arg(long, value_name = "FORMAT", value_parser = ["text", "json"])]
    pub(crate) log_format: Option<String>,
}

/// Keeps the text: it is read with everything else.
fn checked<T: std::str::FromStr<Err = String>>(text: &str) -> Result<String, String> {
    text.parse::<T>().map(|_| text.to_owned())
}

fn place(text: &str) -> Result<String, String> {
    sinks::from_word(text, &Place::Flag("--to")).map(|_| text.to_owned())
}

impl Overrides {
    fn keys(&self) -> [(&'static str, &'static [&'static str], Option<&String>); 6] {
        [
            ("--database", &["database"], self.database.as_ref()),
            ("--name", &["relay", "name"], self.name.as_ref()),
            ("--memory-limit", &["relay", "memory_limit"], self.memory_limit.as_ref()),
            ("--drain", &["relay", "drain"], self.drain.as_ref()),
            ("--listen", &["http", "listen"], self.listen.as_ref()),
            ("--log-format", &["logs", "format"], self.log_format.as_ref()),
        ]
    }

    /// The flag for a key.
    #[cfg(test)]
    pub(crate) fn flag(path: &[&str]) -> Option<&'static str> {
        Self::default().keys().into_iter().find(|(_, key, _)| *key == path).map(|(flag, ..)| flag)
    }

    fn apply(&self, tree: &mut Node, findings: &mut Vec<Finding>) {
        for (flag, path, value) in self.keys() {
            if let Some(value) = value {
                tree.set(path, Node::text(value, Place::Flag(flag)));
            }
        }
        let Some(word) = &self.to else { return };
        let place = Place::Flag("--to");
        match sinks::from_word(word, &place) {
            Ok(mut sink) => {
                if let Some(start) = &self.start {
                    sink.value.set(&["start"], Node::text(start, Place::Flag("--start")));
                }
                tree.set(&["sinks"], Node::map(vec![sink], place));
            }
            Err(message) => findings.push(Finding::at(place, message)),
        }
    }
}

/// The variable for a key. Sinks have none: their names could not be told from the keys below them.
pub(crate) fn variable(path: &[&str]) -> Option<String> {
    match path {
        path if path.contains(&NAME) => None,
        // For every command, with or without a file.
        ["logs", "level"] => Some("POSTRIDER_LOG".to_owned()),
        path => Some(format!("POSTRIDER_{}", path.join("_").to_uppercase())),
    }
}

/// Takes `DATABASE_URL` where nothing else names a database.
pub(crate) fn fall_back(tree: &mut Node, environment: &Environment, findings: &mut Vec<Finding>) {
    // Incomplete: a database was named, with a variable that is missing.
    if tree.entry("database").is_none_or(|entry| entry.value.is_null())
        && !tree.is_incomplete
        && let Some(url) = get(environment, "DATABASE_URL", findings).filter(|url| !url.is_empty())
    {
        tree.set(&["database"], Node::text(url, Place::Variable("DATABASE_URL".to_owned())));
    }
}

/// Puts what comes before the file into its tree.
pub(crate) fn apply(
    tree: &mut Node,
    overrides: &Overrides,
    environment: &Environment,
    shape: &Shape,
    findings: &mut Vec<Finding>,
) {
    let mut known = Vec::new();
    for (path, _) in shape.leaves() {
        let Some(name) = variable(&path) else { continue };
        // Set to nothing is how many tools say that a variable is not set.
        if let Some(value) = get(environment, &name, findings).filter(|value| !value.is_empty()) {
            tree.set(&path, Node::text(value, Place::Variable(name.clone())));
        }
        known.push(name);
    }
    for name in environment.names("POSTRIDER_").filter(|name| !known.iter().any(|known| known == name)) {
        let near = known.iter().find(|known| strsim::damerau_levenshtein(name, known) <= 2);
        // Others may have variables that begin like this: a service called postrider gives every pod a POSTRIDER_PORT.
        if let Some(near) = near {
            findings.push(
                Finding::new(format!("the variable {name} is none of ours"))
                    .help(format!("did you mean {near}?")),
            );
        }
    }
    overrides.apply(tree, findings);
}

pub(super) fn get(environment: &Environment, name: &str, findings: &mut Vec<Finding>) -> Option<String> {
    environment.get(name).unwrap_or_else(|()| {
        findings.push(Finding::at(Place::Variable(name.to_owned()), "it is not valid UTF-8"));
        None
    })
}

/// For whoever shows where a value came from.
pub(crate) fn origin(entry: Option<&Entry>) -> String {
    let Some(entry) = entry else { return "default".to_owned() };
    let place = match &entry.value.place {
        Place::File { .. } => match &entry.place {
            Place::File { line, .. } => format!("file line {line}"),
            _ => "file".to_owned(),
        },
        Place::Variable(name) => format!("environment {name}"),
        Place::Flag(flag) => format!("flag {flag}"),
    };
    let from = entry.value.written.as_ref().map(|written| written.from.join(", "));
    from.map_or(place.clone(), |from| format!("{place}, {from}"))
}
