//! A part of the configuration alone, for the commands that need nothing else of it: the database, the tables.

use postrider::capture;
use postrider::log::Servers;

use super::check::Checker;
use super::environment::Environment;
use super::finding::{Finding, Report, Text};
use super::interpolate::{self, Interpolation};
use super::tree::{self, Node, Place, Value};
use super::{Depth, Source, content, layers, raw, read, secrets, shape, tables};
use crate::exit::Exit;
use crate::failure::Failure;

/// The keys.
const DATABASE: &str = "database";
const TABLES: &str = "tables";

/// The database as `run` would find it. Whatever else is wrong with the file is no concern of who asks this.
pub(crate) fn database(source: &Source) -> Result<Servers, Failure> {
    let part = Part::read(source, DATABASE)?;
    let mut checker = Checker { tree: &part.tree, findings: Vec::new() };
    let database = checker.database(&part.file, Depth::References);
    database.ok_or_else(|| part.refused(checker.findings))
}

/// What the file declares of tables, and where it says so.
pub(crate) struct Declared {
    pub(crate) tables: Vec<capture::Table>,
    /// Whether there is a file at all.
    pub(crate) is_written: bool,
    part: Part,
}

/// The declared tables. Whatever else is wrong with the file is no concern of who asks this.
pub(crate) fn declared(source: &Source) -> Result<Declared, Failure> {
    let part = Part::read(source, TABLES)?;
    let mut checker = Checker { tree: &part.tree, findings: Vec::new() };
    checker.tables(&part.file);
    let findings = checker.findings;
    if findings.is_empty() {
        let is_written = source.file().is_some();
        return Ok(Declared { tables: tables::declared(&part.file), is_written, part });
    }
    Err(part.refused(findings))
}

impl Declared {
    /// What the database says about a declaration, at its line.
    pub(crate) fn failure(&self, error: capture::Error) -> Failure {
        match path_of(&error) {
            Some(path) => {
                let place = place(&self.part.tree, &path);
                self.part.refused(vec![Finding { place, ..Finding::new(error.to_string()) }])
            }
            None => error.into(),
        }
    }
}

/// Where the deepest of these keys is that is written.
pub(super) fn place<S: AsRef<str>>(tree: &Node, path: &[S]) -> Option<Place> {
    (1..=path.len()).rev().find_map(|depth| tree.find(&path[..depth])).map(|entry| entry.place.clone())
}

/// The key that an error is about; nothing for what is not about the declaration.
pub(crate) fn path_of(error: &capture::Error) -> Option<Vec<String>> {
    let path = |table: &str, key: &str| {
        let keys = key.split('.').filter(|key| !key.is_empty()).map(str::to_owned);
        Some([TABLES.to_owned(), table.to_owned()].into_iter().chain(keys).collect())
    };
    match error {
        capture::Error::NoColumn { table, key, .. } => path(table, key),
        capture::Error::Expression { table, key, .. } => path(table, key),
        capture::Error::NoTable { table }
        | capture::Error::NotATable { table, .. }
        | capture::Error::Inherited { table, .. }
        | capture::Error::NoKey { table } => path(table, ""),
        capture::Error::NoSnapshot { table } => path(table, "verbs.snapshot"),
        capture::Error::Twice { second: table, .. } | capture::Error::Overlap { partition: table, .. } => {
            path(table, "")
        }
        capture::Error::NotCaptured { .. }
        | capture::Error::NoPrimaryKey { .. }
        | capture::Error::Condition { .. }
        | capture::Error::Database(_) => None,
    }
}

/// One section of the file.
struct Part {
    text: Text,
    tree: Node,
    file: raw::File,
}

impl Part {
    fn read(source: &Source, key: &str) -> Result<Self, Failure> {
        let path = source.file();
        let text = path.as_deref().map(content).transpose()?.unwrap_or_default();
        let shape = shape::shape();
        let environment = Environment::of_process();
        let mut findings = Vec::new();
        let parsed = tree::parse(&text, &mut findings);
        let name = path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        let masks = parsed.as_ref().map(|tree| secrets::masks(tree, shape));
        let text = Text { name, masks, source: text };
        let refused = |findings| Failure::new(Exit::Configuration, Report::new(text.clone(), findings));
        let Some(tree) = parsed else { return Err(refused(findings)) };

        let mut tree = alone(tree, key);
        if key == DATABASE
            && let Some(name) = layers::variable(&[DATABASE])
            && let Some(url) = layers::get(&environment, &name, &mut findings).filter(|url| !url.is_empty())
        {
            tree.set(&[DATABASE], Node::text(url, Place::Variable(name)));
        }
        let folder = interpolate::folder(path.as_deref());
        Interpolation { environment: &environment, folder, is_strict: true }.fill(&mut tree, &mut findings);
        if key == DATABASE {
            layers::fall_back(&mut tree, &environment, &mut findings);
        }
        let file = read::read::<raw::File>(&tree, &[], shape, &mut findings).unwrap_or_default();
        if findings.is_empty() { Ok(Self { text, tree, file }) } else { Err(refused(findings)) }
    }

    fn refused(&self, findings: Vec<Finding>) -> Failure {
        Failure::new(Exit::Configuration, Report::new(self.text.clone(), findings))
    }
}

/// The tree with nothing but one key in it. What is no map is left for the reader to complain about.
fn alone(tree: Node, key: &str) -> Node {
    match tree.value {
        Value::Map(entries) => {
            Node::map(entries.into_iter().filter(|entry| entry.key == key).collect(), tree.place)
        }
        _ => tree,
    }
}
