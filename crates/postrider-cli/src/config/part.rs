//! A part of the configuration alone, for the commands that need nothing else of it: the database, the tables.

use postrider::log::Servers;
use postrider::{capture, declared, outbox as adopting};

use super::check::Checker;
use super::environment::Environment;
use super::finding::{Finding, Report, Text};
use super::interpolate::{self, Interpolation};
use super::tree::{self, Node, Place, Value};
use super::{Depth, Source, content, hint, layers, outbox, raw, read, secrets, shape, tables};
use crate::exit::Exit;
use crate::failure::Failure;

/// The keys.
const DATABASE: &str = "database";
const TABLES: &str = "tables";
const OUTBOX: &str = "outbox";

/// The database as `run` would find it. Whatever else is wrong with the file is no concern of who asks this.
pub(crate) fn database(source: &Source) -> Result<Servers, Failure> {
    let part = Part::read(source, &[DATABASE])?;
    let mut checker = Checker { tree: &part.tree, findings: Vec::new() };
    let database = checker.database(&part.file, Depth::References);
    database.ok_or_else(|| part.refused(checker.findings))
}

/// What the file declares of tables, and where it says so.
pub(crate) struct Declared {
    pub(crate) tables: Vec<capture::Table>,
    pub(crate) outboxes: Vec<adopting::Outbox>,
    /// Whether there is a file at all.
    pub(crate) is_written: bool,
    part: Part,
}

/// The declared tables. Whatever else is wrong with the file is no concern of who asks this, but for keys that nobody knows.
pub(crate) fn declared(source: &Source) -> Result<Declared, Failure> {
    let part = Part::read(source, &[TABLES, OUTBOX])?;
    let mut checker = Checker { tree: &part.tree, findings: Vec::new() };
    checker.tables(&part.file);
    checker.outbox(&part.file);
    let findings = checker.findings;
    if findings.is_empty() {
        let is_written = source.file().is_some();
        let (tables, outboxes) = (tables::declared(&part.file), outbox::declared(&part.file));
        return Ok(Declared { tables, outboxes, is_written, part });
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

    /// What the database says about whatever is declared.
    pub(crate) fn any_failure(&self, error: declared::Error) -> Failure {
        match error {
            declared::Error::Table(error) => self.failure(error),
            declared::Error::Outbox(error) => self.outbox_failure(error),
            error @ declared::Error::Both { .. } => {
                let place = place(&self.part.tree, &[OUTBOX]);
                self.part.refused(vec![Finding { place, ..Finding::new(error.to_string()) }])
            }
        }
    }

    /// The same about an adopted table.
    fn outbox_failure(&self, error: adopting::Error) -> Failure {
        let path = match &error {
            adopting::Error::NoField { table, .. } | adopting::Error::Claimed { table, .. } => {
                vec![OUTBOX, table]
            }
            adopting::Error::NoColumn { table, .. }
            | adopting::Error::WrongType { table, .. }
            | adopting::Error::NoMark { table, .. } => {
                vec![OUTBOX, table, "columns"]
            }
            adopting::Error::Twice { second, .. } => vec![OUTBOX, second],
            // The first two are for relays alone.
            adopting::Error::NotCallable { .. }
            | adopting::Error::Names { .. }
            | adopting::Error::Table(_)
            | adopting::Error::Database(_) => Vec::new(),
        };
        let place = place(&self.part.tree, &path);
        match error {
            adopting::Error::Table(capture::Error::Database(error)) | adopting::Error::Database(error) => {
                capture::Error::Database(error).into()
            }
            // Nothing is wrong with the file: it is too early.
            error @ adopting::Error::Claimed { .. } => Failure::new(Exit::Found, error),
            error => self.part.refused(vec![Finding { place, ..Finding::new(error.to_string()) }]),
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
        capture::Error::ExtraColumn { table, .. } => path(table, "extra"),
        capture::Error::NeverNull { table, .. } => path(table, "soft_delete"),
        capture::Error::NoTable { table }
        | capture::Error::NotATable { table, .. }
        | capture::Error::Inherited { table, .. }
        | capture::Error::NoKey { table } => path(table, ""),
        capture::Error::NoSnapshot { table } => path(table, "verbs.snapshot"),
        capture::Error::Hidden { table, .. } | capture::Error::Unreadable { table, .. } => {
            path(table, "parent")
        }
        capture::Error::Twice { second: table, .. } | capture::Error::Overlap { partition: table, .. } => {
            path(table, "")
        }
        capture::Error::Rights { .. }
        | capture::Error::NotTheOwner { .. }
        | capture::Error::NotCaptured { .. }
        | capture::Error::NoPrimaryKey { .. }
        | capture::Error::Kept { .. }
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
    fn read(source: &Source, keys: &[&str]) -> Result<Self, Failure> {
        let is_database = keys.contains(&DATABASE);
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

        // Whoever asks for the database alone may have a file for another version; a mistyped `tables` would be none at all.
        if !is_database {
            findings.extend(strangers(&tree, shape));
        }
        let mut tree = alone(tree, keys);
        if is_database
            && let Some(name) = layers::variable(&[DATABASE])
            && let Some(url) = layers::get(&environment, &name, &mut findings).filter(|url| !url.is_empty())
        {
            tree.set(&[DATABASE], Node::text(url, Place::Variable(name)));
        }
        let folder = interpolate::folder(path.as_deref());
        Interpolation { environment: &environment, folder, is_strict: true }.fill(&mut tree, &mut findings);
        if is_database {
            layers::fall_back(&mut tree, &environment, &mut findings);
        }
        let file = read::read::<raw::File>(&tree, &[], shape, &mut findings).unwrap_or_default();
        if findings.is_empty() { Ok(Self { text, tree, file }) } else { Err(refused(findings)) }
    }

    fn refused(&self, findings: Vec<Finding>) -> Failure {
        Failure::new(Exit::Configuration, Report::new(self.text.clone(), findings))
    }
}

/// The keys of the file that nobody knows.
fn strangers(tree: &Node, shape: &shape::Shape) -> Vec<Finding> {
    let known: Vec<&str> = shape.children().into_iter().map(|(key, _)| key).collect();
    let Value::Map(entries) = &tree.value else { return Vec::new() };
    let unknown = entries.iter().filter(|entry| !known.contains(&entry.key.as_str()));
    unknown
        .map(|entry| {
            let message = format!("unknown key `{}`", entry.key);
            Finding { help: hint::among(&entry.key, &known), ..Finding::at(entry.place.clone(), message) }
        })
        .collect()
}

/// The tree with nothing but these keys in it. What is no map is left for the reader to complain about.
fn alone(tree: Node, keys: &[&str]) -> Node {
    match tree.value {
        Value::Map(entries) => Node::map(
            entries.into_iter().filter(|entry| keys.contains(&entry.key.as_str())).collect(),
            tree.place,
        ),
        _ => tree,
    }
}
