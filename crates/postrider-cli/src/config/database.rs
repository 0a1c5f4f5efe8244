//! The database alone, for the commands that need nothing else of the configuration.

use postrider::log::Servers;

use super::check::Checker;
use super::environment::Environment;
use super::finding::{Report, Text};
use super::interpolate::{self, Interpolation};
use super::tree::{self, Node, Place, Value};
use super::{Depth, Source, content, layers, raw, read, secrets, shape};
use crate::exit::Exit;
use crate::failure::Failure;

/// The key.
const DATABASE: &str = "database";

/// The database as `run` would find it. Whatever else is wrong with the file is no concern of who asks this.
pub(crate) fn database(source: &Source) -> Result<Servers, Failure> {
    let path = source.file();
    let text = path.as_deref().map(content).transpose()?.unwrap_or_default();
    let shape = shape::shape();
    let environment = Environment::of_process();
    let mut findings = Vec::new();
    let parsed = tree::parse(&text, &mut findings);
    let name = path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let text = Text { name, masks: parsed.as_ref().map(|tree| secrets::masks(tree, shape)), source: text };
    let refused = |findings| Failure::new(Exit::Configuration, Report::new(text.clone(), findings));
    let Some(tree) = parsed else { return Err(refused(findings)) };

    let mut tree = alone(tree);
    if let Some(name) = layers::variable(&[DATABASE])
        && let Some(url) = layers::get(&environment, &name, &mut findings).filter(|url| !url.is_empty())
    {
        tree.set(&[DATABASE], Node::text(url, Place::Variable(name)));
    }
    let folder = interpolate::folder(path.as_deref());
    Interpolation { environment: &environment, folder, is_strict: true }.fill(&mut tree, &mut findings);
    layers::fall_back(&mut tree, &environment, &mut findings);
    let file = read::read::<raw::File>(&tree, &[], shape, &mut findings).unwrap_or_default();
    if !findings.is_empty() {
        return Err(refused(findings));
    }
    let mut checker = Checker { tree: &tree, findings };
    let database = checker.database(&file, Depth::References);
    database.ok_or_else(|| refused(checker.findings))
}

/// The tree with nothing but the database in it. What is no map is left for the reader to complain about.
fn alone(tree: Node) -> Node {
    match tree.value {
        Value::Map(entries) => {
            Node::map(entries.into_iter().filter(|entry| entry.key == DATABASE).collect(), tree.place)
        }
        _ => tree,
    }
}
