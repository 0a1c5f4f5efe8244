//! The configuration: found, read, filled in, checked. After that nothing parses again.
//!
//! `tree` is the file with its lines, `interpolate` fills in variables, `layers` adds flags and variables, `read` makes typed values
//! of it (`raw`, `sinks`), `check` makes settings of those. Everything that is wrong is a [`finding`], with its line.

mod as_text;
mod check;
mod environment;
mod finding;
mod hint;
mod interpolate;
mod layers;
mod outbox;
mod part;
mod raw;
mod read;
mod schema;
mod secrets;
mod shape;
mod show;
mod sinks;
mod tables;
mod tree;

#[cfg(test)]
mod document;
#[cfg(test)]
mod tests;

use std::fs;
use std::io::Read as _;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use postrider_relay::settings::{RelaySettings, SinkSettings};

pub(crate) use environment::Environment;
pub(crate) use finding::{Finding, Report};
pub(crate) use layers::{Overrides, Source};
pub(crate) use part::{Declared, database, declared, path_of};
pub(crate) use schema::published as schema;
pub(crate) use show::Shown;
pub(crate) use sinks::{ends_foreign, file_of};

use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::logging::Format;
use check::Checker;
use finding::Text;
use interpolate::Interpolation;
use tree::{Node, Place};

/// A larger file is something else.
const LARGEST: u64 = 4 << 20;

/// Everything that `postrider run` is told. Not `Debug`: it may hold a password.
pub(crate) struct Config {
    /// For the relay.
    pub(crate) relay: RelaySettings,
    /// Where metrics and health are served, if anywhere.
    pub(crate) http: Option<HttpSettings>,
    /// When a delay is worth an alarm.
    pub(crate) alerts: Alerts,
    /// What is said on standard error.
    pub(crate) logs: LogSettings,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HttpSettings {
    pub(crate) listen: SocketAddr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Alerts {
    /// A sink whose oldest waiting event is older is late.
    pub(crate) lag: Duration,
    /// An event that waits longer is stuck.
    pub(crate) stuck: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogSettings {
    pub(crate) format: Format,
    /// As `logging::set` takes it.
    pub(crate) level: String,
}

/// How far a check looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Depth {
    /// The file alone: what is written, and whether it fits together
    Syntax,
    /// What it refers to: variables, files, folders, expressions, templates
    References,
    /// What it needs: the database answers, its schema fits, sinks can be opened
    Environment,
}

/// What a look at a configuration came to.
pub(crate) struct Examined {
    /// Empty if all is well.
    pub(crate) report: Report,
    /// Set if all is well and a database is known.
    pub(crate) config: Option<Config>,
    file: raw::File,
    tree: Node,
}

impl Examined {
    /// The effective values and where they are from.
    pub(crate) fn show(&self) -> Shown {
        let mut file = self.file.clone();
        let mut tree = self.tree.clone();
        if let (None, Some(config)) = (&file.database, &self.config) {
            // The variables of libpq: where they lead to, without the password.
            let url = connect::url(&config.relay.database);
            file.database = Some(url.clone());
            tree.set(&["database"], Node::text(url, Place::Variable(connect::variables())));
        }
        Shown::new(&file, &tree)
    }

    /// What the environment was found to lack, at the key that asked for it.
    pub(crate) fn finding<S: AsRef<str>>(&self, path: &[S], message: String) -> Finding {
        Finding { place: part::place(&self.tree, path), ..Finding::new(message) }
    }

    /// Where files are to be written there has to be a folder. A relay that starts waits for it, as it may be mounted yet; whoever changes a
    /// configuration hears of it.
    pub(crate) fn folders(&self) -> Vec<Finding> {
        let sinks = self.config.iter().flat_map(|config| &config.relay.sinks);
        let missing = sinks.filter_map(|sink| {
            let path = file_of(&sink.target)?;
            let folder =
                path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let message = format!("the folder {} does not exist", folder.display());
            let is_missing = !folder.is_dir();
            is_missing.then(|| self.finding(&["sinks", &sink.name, sink.target.kind(), "path"], message))
        });
        missing.collect()
    }

    /// The report with what was found later.
    pub(crate) fn report_with(&self, findings: Vec<Finding>) -> Report {
        self.report.with(findings)
    }
}

/// Reads and checks everything. Fails with all that is wrong, each with its line.
pub(crate) fn load(source: &Source, overrides: &Overrides) -> Result<Config, Failure> {
    let examined = examine(source, overrides, Depth::References)?;
    match examined.config {
        Some(config) if examined.report.is_empty() => Ok(config),
        _ => Err(Failure::new(Exit::Configuration, examined.report)),
    }
}

/// As [`load`], and what it refers to has to be there: for a relay at work, which has another configuration to go on with.
pub(crate) fn load_anew(source: &Source, overrides: &Overrides) -> Result<Config, Failure> {
    let examined = examine(source, overrides, Depth::References)?;
    let missing = examined.folders();
    match examined.config {
        Some(config) if examined.report.is_empty() && missing.is_empty() => Ok(config),
        _ => Err(Failure::new(Exit::Configuration, examined.report.with(missing))),
    }
}

/// What the file says about the log, for those who only look at it. Nothing without a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Outline {
    /// The names of the sinks, where there is a file.
    pub(crate) sinks: Option<Vec<String>>,
    /// Above this the log is shortened.
    pub(crate) max_log_size: Option<u64>,
}

/// Reads the outline. Variables need not be set.
pub(crate) fn outline(source: &Source) -> Result<Outline, Failure> {
    if source.file().is_none() {
        return Ok(Outline::default());
    }
    let examined = examine(source, &Overrides::default(), Depth::Syntax)?;
    if !examined.report.is_empty() {
        return Err(Failure::new(Exit::Configuration, examined.report));
    }
    let max_log_size = examined.file.log.max_log_size.map(|size| size.0);
    Ok(Outline { sinks: Some(examined.file.sinks.keys().cloned().collect()), max_log_size })
}

/// The sinks as a relay would be told here; `None` without a file, or where something is missing that it refers to.
pub(crate) fn sinks(source: &Source, overrides: &Overrides) -> Result<Option<Vec<SinkSettings>>, Failure> {
    if source.file().is_none() {
        return Ok(None);
    }
    let examined = examine(source, overrides, Depth::References)?;
    Ok(examined.config.map(|config| config.relay.sinks))
}

/// Looks at a configuration without refusing it. Fails only if the file cannot be read.
pub(crate) fn examine(source: &Source, overrides: &Overrides, depth: Depth) -> Result<Examined, Failure> {
    let file = source.file();
    let text = match &file {
        Some(path) => content(path)?,
        None => String::new(),
    };
    Ok(examine_text(text, file.as_deref(), overrides, &Environment::of_process(), depth))
}

fn content(path: &Path) -> Result<String, Failure> {
    let failed = |why: String| {
        Failure::configuration(format!("the configuration file {} cannot be read: {why}", path.display()))
    };
    let mut bytes = Vec::new();
    fs::File::open(path)
        .and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes))
        .map_err(|error| failed(error.to_string()))?;
    if bytes.len() as u64 > LARGEST {
        return Err(failed(format!("it is larger than {LARGEST} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.split(|byte| *byte == b'\n').count();
        failed(format!("line {line} is not valid UTF-8"))
    })
}

/// [`examine`] of a text, in an environment.
fn examine_text(
    source: String,
    path: Option<&Path>,
    overrides: &Overrides,
    environment: &Environment,
    depth: Depth,
) -> Examined {
    let shape = shape::shape();
    let mut findings = Vec::new();
    let parsed = tree::parse(&source, &mut findings);
    let name = path.map(|path| path.display().to_string()).unwrap_or_default();
    let masks = parsed.as_ref().map(|tree| secrets::masks(tree, shape));
    let text = Text { name, source, masks };
    let Some(mut tree) = parsed else {
        let start = Place::File { line: 1, column: 1, bytes: 0..0 };
        return Examined {
            report: Report::new(text, findings),
            config: None,
            file: raw::File::default(),
            tree: Node::map(Vec::new(), start),
        };
    };

    layers::apply(&mut tree, overrides, environment, shape, &mut findings);
    let is_strict = depth != Depth::Syntax;
    let folder = interpolate::folder(path);
    Interpolation { environment, folder, is_strict }.fill(&mut tree, &mut findings);
    layers::fall_back(&mut tree, environment, &mut findings);

    let sinks = tree.entry("sinks").map(|section| sinks::read_all(section, shape, &mut findings));
    let file = read::read::<raw::File>(&tree, &[], shape, &mut findings);
    let mut file = file.unwrap_or_default();
    file.sinks = sinks.unwrap_or_default();
    for (name, sink) in &mut file.sinks {
        let is_set = |key: &str| tree.find(&["sinks", name, key]).is_some();
        let usual = sink.target.usual_in_flight();
        if !is_set("max_in_flight") {
            sink.feed.max_in_flight = usual;
        }
        // A batch beyond what may be in flight can only be meant if somebody wrote it.
        if !is_set("max_batch") {
            sink.feed.max_batch = (usual / 2).min(sink.feed.max_in_flight.max(1));
        }
    }
    // What could not be read stands at its default now: relations would be about something nobody wrote.
    let config = if findings.is_empty() {
        let mut checker = Checker { tree: &tree, findings: Vec::new() };
        checker.relations(&file);
        let config = checker.settings(&file, depth);
        findings.append(&mut checker.findings);
        config.filter(|_| findings.is_empty())
    } else {
        None
    };
    Examined { report: Report::new(text, findings), config, file, tree }
}
