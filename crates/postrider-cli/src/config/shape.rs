//! The schema as a tree of keys: which there are, what they take, which are secret.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::raw::File;
use super::secrets;

/// Stands in a path for a name that the user chooses.
pub(crate) const NAME: &str = "NAME";

/// Sections and keys in the order of reading. What is not here comes after, by the alphabet.
const ORDER: &[&str] = &[
    "database",
    "log",
    "relay",
    "alerts",
    "tables",
    "outbox",
    "sinks",
    "http",
    "logs",
    "retention",
    "max_slot_size",
    "max_log_size",
    "lease",
    "idle",
    "min",
    "hint",
    "sweep",
    "patience",
    "standbys",
    "name",
    "memory_limit",
    "drain",
    "connections",
    "lag",
    "stuck",
    "preset",
    "mode",
    "columns",
    "interval",
    "entity",
    "key",
    "tenant",
    "type",
    "verbs",
    "created",
    "updated",
    "deleted",
    "restored",
    "purged",
    "changes",
    "also",
    "soft_delete",
    "omit",
    "ignore",
    "extra",
    "headers",
    "context",
    "parent",
    "table",
    "column",
    "by",
    "replicated",
    "truncate",
    "on_failure",
    "stdout",
    "file",
    "redis",
    "nats",
    "rabbitmq",
    "kafka",
    "jobs",
    "null",
    "path",
    "url",
    "stream",
    "exchange",
    "kind",
    "unroutable",
    "channels",
    "management",
    "create",
    "replicas",
    "credentials",
    "sasl",
    "ca",
    "certificate",
    "certificate_key",
    "max_len",
    "compression",
    "linger",
    "create_topics",
    "partitions",
    "replication",
    "topics",
    "timeout",
    "start",
    "ordering",
    "envelope",
    "source",
    "filter",
    "transform",
    "route",
    "retry",
    "max_attempts",
    "first",
    "factor",
    "max",
    "max_in_flight",
    "max_batch",
    "require_durability",
    "listen",
    "format",
    "level",
];

/// A key with everything below it.
#[derive(Debug, Clone)]
#[cfg_attr(not(test), allow(dead_code, reason = "the documentation has these from a test"))]
pub(crate) struct Shape {
    pub(crate) description: String,
    /// For people: `duration`, `whole number`.
    pub(crate) takes: String,
    /// The words it can be, each with its meaning.
    pub(crate) choices: Vec<(String, String)>,
    /// `None` if the key has to be there.
    pub(crate) default: Option<Value>,
    pub(crate) example: Option<Value>,
    is_secret: bool,
    children: Children,
}

#[derive(Debug, Clone)]
enum Children {
    None,
    Fixed(Vec<(String, Shape)>),
    /// Any name, each with this below it.
    Named(Box<Shape>),
}

static SHAPE: LazyLock<Shape> = LazyLock::new(|| {
    let schema = schemars::schema_for!(File).to_value();
    Shape::of(&schema, &schema)
});

/// The shape of the whole file.
pub(crate) fn shape() -> &'static Shape {
    &SHAPE
}

/// Sorts keys as a reader wants them.
pub(crate) fn rank(key: &str) -> (usize, &str) {
    (ORDER.iter().position(|known| *known == key).unwrap_or(ORDER.len()), key)
}

impl Shape {
    fn of(schema: &Value, root: &Value) -> Self {
        let (resolved, type_name) = resolve(schema, root);
        let text = |key: &str| resolved.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let children = if let Some(properties) = resolved.get("properties").and_then(Value::as_object) {
            let mut keys: Vec<(String, Self)> =
                properties.iter().map(|(key, schema)| (key.clone(), Self::of(schema, root))).collect();
            keys.sort_by(|(a, _), (b, _)| rank(a).cmp(&rank(b)));
            Children::Fixed(keys)
        } else {
            match resolved.get("additionalProperties") {
                Some(schema @ Value::Object(_)) => Children::Named(Box::new(Self::of(schema, root))),
                _ if text("type") == "object" => Children::Fixed(Vec::new()),
                _ => Children::None,
            }
        };
        Self {
            description: one_line(&text("description")),
            takes: takes(&resolved, &type_name),
            choices: choices(&resolved),
            default: resolved.get("default").cloned(),
            example: resolved.get("examples").and_then(|examples| examples.get(0)).cloned(),
            is_secret: resolved.get("writeOnly") == Some(&Value::Bool(true)),
            children,
        }
    }

    /// The keys of a section, in order; of a section of names, one that stands for all.
    pub(crate) fn children(&self) -> Vec<(&str, &Self)> {
        match &self.children {
            Children::None => Vec::new(),
            Children::Fixed(keys) => keys.iter().map(|(key, shape)| (key.as_str(), shape)).collect(),
            Children::Named(shape) => vec![(NAME, shape)],
        }
    }

    pub(crate) fn is_section(&self) -> bool {
        !matches!(self.children, Children::None)
    }

    /// Whether the user chooses the names of its keys.
    #[cfg(test)]
    pub(crate) fn is_of_names(&self) -> bool {
        matches!(self.children, Children::Named(_))
    }

    fn child(&self, key: &str) -> Option<&Self> {
        match &self.children {
            Children::None => None,
            Children::Fixed(keys) => keys.iter().find(|(known, _)| known == key).map(|(_, shape)| shape),
            Children::Named(shape) => Some(shape),
        }
    }

    pub(crate) fn find<S: AsRef<str>>(&self, path: &[S]) -> Option<&Self> {
        path.iter().try_fold(self, |shape, key| shape.child(key.as_ref()))
    }

    pub(crate) fn is_known<S: AsRef<str>>(&self, path: &[S]) -> bool {
        self.find(path).is_some()
    }

    /// A key nobody knows counts as secret: it may be the name of a secret, misspelt.
    pub(crate) fn is_secret<S: AsRef<str>>(&self, path: &[S]) -> bool {
        self.find(path).is_none_or(|shape| shape.is_secret)
            || path.last().is_some_and(|key| secrets::is_secret(key.as_ref()))
    }

    pub(crate) fn keys_of(&self, path: &[&str]) -> Vec<String> {
        let keys = self.find(path).map(Self::children).unwrap_or_default();
        keys.into_iter().map(|(key, _)| key.to_owned()).collect()
    }

    /// Every key that takes a value, with its path.
    pub(crate) fn leaves(&self) -> Vec<(Vec<&str>, &Self)> {
        let mut leaves = Vec::new();
        self.visit(&mut Vec::new(), &mut |path, shape| {
            if !shape.is_section() {
                leaves.push((path.to_vec(), shape));
            }
        });
        leaves
    }

    /// Every key and section, outer ones first.
    pub(crate) fn visit<'s>(
        &'s self,
        path: &mut Vec<&'s str>,
        visitor: &mut impl FnMut(&[&'s str], &'s Self),
    ) {
        for (key, shape) in self.children() {
            path.push(key);
            visitor(path, shape);
            shape.visit(path, visitor);
            path.pop();
        }
    }

    /// The one section that has a key of this name, for whoever wrote it in another.
    pub(crate) fn section_of(&self, key: &str) -> Option<String> {
        let mut sections = Vec::new();
        self.visit(&mut Vec::new(), &mut |path, _| {
            if let Some((last, section)) = path.split_last()
                && *last == key
                && key != NAME
            {
                sections.push(section.join("."));
            }
        });
        match sections.as_slice() {
            [section] if !section.is_empty() => Some(section.clone()),
            _ => None,
        }
    }
}

/// The schema that a reference means, with what stands beside the reference, and the name of its type.
fn resolve(schema: &Value, root: &Value) -> (Map<String, Value>, String) {
    let own = schema.as_object().cloned().unwrap_or_default();
    let optional = own.get("anyOf").and_then(Value::as_array).and_then(|arms| match arms.as_slice() {
        [arm, null] | [null, arm] if null.get("type").is_some_and(|kind| kind == "null") => Some(arm),
        _ => None,
    });
    let reference = own.get("$ref").and_then(Value::as_str);
    let (mut resolved, name) = match (reference, optional) {
        (Some(reference), _) => {
            let target = root.pointer(reference.trim_start_matches('#')).unwrap_or(&Value::Null);
            let name = reference.rsplit('/').next().unwrap_or_default().to_owned();
            (resolve(target, root).0, name)
        }
        (None, Some(arm)) => resolve(arm, root),
        (None, None) => return (own, String::new()),
    };
    resolved.extend(own.into_iter().filter(|(key, _)| key != "$ref" && key != "anyOf"));
    (resolved, name)
}

fn takes(schema: &Map<String, Value>, type_name: &str) -> String {
    match type_name {
        "Span" => return "duration".to_owned(),
        "Size" => return "size".to_owned(),
        "Start" => return "`now`, `earliest` or a time (RFC 3339)".to_owned(),
        "Listen" => return "IP address and port, or `off`".to_owned(),
        _ => {}
    }
    let words = choices(schema);
    if !words.is_empty() {
        let words: Vec<String> = words.into_iter().map(|(word, _)| format!("`{word}`")).collect();
        return words.join(", ");
    }
    let kind = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null"),
        kind => kind.and_then(Value::as_str),
    };
    match kind {
        Some("integer") => "whole number",
        Some("number") => "number",
        Some("boolean") => "`true` or `false`",
        Some("array") => "list",
        Some("object")
            if schema.contains_key("additionalProperties") && !schema.contains_key("properties") =>
        {
            "names, each with a text"
        }
        Some("object") => "section",
        _ => "text",
    }
    .to_owned()
}

fn choices(schema: &Map<String, Value>) -> Vec<(String, String)> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    if let Some(words) = schema.get("enum").and_then(Value::as_array) {
        return words.iter().filter_map(|word| Some((text(Some(word))?, String::new()))).collect();
    }
    let arms = schema.get("oneOf").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut found = Vec::new();
    for arm in arms {
        if let Some(word) = text(arm.get("const")) {
            found.push((word, one_line(&text(arm.get("description")).unwrap_or_default())));
        } else if let Some(words) = arm.get("enum").and_then(Value::as_array) {
            found.extend(words.iter().filter_map(|word| Some((text(Some(word))?, String::new()))));
        }
    }
    found
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_by_path() {
        let shape = shape();
        assert!(shape.is_known(&["log", "idle", "min"]));
        assert!(shape.is_known(&["sinks", "anything", "retry", "factor"]));
        assert!(!shape.is_known(&["log", "idle", "mean"]));
        assert_eq!(shape.section_of("lease").as_deref(), Some("log"));
        assert_eq!(shape.section_of("max"), None, "there are two");
        assert_eq!(shape.section_of("log"), None, "the top is no section");
        assert!(shape.is_secret(&["database"]));
        assert!(shape.is_secret(&["databse"]));
        assert!(!shape.is_secret(&["relay", "name"]));
    }

    #[test]
    fn every_key_is_described_and_has_a_type_and_a_place_in_the_order() {
        shape().visit(&mut Vec::new(), &mut |path, shape| {
            assert!(path.last() == Some(&NAME) || !shape.description.is_empty(), "{path:?}");
            assert!(!shape.takes.is_empty(), "{path:?}");
            let is_own = path.len() < 3 || path[0] != "sinks";
            assert!(
                !is_own || path.contains(&NAME) || rank(path[path.len() - 1]).0 < ORDER.len(),
                "{path:?}"
            );
        });
    }
}
