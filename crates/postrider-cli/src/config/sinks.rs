//! A sink in the file: one key that is its kind, and the keys that every sink has.
//!
//! Which kinds there are is asked of [`Target`] itself: a new sink is one arm there and nothing here.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use postrider_relay::sinks::Target;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde_json::{Value, json};

use super::finding::Finding;
use super::hint;
use super::raw::Feed;
use super::read::read;
use super::shape::Shape;
use super::tree::{Entry, Node, Place};

/// Every kind there is, also those that this build was made without. A cargo feature has the same name.
pub(crate) const KINDS: &[&str] = &["file", "jobs", "kafka", "nats", "null", "rabbitmq", "redis", "stdout"];

/// PostgreSQL cuts longer names off where they become identifiers.
const LONGEST_NAME: usize = 63;

/// One sink of the file.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Sink {
    #[serde(flatten)]
    pub(crate) target: Target,
    #[serde(flatten)]
    pub(crate) feed: Feed,
}

impl JsonSchema for Sink {
    fn schema_name() -> Cow<'static, str> {
        "Sink".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = Feed::json_schema(generator);
        let kinds = kinds(&Target::json_schema(generator));
        let one_of: Vec<Value> = kinds.iter().map(|(kind, _)| json!({ "required": [kind] })).collect();
        let sink = schema.ensure_object();
        if let Some(properties) = sink.get_mut("properties").and_then(Value::as_object_mut) {
            properties.extend(kinds);
        }
        sink.insert("oneOf".to_owned(), one_of.into());
        sink.insert("description".to_owned(), "Where events go, and how it is fed.".into());
        schema
    }
}

/// The kinds of the schema of [`Target`], each with the schema of its own keys.
fn kinds(target: &Schema) -> Vec<(String, Value)> {
    let arms = target.get("oneOf").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let kinds = arms.iter().filter_map(|arm| {
        let (kind, keys) = arm.get("properties")?.as_object()?.iter().next()?;
        let mut keys = keys.clone();
        if let (Some(keys), Some(description)) = (keys.as_object_mut(), arm.get("description")) {
            keys.insert("description".to_owned(), description.clone());
        }
        Some((kind.clone(), keys))
    });
    kinds.collect()
}

/// The kinds that this build has.
pub(crate) fn compiled() -> Vec<String> {
    kinds(&schemars::schema_for!(Target)).into_iter().map(|(kind, _)| kind).collect()
}

/// For the words of an error: a kind that exists, and that this build was made without.
pub(crate) fn missing_feature(kind: &str) -> Option<String> {
    let is_left_out = KINDS.contains(&kind) && !compiled().iter().any(|known| known == kind);
    is_left_out.then(|| format!("this build has no sink `{kind}`; build it with `--features {kind}`"))
}

/// Reads the section `sinks`.
pub(crate) fn read_all(
    section: &Entry,
    shape: &Shape,
    findings: &mut Vec<Finding>,
) -> BTreeMap<String, Sink> {
    let Some(entries) = section.value.entries() else {
        findings.push(Finding::at(
            section.place.clone(),
            "`sinks`: takes a name for each sink, and under it the sink",
        ));
        return BTreeMap::new();
    };
    entries
        .iter()
        .filter_map(|entry| {
            check_name(entry, findings);
            Some((entry.key.clone(), read_one(entry, shape, findings)?))
        })
        .collect()
}

fn check_name(entry: &Entry, findings: &mut Vec<Finding>) {
    let name = &entry.key;
    let is_legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(is_legal) {
        let message = format!("`{name}` is no name for a sink");
        findings.push(
            Finding::at(entry.place.clone(), message)
                .help(format!("take 1 to {LONGEST_NAME} of the characters a-z, 0-9, _ and -")),
        );
    }
}

fn read_one(entry: &Entry, shape: &Shape, findings: &mut Vec<Finding>) -> Option<Sink> {
    let name = entry.key.as_str();
    let compiled = compiled();
    let Some(entries) = entry.value.entries() else {
        let message = format!("the sink `{name}` takes keys of its own, not a single value or a list");
        findings.push(Finding::at(entry.place.clone(), message).help(example(&compiled)));
        return None;
    };
    let is_kind = |entry: &&Entry| KINDS.contains(&entry.key.as_str()) || compiled.contains(&entry.key);
    let (chosen, rest): (Vec<&Entry>, Vec<&Entry>) = entries.iter().partition(is_kind);
    let (known, unknown): (Vec<&Entry>, Vec<&Entry>) =
        rest.into_iter().partition(|entry| shape.is_known(&["sinks", name, &entry.key]));

    for entry in &unknown {
        findings.push(unknown_key(name, entry, chosen.is_empty(), &compiled, shape));
    }
    let feed = section(&known, &entry.value);
    let feed = read::<Feed>(&feed, &["sinks", name], shape, findings);

    if let [first, second, ..] = chosen.as_slice() {
        let message = format!("the sink `{name}` is both `{}` and `{}`", first.key, second.key);
        findings.push(Finding::at(second.place.clone(), message).help("make it two sinks"));
        // What is wrong inside of each is not to be found only when the other is gone.
        for kind in chosen.iter().filter(|kind| missing_feature(&kind.key).is_none()) {
            read::<Target>(&section(&[*kind], &entry.value), &["sinks", name], shape, findings);
        }
        return None;
    }
    let Some(kind) = chosen.first() else {
        if unknown.is_empty() && !entry.value.is_incomplete {
            let message = format!("the sink `{name}` does not say where it goes");
            findings.push(Finding::at(entry.place.clone(), message).help(example(&compiled)));
        }
        return None;
    };
    if let Some(message) = missing_feature(&kind.key) {
        findings.push(Finding::at(kind.place.clone(), message));
        return None;
    }
    let target = section(&[*kind], &entry.value);
    let target = read::<Target>(&target, &["sinks", name], shape, findings);
    Some(Sink { target: target?, feed: feed? })
}

fn unknown_key(name: &str, entry: &Entry, needs_kind: bool, compiled: &[String], shape: &Shape) -> Finding {
    let key = entry.key.as_str();
    let mut known: Vec<&str> = compiled.iter().map(String::as_str).collect();
    let message = if needs_kind {
        format!("`{key}` is neither a kind of sink ({}) nor a key of one", known.join(", "))
    } else {
        format!("unknown key `{key}` in `sinks.{name}`")
    };
    let keys = shape.keys_of(&["sinks", name]);
    known.extend(keys.iter().map(String::as_str).filter(|key| !compiled.iter().any(|kind| kind == key)));
    let help = match shape.section_of(key) {
        Some(section) => Some(format!("`{key}` is a key of `{section}`")),
        None => hint::among(key, &known),
    };
    Finding { help, ..Finding::at(entry.place.clone(), message) }
}

fn example(compiled: &[String]) -> String {
    let kinds: Vec<String> = compiled.iter().map(|kind| format!("`{kind}: {{…}}`")).collect();
    format!("give it one of {}", kinds.join(", "))
}

/// A section of some entries of another.
fn section(entries: &[&Entry], of: &Node) -> Node {
    let mut node = Node::map(entries.iter().map(|entry| (*entry).clone()).collect(), of.place.clone());
    node.is_incomplete = of.is_incomplete;
    node
}

/// The file that a sink writes, if it writes one: every kind that does has the key `path`.
pub(crate) fn file_of(target: &Target) -> Option<PathBuf> {
    let target = serde_json::to_value(target).ok()?;
    let (_, keys) = target.as_object()?.iter().next()?;
    Some(PathBuf::from(keys.get("path")?.as_str()?))
}

/// Whether a file is there that ends with something no relay has written, so that no sink takes it. One that cannot be read is no answer.
#[cfg(feature = "file")]
pub(crate) fn ends_foreign(path: &Path) -> bool {
    path.is_file() && postrider_relay::sinks::file::ends_foreign(path).unwrap_or(false)
}

/// No other sink writes files.
#[cfg(not(feature = "file"))]
pub(crate) fn ends_foreign(_: &Path) -> bool {
    false
}

/// A place that `--to` can name: by its first word, and how the rest is written.
struct Form {
    word: &'static str,
    kind: &'static str,
    value: Spelling,
    /// For people; nothing for a second way of writing one.
    shown: &'static str,
}

/// What becomes of the word after `--to`.
enum Spelling {
    /// It says everything.
    None,
    /// What comes after the colon is the value of this key.
    Rest(&'static str),
    /// All of it is the value of this key: an address.
    Whole(&'static str),
}

const PLACES: &[Form] = &[
    Form { word: "stdout", kind: "stdout", value: Spelling::None, shown: "stdout" },
    Form { word: "file", kind: "file", value: Spelling::Rest("path"), shown: "file:PATH" },
    Form { word: "redis", kind: "redis", value: Spelling::Whole("url"), shown: "redis://HOST:PORT" },
    Form { word: "rediss", kind: "redis", value: Spelling::Whole("url"), shown: "" },
    Form { word: "nats", kind: "nats", value: Spelling::Whole("url"), shown: "nats://HOST:PORT" },
    Form { word: "tls", kind: "nats", value: Spelling::Whole("url"), shown: "" },
    Form { word: "amqp", kind: "rabbitmq", value: Spelling::Whole("url"), shown: "amqp://HOST:PORT" },
    Form { word: "amqps", kind: "rabbitmq", value: Spelling::Whole("url"), shown: "" },
    Form { word: "kafka", kind: "kafka", value: Spelling::Whole("url"), shown: "kafka://HOST:PORT" },
    Form { word: "kafka+ssl", kind: "kafka", value: Spelling::Whole("url"), shown: "" },
    Form { word: "null", kind: "null", value: Spelling::None, shown: "null" },
];

/// The sink of `--to`: `stdout`, `null`, `file:PATH`, or the address of a broker.
pub(crate) fn from_word(word: &str, place: &Place) -> Result<Entry, String> {
    let (first, rest) = word.split_once(':').map_or((word, None), |(first, rest)| (first, Some(rest)));
    let forms = || {
        let forms = PLACES.iter().filter(|form| missing_feature(form.kind).is_none()).map(|form| form.shown);
        forms.filter(|shown| !shown.is_empty()).collect::<Vec<_>>().join(", ")
    };
    let Some(form) = PLACES.iter().find(|form| form.word == first) else {
        // What comes before the first colon may be more than a word, with a password in it.
        let first = first.split("//").next().unwrap_or(first);
        return Err(match hint::nearest(first, PLACES.iter().map(|form| form.word)) {
            Some(known) => format!("there is no sink `{first}`; did you mean `{known}`?"),
            None => format!("there is no sink `{first}`; this build has {}", forms()),
        });
    };
    if let Some(message) = missing_feature(form.kind) {
        return Err(message);
    }
    let kind = form.kind;
    let keys = match (&form.value, rest) {
        (Spelling::None, None) => Vec::new(),
        (Spelling::Rest(key), Some(value)) if !value.is_empty() => key_with(key, value, place),
        (Spelling::Whole(key), Some(rest)) if rest.len() > 2 && rest.starts_with("//") => {
            key_with(key, word, place)
        }
        _ => return Err(format!("write one of {}", forms())),
    };
    let entry = |key: &str, entries: Vec<Entry>| Entry {
        key: key.to_owned(),
        place: place.clone(),
        value: Node::map(entries, place.clone()),
    };
    Ok(entry(kind, vec![entry(kind, keys)]))
}

fn key_with(key: &str, value: &str, place: &Place) -> Vec<Entry> {
    vec![Entry { key: key.to_owned(), place: place.clone(), value: Node::text(value, place.clone()) }]
}
